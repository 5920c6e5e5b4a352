"""Who says what: the speakers of segments and words by turns, and batches of voices."""

from dataclasses import replace

import pytest

from reelscribe.contract.outcomes import Silence, SpeechFailure, Turn, Utterance
from reelscribe.contract.speech import Word
from reelscribe.results.speakers import SavedVoiceBatch, TimedVoices, with_speakers
from support.speaker_models import voices

TURNS = [Turn(0.0, 2.0, "speaker 1"), Turn(2.1, 4.0, "speaker 2"), Turn(3.5, 5.0, "speaker 1")]


def said(start: float, end: float, text: str, *words: tuple[float, float, str]) -> Utterance:
    timed = tuple(Word(*word) for word in words) or None
    return Utterance(start, end, text, "en", 0.1, timed, -0.5)


def test_a_segment_without_words_has_the_speaker_of_most_of_it():
    segments = [said(0, 3, "a"), said(1.5, 4, "b"), said(5.3, 6, "near"), said(9, 10, "far")]
    named = list(with_speakers(segments, TURNS))
    assert [each.speaker for each in named] == ["speaker 1", "speaker 2", "speaker 1", None]
    assert [each.speaker for each in with_speakers(segments, [])] == [None] * 4


def test_a_segment_with_words_is_cut_where_the_speaker_changes():
    text = "Hello there. Hi, all!"
    words = (0.2, 0.5, "Hello"), (0.6, 1.0, "there."), (2.2, 2.5, "Hi,"), (2.6, 3.0, "all!")
    one, other = with_speakers([said(0.1, 3.2, text, *words)], TURNS)
    assert (one.start, one.end, one.text, one.speaker) == (0.1, 1.0, "Hello there.", "speaker 1")
    assert (other.start, other.end, other.text, other.speaker) == (2.2, 3.2, "Hi, all!", "speaker 2")
    assert {word.speaker for word in other.words} == {"speaker 2"}


@pytest.mark.parametrize("names", [("speaker 1", "speaker 2"), ("speaker 2", "speaker 1")])
def test_who_speaks_already_keeps_the_words_during_which_another_speaks_too(names):
    first, other = names
    turns = [Turn(0.0, 0.3, "speaker 1"), Turn(1.0, 4.0, first), Turn(2.0, 3.0, other), Turn(3.5, 5.0, other)]
    words = (1.5, 2.0, "I"), (2.2, 2.6, "say"), (3.2, 3.4, "so."), (4.2, 4.5, "Yes.")
    parts = [(each.text, each.speaker) for each in with_speakers([said(1, 5, "I say so. Yes.", *words)], turns)]
    assert parts == [("I say so.", first), ("Yes.", other)]


def test_a_text_without_spaces_is_cut_as_well():
    words = (0.2, 0.5, "你"), (0.6, 1.0, "好"), (2.2, 2.5, "世界")
    texts = [each.text for each in with_speakers([said(0, 3, "你好世界", *words)], TURNS)]
    assert texts == ["你好", "世界"]


def test_a_word_of_which_nobody_knows_the_speaker_belongs_to_its_neighbours():
    words = (8.0, 8.2, "Far"), (3.0, 3.2, "away"), (9.0, 9.5, "now")
    (one,) = with_speakers([said(3, 9.5, "Far away now", *words)], TURNS)
    assert [word.speaker for word in one.words] == ["speaker 2"] * 3
    (nobody,) = with_speakers([said(8, 9.5, "Far", (8.0, 8.2, "Far"))], TURNS)
    assert nobody.speaker is None


def test_a_channel_that_was_transcribed_by_itself_keeps_its_name():
    channel = replace(said(0, 3, "a b", (0.2, 0.5, "a"), (2.2, 2.5, "b")), speaker="channel 2")
    assert list(with_speakers([channel], TURNS)) == [channel]


def test_a_batch_survives_the_ledger():
    batch = SavedVoiceBatch(
        0,
        90,
        chunks=[TimedVoices(0.0, 2.0, voices(0, 1)), TimedVoices(2.0, 3.0, voices())],
        silences=[Silence(3.0, 4.0)],
        failures=[SpeechFailure(4.0, 5.0, "why")],
    )
    assert SavedVoiceBatch.from_json(0, 90, None, batch.results_to_json()) == batch
    assert (batch.amount, batch.unsent, batch.failure_reasons) == (4.0, 1.0, ["why"])
    with pytest.raises(TypeError, match="start: expected a number"):
        SavedVoiceBatch.from_json(0, 1, None, '[[["0", 1, {"times": [], "embeddings": ""}]], [], []]')
