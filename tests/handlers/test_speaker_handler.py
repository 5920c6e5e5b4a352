"""The handler of speakers with a tiny random encoder: what it answers, what it refuses, and which weights it takes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import speaker_handler
from reelscribe import wire
from reelscribe.contract.descriptions import SpeakerModelDescription
from reelscribe.contract.voices import ChunkVoices
from reelscribe.errors import StartupError
from speakers.voice_activity import speech_in, windows_of
from speakers.voice_encoder import MelPowers
from support.alike import assert_alike
from support.audio import RATE
from support.fake_context import FakeContext, parsed
from support.speaker_models import encoder_weights, save_encoder, talk

GOLDEN = Path(__file__).parents[1] / "data" / "mel_powers" / "golden.npz"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_encoder(tmp_path_factory.mktemp("speakers") / "model")


def load(model: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": model, **settings})
    assert speaker_handler.handle(None, context) is None
    return context


def answer(context: FakeContext, *trees) -> list:
    """What the handler answers to requests in one call."""
    return parsed(speaker_handler.handle([{"body": b"".join(wire.pack(tree))} for tree in trees], context))


def test_spectrograms_are_those_of_librosa():
    golden = np.load(GOLDEN)
    powers = MelPowers(torch.device("cpu"))(golden["samples"].astype(np.float32)).numpy()
    np.testing.assert_allclose(powers, golden["powers"], rtol=1e-3, atol=1e-6)


def test_speech_is_found_between_pauses():
    samples = talk((0, 1.0), (120, 2.0), (0, 1.5), (200, 1.0), (0, 1.0))
    stretches = [(start / 100, stop / 100) for start, stop, _ in speech_in(samples)]
    np.testing.assert_allclose(stretches, [(1.0, 3.0), (4.5, 5.5)], atol=0.06)
    assert speech_in(np.zeros(RATE, np.float32)) == []
    assert speech_in(np.zeros(10, np.float32)) == []


def test_windows_tile_a_stretch_and_stay_in_it():
    windows = windows_of(100, 417, 160, 40)
    assert [window.start for window in windows][1:] == [window.stop for window in windows][:-1]
    assert (windows[0].start, windows[-1].stop, len(windows)) == (100, 417, 8)
    assert all(each.first >= 100 and each.end <= 417 and each.end - each.first == 160 for each in windows)
    assert windows_of(5, 30, 160, 40) == [(5, 30, 5, 30)]


def test_each_part_of_speech_has_an_embedding_that_does_not_depend_on_other_chunks_or_levels(model):
    context = load(model, device_batch=2)
    one, other = talk((120, 2.0), (0, 1.0)), talk((0, 0.8), (310, 0.3), (0, 0.8))
    (both,), (quiet,) = answer(context, {"chunks": [one, other]}), answer(context, {"chunks": [one / 4]})
    first, second = (ChunkVoices.from_json(each) for each in both)
    assert (len(first.times), len(second.times)) == (5, 1)
    np.testing.assert_allclose(ChunkVoices.from_json(quiet[0]).vectors(), first.vectors(), atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(first.vectors(), axis=1), 1, atol=1e-3)
    (alone,) = answer(load(model), {"chunks": [other]})[0]
    assert_alike(ChunkVoices.from_json(alone), second)


def test_chunks_without_speech_have_no_voices(model):
    (answers,) = answer(load(model), {"chunks": [np.zeros(RATE, np.int16), np.zeros(1, np.int16)]})
    assert [ChunkVoices.from_json(each).times for each in answers] == [(), ()]


def test_describe_returns_what_a_client_needs(model):
    context = load(model, max_chunks=9, chunk_seconds=10)
    context.headers = [{"describe": "1"}]
    (value,) = parsed(speaker_handler.handle([{"body": b""}], context))
    description = SpeakerModelDescription.from_json(value)
    assert (description.embedding_size, description.sample_rate, description.chunk_seconds) == (16, RATE, 10)
    assert (description.max_chunks, description.generation) == (9, {"window_seconds": 1.6, "step_seconds": 0.4})
    assert description.revision.startswith("sha256:")


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"chunks": [np.zeros((2, RATE), np.int16)]}, "mono"),
        ({"chunks": [np.full(RATE, np.nan, np.float32)]}, "expected finite numbers"),
        ({"chunks": [np.zeros(31 * RATE, np.int16)]}, "at most 30 seconds each"),
        ({"chunks": [np.zeros(9, np.int16)], "hotwords": "Uster"}, "expected none, as speaker models read no text"),
        ({"frames": np.zeros(9, np.int16)}, "expected an array, or a dict with chunks"),
    ],
)
def test_other_requests_are_refused(model, tree, reason):
    (value,) = answer(load(model), tree)
    assert reason in value["error"]["message"]


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"conv.weight": torch.zeros(1)}, "expected the weights of a GE2E encoder"),
        ({**encoder_weights(), "linear.weight": torch.zeros(16, 3)}, "expected the weights of a GE2E encoder"),
        ({**encoder_weights(), "linear.bias": torch.full((16,), torch.nan)}, "expected finite numbers, got NaN"),
    ],
)
def test_other_weights_are_refused(tmp_path, weights, reason):
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(StartupError, match=reason):
        load(str(tmp_path))


def test_settings_are_held_to_their_ranges(model):
    for name, value in {"step_seconds": 0, "window_seconds": 20, "chunk_seconds": 1, "stages": 2}.items():
        with pytest.raises(StartupError, match=f"{name}: expected"):
            load(model, **{name: value})
