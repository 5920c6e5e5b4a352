"""The handler of speakers with a diarization model: its own output, overlapping speech, and models that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForAudioFrameClassification, AutoProcessor

import speaker_handler
from reelscribe import wire
from reelscribe.contract.descriptions import SpeakerModelDescription
from reelscribe.contract.voices import ChunkVoices
from reelscribe.errors import StartupError
from support.audio import RATE
from support.fake_context import FakeContext, parsed
from support.speaker_models import DIARIZER, conversation, save_encoder

DEMO_SPEECH = Path(__file__).parents[2] / "demo" / "models" / "speech"
TALK = (1, 0, 2.0), (1, 1, 1.0), (0, 1, 2.0), (0, 0, 1.0), (1, 0, 1.0)
"""One speaks until 3 s, and again from 6 s to 7 s; the other from 2 to 5 s."""


@pytest.fixture(scope="module")
def diarizer() -> str:
    return str(DIARIZER)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    return save_encoder(tmp_path_factory.mktemp("speakers") / "model")


def load(encoder: str, diarizer: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": encoder, "diarizer": diarizer, "chunk_seconds": 60, **settings})
    assert speaker_handler.handle(None, context) is None
    return context


def voices(context: FakeContext, *chunks: np.ndarray) -> list[ChunkVoices]:
    """What the handler answers to chunks in one request."""
    (answers,) = parsed(speaker_handler.handle([{"body": b"".join(wire.pack({"chunks": [*chunks]}))}], context))
    return [ChunkVoices.from_json(each) for each in answers]


def test_speakers_who_speak_at_once_are_both_found(encoder, diarizer):
    (found,) = voices(load(encoder, diarizer), conversation(*TALK))
    assert found.speakers == (0, 1, 0)
    np.testing.assert_allclose(found.times, [(0, 3), (2, 5), (6, 7)], atol=0.1)
    first, other, again = found.vectors()
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)
    (monologue,) = voices(load(encoder, diarizer), conversation((1, 0, 2.0), (0, 0, 4.0), (1, 0, 1.0)))
    np.testing.assert_allclose(monologue.vectors()[0], first, atol=5e-3)  # what overlaps is not part of a voice


def test_times_are_those_of_the_models_own_processor(encoder, diarizer):
    long = np.concatenate([conversation(*TALK)] * 6)  # longer than what the model looks at once
    processor = AutoProcessor.from_pretrained(diarizer)
    inputs = processor(long, sampling_rate=RATE)
    with torch.inference_mode():
        logits = AutoModelForAudioFrameClassification.from_pretrained(diarizer)(**inputs).logits
    (expected,) = processor.extract_speaker_dict(logits, inputs["attention_mask"])
    (found,) = voices(load(encoder, diarizer), long)
    told = [(each["Start"], each["End"], each["Speaker"]) for each in expected]
    assert [(*times, speaker) for times, speaker in zip(found.times, found.speakers, strict=True)] == told


def test_an_answer_does_not_depend_on_other_chunks(encoder, diarizer):
    context = load(encoder, diarizer, device_batch=4)
    chunks = conversation(*TALK), conversation(*TALK, *TALK)[RATE:], np.zeros(1, np.float32), conversation((0, 0, 1.0))
    together, alone = voices(context, *chunks), [answer for chunk in chunks for answer in voices(context, chunk)]
    assert [(each.times, each.speakers) for each in together] == [(each.times, each.speakers) for each in alone]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.vectors(), other.vectors(), atol=2e-3)
    assert [each.times for each in together[2:]] == [(), ()]


def test_the_description_names_the_diarizer(encoder, diarizer):
    context = load(encoder, diarizer)
    context.headers = [{"describe": "1"}]
    description = SpeakerModelDescription.from_json(parsed(speaker_handler.handle([{"body": b""}], context))[0])
    name, revision = description.generation["diarizer"]
    assert (name, revision[:7]) == (diarizer, "sha256:")


def test_other_models_are_refused(encoder, diarizer, tmp_path):
    with pytest.raises(StartupError, match="diarizer: the folder /gone is gone"):
        load(encoder, "/gone")
    with pytest.raises(StartupError, match=r"diarizer: expected a Nemotron diarization model, got .* WhisperProcessor"):
        load(encoder, str(DEMO_SPEECH))
    for file in Path(diarizer).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "processor_config.json").read_text())
    config["feature_extractor"]["hop_length"] = 80
    (tmp_path / "processor_config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match=r"diarizer: expected frames of 160 samples at 16000 Hz, got .* with 80"):
        load(encoder, str(tmp_path))
