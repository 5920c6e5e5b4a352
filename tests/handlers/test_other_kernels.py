"""What the comparisons of all other tests of handlers rely on: conftest.py and support/alike.py."""

import pytest
import torch
from torch.nn import functional as F

from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from support.alike import assert_alike


def test_the_same_row_is_rounded_otherwise_in_another_batch_and_place():
    rows, exactly = torch.ones(3, 64), torch.eye(64)
    first, second, _ = F.linear(rows, exactly)
    (alone,) = F.linear(rows[:1], exactly)
    assert len({tuple(each.tolist()) for each in (first, second, alone)}) == 3
    for each in (first, second, alone):
        torch.testing.assert_close(each, rows[0], rtol=1e-5, atol=0)
    assert torch.equal(F.linear(rows, exactly)[0], first)  # the same call has the same result


def transcript(text: str = "go", start: float = 0.5, logprob: float = -0.25, **others: object) -> ChunkTranscript:
    return ChunkTranscript(text, "en", (SpeechSegment(start, 1.0, text),), avg_logprob=logprob, **others)


def test_answers_are_alike_whose_confidences_are_rounded_otherwise():
    assert_alike([transcript()], (transcript(logprob=-0.2501),))


@pytest.mark.parametrize(
    "other",
    [
        transcript(text="no"),
        transcript(start=0.501),
        transcript(logprob=-0.251),
        transcript(no_speech_prob=0.0),
        transcript(translation=transcript()),
        ChunkTranscript("go", "en", (), avg_logprob=-0.25),
        {"text": "go"},
        [],
    ],
    ids=str,
)
def test_answers_that_differ_in_anything_else_are_not_alike(other):
    with pytest.raises(AssertionError):
        assert_alike(other, transcript())
