"""Where speech is cut into cues and lines: within the limits, without overlaps, and where a reader would."""

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from reelscribe.errors import UsageError
from reelscribe.export.cue_rules import CueRules
from support.exporting import cues_made, line_texts, said, transcript_record, utterance

WORDS = st.text("abéñ,.!鏡カッ。「」ไทา", min_size=1, max_size=12)
SPOKEN = st.lists(st.tuples(WORDS, st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=40)
"""Words, each with the time that it takes, and the pause after it, in milliseconds."""
RULES = st.fixed_dictionaries(
    {
        "max_line_chars": st.integers(8, 42),
        "max_lines": st.integers(1, 3),
        "max_cue_seconds": st.sampled_from([2.0, 7.0]),
        "min_cue_seconds": st.sampled_from([0.0, 1.0, 2.0]),
        "max_chars_per_second": st.sampled_from([5.0, 20.0]),
    }
)


def in_latin(portion):
    return [(f"a{text.encode('ascii', 'ignore').decode()}", lasts, pause) for text, lasts, pause in portion]


def segments(portions, space):
    """Utterances, one after the other."""
    made, time = [], 0
    for portion in portions:
        words = []
        for text, lasts, pause in portion:
            words.append({"start": time / 1000, "end": (time + lasts) / 1000, "text": text, "probability": None})
            time += lasts + pause
        made.append(utterance(words[0]["start"], words[-1]["end"], space.join(word["text"] for word in words), words))
    return made


def shown(*spoken, **rules):
    """The lines of each cue."""
    return [line_texts(cue) for cue in cues_made(transcript_record(segments=[*spoken]), **rules)]


@given(st.lists(SPOKEN, min_size=1, max_size=4), st.sampled_from([" ", ""]), RULES)
def test_cues_of_any_speech_are_within_the_limits(portions, space, rules):
    made = segments(portions, space)
    cues = cues_made(transcript_record(segments=made), karaoke=True, **rules)
    assert "".join("".join(line) for cue in cues for line in line_texts(cue)).replace(" ", "") == "".join(
        word["text"] for segment in made for word in segment["words"]
    )
    for cue in cues:
        assert len(cue.lines) <= rules["max_lines"]
        assert all(
            cell_len(text) <= rules["max_line_chars"] or len(line) == 1
            for text, line in zip(line_texts(cue), cue.lines, strict=True)
        )
        alone = len([*chain.from_iterable(cue.lines)]) == 1
        assert cue.end - cue.start <= rules["max_cue_seconds"] * 1000 or alone


@given(st.lists(SPOKEN.map(in_latin), min_size=1, max_size=4), RULES)
def test_a_cue_lasts_until_it_is_read_or_the_next_one_begins(portions, rules):
    cues = cues_made(transcript_record(segments=segments(portions, " ")), **rules)
    for cue, after in pairwise([*cues, None]):
        assert after is None or cue.end <= after.start
        needed = max(rules["min_cue_seconds"], cell_len(" ".join(line_texts(cue))) / rules["max_chars_per_second"])
        room = after.start - cue.start if after else 1e9
        assert cue.end - cue.start >= min(needed * 1000, rules["max_cue_seconds"] * 1000, room)


@given(st.lists(st.text("abc", min_size=1, max_size=10), min_size=2, max_size=60))
def test_no_word_is_alone(words):
    for cue in cues_made(transcript_record(segments=[said(" ".join(words))]), karaoke=True):
        assert all(len(line) > 1 for line in cue.lines)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=8))
def test_cues_of_people_who_speak_at_the_same_time_never_overlap(times):
    spoken = [
        utterance(start / 1000, (start + lasts) / 1000, f"s{k}") for k, (start, lasts) in enumerate(sorted(times))
    ]
    cues = cues_made(transcript_record(segments=spoken))
    assert [line_texts(cue) for cue in cues] == [[each["text"]] for each in spoken]
    assert all(cue.start < cue.end <= after.start for cue, after in pairwise(cues))
    assert all(cue.end - cue.start >= min(1000, lasts) for cue, (_, lasts) in zip(cues, sorted(times), strict=True))


