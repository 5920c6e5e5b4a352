"""A speaker model's answer, and answers that are none; the number of speakers as users write it."""

import base64
from dataclasses import replace

import numpy as np
import pytest

from reelscribe.contract.voices import ChunkVoices, SpeakerBounds
from reelscribe.errors import UsageError
from support.speaker_models import voices


def test_an_answer_survives_json():
    for answer in (voices(0, 1, 0), voices(), replace(voices(0, 1, 0), speakers=(0, 1, 0))):
        assert ChunkVoices.from_json(answer.to_json()) == answer
    assert voices(0, 1, 0).vectors().shape == (3, 8)


def encoded(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f2").tobytes()).decode()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "expected an object"),
        ({"times": [0, 1], "embeddings": encoded(1, float("nan"))}, "expected finite numbers"),
        ({"times": [0, 1], "embeddings": encoded(0, 0)}, "not all 0"),
        ({"times": [0, 1, 1, 2], "embeddings": encoded(1, 2, 3)}, "same number for each part"),
        ({"times": [0, 1], "embeddings": ""}, "same number for each part"),
        ({"times": [], "embeddings": encoded(1)}, "same number for each part"),
        ({"times": [0, 1], "embeddings": "AAA"}, "expected base64"),
        ({"times": [1, 0], "embeddings": encoded(1)}, "in order"),
        ({"times": [0, 1, 2], "embeddings": encoded(1)}, "a start and an end"),
        ({"times": [0, float("nan")], "embeddings": encoded(1)}, "expected a number"),
        ({"times": [1, 2, 0, 3], "embeddings": encoded(1, 2)}, "in order"),
        ({"times": [0, 1], "embeddings": encoded(1), "speakers": [0, 1]}, "a number from 0 to 99 for each part"),
        ({"times": [0, 1], "embeddings": encoded(1), "speakers": [-1]}, "a number from 0 to 99 for each part"),
        ({"times": [0, 1], "embeddings": encoded(1), "speakers": [True]}, "a number from 0 to 99 for each part"),
        ({"times": [0, 1], "embeddings": encoded(1), "speakers": None}, "expected a list"),
    ],
)
def test_other_answers_are_refused(value, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        ChunkVoices.from_json(value)


def test_embeddings_of_another_size_are_refused():
    voices(0, 1).check_size(8)
    with pytest.raises(ValueError, match="expected 16 numbers for each part, got 8"):
        voices(0, 1).check_size(16)


def test_the_number_of_speakers_is_read_as_it_is_written():
    for text, bounds in {"auto": (1, None), "2": (2, 2), "2..4": (2, 4)}.items():
        assert (SpeakerBounds.parse(text).least, SpeakerBounds.parse(text).most) == bounds
        assert str(SpeakerBounds.parse(text)) == text
    for wrong in ("0", "4..2", "some", "2..", "101", "-1"):
        with pytest.raises(UsageError, match="speakers: expected"):
            SpeakerBounds.parse(wrong)
