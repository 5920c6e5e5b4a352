"""Parts of a source's sound, and the timeline that they make."""

from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.annotations import Silence, SpeechFailure, Utterance
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from reelscribe.results.batches import SavedAudioBatch, timeline


def transcript(*segments: SpeechSegment, language: str | None = "en", **figures: float) -> ChunkTranscript:
    return ChunkTranscript(" ".join(segment.text for segment in segments), language, segments, **figures)


def spoken(text: str, start: float = 0.0, end: float = 1.0, words: tuple[Word, ...] | None = None) -> ChunkTranscript:
    """A transcript of one segment."""
    return transcript(SpeechSegment(start, end, text, words))


def told(*parts: SavedAudioBatch) -> list[Utterance | Silence | SpeechFailure]:
    return list(timeline(parts))


PARTS = [
    SavedAudioBatch(
        0, 300, heard=[(10.0, 20.0, spoken("go")), (30.0, 40.0, spoken("stop"))], failures=[(20.0, 30.0, "x")]
    ),
    SavedAudioBatch(300, 500, silent=[(40.0, 50.0), (50.0, 60.0)]),
    SavedAudioBatch(500, 700, heard=[(70.0, 80.0, spoken("left"))], silent=[(60.0, 70.0)]),
]


def test_what_came_of_the_sound_is_in_its_order():
    assert told(*PARTS) == [
        Utterance(10.0, 11.0, "go", "en", None),
        SpeechFailure(20.0, 30.0, "x"),
        Utterance(30.0, 31.0, "stop", "en", None),
        Silence(40.0, 70.0),
        Utterance(70.0, 71.0, "left", "en", None),
    ]


def test_no_parts_are_no_sound():
    assert told() == []
    assert told(SavedAudioBatch(0, 300)) == []


def test_silence_that_goes_on_over_parts_is_one_and_ends_where_anything_was_sent():
    heard_nothing = ChunkTranscript("", None, ())
    parts = [
        SavedAudioBatch(0, 20, silent=[(0.0, 1.0), (1.0, 2.0)]),
        SavedAudioBatch(20, 40, silent=[(2.0, 3.0)], heard=[(3.0, 4.0, heard_nothing)]),
        SavedAudioBatch(40, 50, silent=[(4.0, 5.0)]),
    ]
    assert told(*parts) == [Silence(0.0, 3.0), Silence(4.0, 5.0)]


def test_silence_before_and_after_missing_sound_is_not_one():
    assert told(SavedAudioBatch(0, 20, silent=[(0.0, 1.0), (1.2, 2.0)])) == [Silence(0.0, 1.0), Silence(1.2, 2.0)]


def test_each_segment_lies_where_its_chunk_does_and_is_an_utterance():
    segments = [SpeechSegment(0.25, 1.5, "go left"), SpeechSegment(2.0, 3.125, "stop")]
    part = SavedAudioBatch(0, 50, heard=[(100.5, 110.5, transcript(*segments, language=None, no_speech_prob=0.125))])
    assert told(part) == [
        Utterance(100.75, 102.0, "go left", None, 0.125),
        Utterance(102.5, 103.625, "stop", None, 0.125),
    ]


def test_words_lie_where_their_chunk_does_too():
    words = (Word(0.25, 0.5, "go"), Word(0.75, 1.5, "left"))
    (utterance,) = told(SavedAudioBatch(0, 50, heard=[(100.5, 110.5, spoken("go left", 0.25, 1.5, words))]))
    assert utterance.words == (Word(100.75, 101.0, "go"), Word(101.25, 102.0, "left"))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(-1.0, 1.0, (10.0, 11.0)), (1.0, 99.0, (11.0, 12.0)), (5.0, 6.0, (12.0, 12.0)), (1.0, 0.5, (11.0, 11.0))],
)
def test_times_that_no_chunk_can_have_are_put_into_it(start, end, expected):
    words = (Word(start, end, "go"),)
    (utterance,) = told(SavedAudioBatch(0, 50, heard=[(10.0, 12.0, spoken("go", start, end, words))]))
    assert (utterance.start, utterance.end) == expected
    assert 10.0 <= utterance.words[0].start <= 12.0
    assert 10.0 <= utterance.words[0].end <= 12.0


def test_segments_without_text_are_no_utterances():
    part = SavedAudioBatch(0, 50, heard=[(0.0, 5.0, transcript(SpeechSegment(0, 1, ""), SpeechSegment(1, 2, "go")))])
    assert [utterance.text for utterance in told(part)] == ["go"]


def again(part: SavedAudioBatch) -> SavedAudioBatch:
    """The part, after it was JSON that is stored as UTF-8."""
    return SavedAudioBatch.from_json(part.first, part.stop, part.anchor, part.results_to_json().encode().decode())


def test_a_part_is_the_same_after_it_was_json():
    text = "«étoile»\n\x00 half a pair: \ud83d"
    figures = {"no_speech_prob": 0.1, "avg_logprob": -0.3, "compression_ratio": 1.2, "temperature": 0.0}
    odd = transcript(SpeechSegment(0.0, 1 / 3, text, (Word(0.0, 1 / 3, text),)), language=None, **figures)
    part = SavedAudioBatch(0, 50, heard=[(0.0, 5.0, odd)], silent=[(5.0, 1e9 / 3)], failures=[(6.0, 7.0, text)])
    assert again(part).heard == [(0.0, 5.0, odd)]
    assert told(again(part)) == told(part)
    assert told(*map(again, PARTS)) == told(*PARTS)


STRETCHES = st.lists(
    st.tuples(st.sampled_from(["heard", "silent", "failures"]), st.integers(1, 160_000), st.booleans()), max_size=12
)
"""What came of each chunk, its samples, and whether a part ends behind it."""


def to_parts(stretches: list[tuple[str, int, bool]], start: Fraction, *, cut: bool) -> list[SavedAudioBatch]:
    """The chunks of 16,000 samples a second as parts, with the times that a track gives them; or as a single part."""
    parts, rows, first = [], {"heard": [], "silent": [], "failures": []}, 0
    bounds = pairwise(accumulate((samples for _, samples, _ in stretches), initial=0))
    for number, ((kind, samples, ends), (begin, stop)) in enumerate(zip(stretches, bounds, strict=True), 1):
        seconds = round(float(start + Fraction(begin, 16_000)), 6)
        what = {"heard": (spoken(f"text {begin}"),), "silent": (), "failures": (f"error {begin}",)}[kind]
        rows[kind].append((seconds, round(seconds + samples / 16_000, 6), *what))
        if (cut and ends) or number == len(stretches):
            parts.append(SavedAudioBatch(first, stop, **rows))
            rows, first = {"heard": [], "silent": [], "failures": []}, stop
    return parts


@given(STRETCHES, st.fractions(0, 10_000, max_denominator=90_000))
def test_it_makes_no_difference_where_parts_are_cut_nor_how_times_are_rounded(stretches, start):
    whole = told(*to_parts(stretches, start, cut=False))
    assert told(*map(again, to_parts(stretches, start, cut=True))) == whole
    kinds = [kind for kind, _, _ in stretches]
    silences = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind == "silent" != before]
    assert sum(isinstance(what, Silence) for what in whole) == len(silences)
    assert sum(isinstance(what, SpeechFailure) for what in whole) == kinds.count("failures")
