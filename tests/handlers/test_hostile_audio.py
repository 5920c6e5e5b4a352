"""Every kind of model of audio with requests that nobody honest sends, beside others in the same call."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from reelscribe import wire
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.contract.voices import ChunkVoices
from speaker_handler import SpeakerHandler
from speech_handler import SpeechHandler
from support.alike import assert_alike
from support.audio import RATE, noise
from support.fake_context import FakeContext, parsed
from support.hostile_pickles import HOSTILE
from support.speaker_models import DIARIZER, save_encoder, talk
from support.tiny_models import save_canary, save_parakeet, save_parakeet_tdt, save_qwen3_asr, save_wav2vec2

ROOT = Path(__file__).parents[2]

SAVE = {
    "whisper": lambda _: str(ROOT / "demo" / "models" / "speech"),
    "wav2vec2": lambda folder: save_wav2vec2(folder, masked=True),
    "parakeet-ctc": save_parakeet,
    "parakeet-tdt": save_parakeet_tdt,
    "canary": save_canary,
    "qwen3-asr": save_qwen3_asr,
    "speakers": save_encoder,
    "diarizer": save_encoder,
}
SECONDS = 3
"""Longest chunk."""

SQUARE = np.sign(np.sin(np.arange(RATE) / 9)).astype(np.float32)
ODD = {
    "a sample": np.zeros(1, np.int16),
    "less than a window": noise(0.003, 1),
    "silence": np.zeros(RATE, np.float32),
    "the loudest": np.tile(SQUARE, SECONDS),
    "the faintest": np.full(RATE, 1e-45, np.float32),
    "a direct current": np.full(RATE, -32768, np.int16),
    "a click": np.eye(1, RATE, RATE // 2, np.float32)[0],
    "speech": talk((120, 1.0), (0, 0.7), (310, 0.8)),
}
"""Audio that is no error."""


def packed(tree) -> bytes:
    return b"".join(wire.pack(tree))


GOOD = packed({"chunks": [ODD["speech"]], "sample_rate": RATE})
HOSTILE_BODIES = {
    "no body": (b"", 400),
    "noise": (bytes(range(200, 256)), 400),
    "half a body": (GOOD[:-1], 400),
    "a function": (pickle.dumps(print), 400),
    "JSON": (b'{"chunks": [[0]]}', 415),
    "a picture": (b"\x89PNG\r\n\x1a\n", 415),
    "no chunks": (packed({"chunks": []}), 422),
    "an empty chunk": (packed({"chunks": [np.zeros(0, np.int16)]}), 422),
    "chunks in chunks": (packed({"chunks": [[ODD["silence"]]]}), 422),
    "two channels": (packed(np.zeros((RATE, 2), np.int16)), 422),
    "NaN": (packed(np.full(RATE, np.nan, np.float32)), 422),
    "infinity": (packed(np.full(RATE, np.inf, np.float32)), 422),
    "far beyond full scale": (packed(1e30 * SQUARE), 422),
    "no sample rate": (packed({"chunks": SQUARE, "sample_rate": 0}), 422),
    "a rate that makes it endless": (packed({"chunks": SQUARE, "sample_rate": 1}), 422),
    "another language": (packed({"chunks": SQUARE, "language": "../../etc"}), 422),
    "special tokens": (packed({"chunks": SQUARE, "hotwords": "<|endoftext|>"}), 422),
    "too long": (packed(np.zeros(SECONDS * RATE + 1, np.int16)), 413),
    "too many": (packed({"chunks": [np.zeros(9, np.int16)] * 65}), 413),
    **{f"pickle, {name}": (body, 400) for name, body in HOSTILE["it names"].items()},
}


@pytest.fixture(scope="module", params=SAVE)
def ask(request, tmp_path_factory):
    """A function that returns the answers and the statuses of the requests of a call to a model."""
    weights = SAVE[request.param](tmp_path_factory.mktemp("hostile"))
    config = {"model": weights, "chunk_seconds": SECONDS, "device_batch": 3}
    if request.param == "diarizer":
        config["diarizer"] = str(DIARIZER)
    if request.param in ("speakers", "diarizer"):
        handler, read = SpeakerHandler(), ChunkVoices.from_json
    else:
        handler, read = SpeechHandler(), ChunkTranscript.from_json
        config["tokens_per_second"] = 2
    handler.handle(None, FakeContext(config))

    def call(*bodies: bytes):
        context = FakeContext()
        answers = parsed(handler.handle([{"body": body} for body in bodies], context))
        statuses = [context.statuses.get(k, 200) for k in range(len(bodies))]
        for row, status in enumerate(statuses):
            if status == 200:
                answers[row] = [read(each) for each in answers[row]]
            else:
                assert answers[row]["error"]["message"].isprintable()
        return answers, statuses

    return call


def test_odd_audio_is_answered_in_a_batch_as_alone(ask):
    (together,), statuses = ask(packed({"chunks": [*ODD.values()], "sample_rate": RATE}))
    assert statuses == [200]
    alone = [ask(packed({"chunks": [samples], "sample_rate": RATE}))[0][0][0] for samples in ODD.values()]
    assert_alike(together, alone)


def test_hostile_requests_are_refused_and_those_beside_them_are_answered_as_alone(ask):
    (alone,), _ = ask(GOOD)
    bodies = [body for body, _ in HOSTILE_BODIES.values()]
    answers, statuses = ask(GOOD, *bodies, GOOD)
    assert dict(zip(HOSTILE_BODIES, statuses[1:-1], strict=True)) == {
        name: status for name, (_, status) in HOSTILE_BODIES.items()
    }
    assert (statuses[0], statuses[-1]) == (200, 200)
    for answer in (answers[0], answers[-1]):
        assert_alike(answer, alone)
