"""Files of Advanced SubStation Alpha, as pysubs2 and FFmpeg read them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.exporting import MARKUP, TEXTS, WORD_JOINER, exported, record, record_of_both, shown_by_ffmpeg, words

PLAIN_BRACES = str.maketrans("\uff5b\uff5d", "{}")


def events(out, name="x"):
    """(start, end, lines) of each event; lines have no tags."""
    return [
        (event.start, event.end, event.plaintext.replace(WORD_JOINER, "").translate(PLAIN_BRACES).split("\n"))
        for event in pysubs2.load(str(out / f"ass/{name}.ass"))
    ]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_any_text_is_one_event_and_is_read_back(captions):
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [record("x", "first", *captions, "last")], "ass")
        expected = ["".join(found) for text in ["first", *captions, "last"] if (found := words(text))]
        found = ["".join(words(" ".join(lines))) for _, _, lines in events(out)]
    assert found == [text.translate(PLAIN_BRACES) for text in expected]


@pytest.mark.parametrize("text", MARKUP)
def test_players_show_a_text_that_looks_like_markup(tmp_path, text):
    out = exported(tmp_path, [record("x", text, "next")], "ass")
    shown = text.translate(str.maketrans("{}", "\uff5b\uff5d"))
    assert shown_by_ffmpeg(out / "ass/x.ass") == [" ".join(words(shown)), "next"]


def test_what_is_seen_is_in_brackets_at_the_top_while_somebody_speaks(tmp_path):
    value = record_of_both([(0, 4, "a dog")], [(1, 2, "three")])
    found = [*pysubs2.load(str(exported(tmp_path, [value], "ass") / "ass/clip.mp4.ass"))]
    assert [(event.start, event.end, event.text) for event in found] == [
        (0, 4000, r"{\an8}[a dog]"),
        (1000, 2000, "three"),
    ]


def test_times_are_in_hundredths_of_seconds_and_end_before_10_hours(tmp_path):
    times = [(0.004, 0.005), (0.016, 1), (35_999, 36_010), (36_001, 36_002)]
    spans = [{"start": start, "end": end, "text": str(k)} for k, (start, end) in enumerate(times)]
    out = exported(tmp_path, [record("x", caption_spans=spans)], "ass")
    assert events(out) == [(0, 10, ["0"]), (20, 1000, ["1"]), (35_999_000, 35_999_980, ["2"])]
