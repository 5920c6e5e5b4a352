"""What the demo speech model, which was trained with speech alone, makes of other audio with the guard against it."""

import random

import numpy as np
import pytest
import torch

from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from synthetic.non_speech import SOUNDS
from synthetic.phrases import SAMPLE_RATE, random_utterance
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.model import WhisperModel

CHUNK = 10 * SAMPLE_RATE


def transcribed(model: WhisperModel, recordings: list[SampleArray]) -> list[ChunkTranscript]:
    options = TranscriptionOptions(language="en")
    return model.transcribe([Chunk(samples.astype(np.float32) / 32768, options) for samples in recordings])


@pytest.fixture(scope="module")
def model(demo_speech) -> WhisperModel:
    # Two temperatures suffice: the text of a sound is as much a guess at the others.
    settings = SpeechSettings(demo_speech, temperatures=(0.0, 1.0), text_probability_threshold=0.4)
    return WhisperModel(settings, torch.device("cpu"))


@pytest.mark.parametrize("name", SOUNDS)
def test_a_sound_without_speech_has_no_words(model, name):
    samples = SOUNDS[name](40, seed=1)
    assert [t.text for t in transcribed(model, [samples[at : at + CHUNK] for at in range(0, len(samples), CHUNK)])] == [
        ""
    ] * 4


def test_the_guard_drops_no_speech(demo_speech, model):
    rng = random.Random(7)
    spoken = [random_utterance(rng, held_out=k % 2 == 0).samples for k in range(24)]
    unguarded = WhisperModel(SpeechSettings(demo_speech, temperatures=(0.0, 1.0)), torch.device("cpu"))
    assert transcribed(model, spoken) == transcribed(unguarded, spoken)


def test_the_guard_is_one_of_the_settings_that_clients_see(model):
    assert model.generation["text_probability_threshold"] == 0.4