def test_speech_is_cut_after_sentences_then_clauses_then_pauses():
    sentence = "The captain of the old ship was a friend of mine. " * 2
    assert shown(said(sentence.strip())) == [["The captain of the old", "ship was a friend of mine."]] * 2
    clause = "When the captain of the old ship came home, nobody in the village knew his face any more"
    assert [" ".join(lines).split()[-1] for lines in shown(said(clause))] == ["home,", "more"]
    words = "the captain of the old ship came home and nobody in the village knew his face any more"
    assert [" ".join(lines).split()[-1] for lines in shown(said(words, pauses={"village": 1}))] == ["village", "more"]


@pytest.mark.parametrize("end", [*"\u061f\u06d4\u05c3\u104b\u1362\u0589\u17d4\u2048", "!\u200f", ".\u203a", "。\u3011"])
def test_a_sentence_ends_with_the_full_stop_of_any_script(end):
    first, second = "the captain of the old" + end, "ship was a friend of mine"
    assert shown(said(f"{first} {second}"), max_cue_seconds=2.5)[0] == [first]


def test_abbreviations_end_no_sentence():
    text = "We went over the bridge and through the market with Dr. Miller and his wife and their children"
    assert not [line for lines in shown(said(text)) for line in lines if line.endswith("Dr.")]


def test_lines_are_as_few_as_possible_balanced_and_broken_after_punctuation():
    assert shown(utterance(0, 2, "just about as long as a line can be made.")) == [
        ["just about as long as a line can be made."]
    ]
    assert shown(utterance(0, 5, "The quick brown fox jumps over the lazy dog again")) == [
        ["The quick brown fox jumps", "over the lazy dog again"]
    ]
    assert shown(utterance(0, 5, "The quick brown fox, over and over, jumps and jumps")) == [
        ["The quick brown fox,", "over and over, jumps and jumps"]
    ]


def test_a_long_pause_ends_a_cue_so_that_no_word_is_shown_long_before_it_is_spoken():
    assert shown(said("Well, that was long ago.", pauses={"Well,": 3.5})) == [["Well,"], ["that was long ago."]]


def test_segments_too_short_to_be_read_are_joined_and_others_are_not():
    parts = [
        said(word, k * 0.3) for k, word in enumerate(["some", "models", "write", "a", "segment", "for", "each", "word"])
    ]
    assert shown(*parts) == [["some models write a segment for each word"]]
    assert shown(said("I went there."), said("It was good.", 0.9), min_cue_seconds=0.5) == [
        ["I went there."],
        ["It was good."],
    ]
    assert shown(said("Yes."), said("No.", 2)) == [["Yes."], ["No."]]
    assert shown(*(said(text, k * 0.4) for k, text in enumerate(["鏡", "です"]))) == [["鏡です"]]


def test_full_width_characters_count_double_and_no_line_begins_with_closing_punctuation():
    text = "我们今天要讨论的是关于人工智能的发展历史、以及它在未来可能带来的影响。" * 3
    lines = [*chain.from_iterable(shown(utterance(0, 30, text)))]
    assert "".join(lines) == text
    assert all(cell_len(line) <= 42 and line[0] not in "、。" for line in lines)
    assert shown(utterance(0, 5, "ちょっと「カメラ」"), max_line_chars=6) == [["ちょっ", "と「カ", "メラ」"]]


def test_thai_is_broken_between_words_that_have_times_but_not_within_syllables():
    spoken = said("ไปที่ไหนมา")
    lines = [*chain.from_iterable(shown(spoken, max_line_chars=4, max_lines=1))]
    assert "".join(lines) == "ไปที่ไหนมา"
    assert len(lines) > 1
    assert not [line for line in lines if line[0] in "\u0e32\u0e35\u0e48" or line[-1] == "ไ"]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"max_lines": 0}, "--max-lines: expected more than 0, got 0"),
        ({"max_chars_per_second": float("nan")}, "--max-chars-per-second: expected more than 0"),
        ({"min_cue_seconds": 8}, "--min-cue-seconds: expected 0 to 7, which is --max-cue-seconds, got 8"),
    ],
)
def test_rules_that_cannot_be_kept_are_refused(rules, reason):
    with pytest.raises(UsageError, match=reason):
        CueRules(**rules)
