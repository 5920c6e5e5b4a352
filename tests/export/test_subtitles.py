"""WebVTT and SubRip files, as reference libraries and players read them."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.exporting import (
    MARKUP,
    TEXTS,
    cues,
    exported,
    files,
    record,
    record_of_both,
    shown_by_ffmpeg,
    transcript_record,
    words,
)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_any_text_is_one_cue_and_is_read_back_word_for_word(captions):
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [record("x", "first", *captions, "last")], "vtt", "srt")
        # Lines are also broken within what has no spaces, as between Chinese characters.
        expected = ["".join(found) for text in ["first", *captions, "last"] if (found := words(text))]
        vtt, srt = (["".join(found) for _, _, found in cues(out / kind / f"x.{kind}")] for kind in ("vtt", "srt"))
        braces = str.maketrans("\uff5b\uff5d", "{}")
        assert (vtt, srt) == (expected, [text.translate(braces) for text in expected])


def test_subrip_has_no_character_references_and_no_arrows_in_texts(tmp_path):
    content = (exported(tmp_path, [record("x", "&lt;b&gt; &#60; AT&T", "-->")], "srt") / "srt/x.srt").read_text()
    assert not re.search(r"&#?\w+;", content)
    assert content.count("-->") == 2


def test_a_text_that_is_not_utf_8_is_escaped(tmp_path):
    out = exported(tmp_path, [record("x", "a \ud800 b")], "vtt", "srt")
    assert cues(out / "vtt/x.vtt")[0][2] == cues(out / "srt/x.srt")[0][2] == ["a", "\\ud800", "b"]


@pytest.mark.parametrize("kind", ["vtt", "srt"])
@pytest.mark.parametrize("text", MARKUP)
def test_players_show_a_text_that_looks_like_markup(tmp_path, text, kind):
    out = exported(tmp_path, [record("x", text, "next")], kind)
    shown = text.translate(str.maketrans("{}", "\uff5b\uff5d")) if kind == "srt" else text
    assert shown_by_ffmpeg(out / kind / f"x.{kind}") == [" ".join(words(shown)), "next"]


@pytest.mark.parametrize("wanted", ["transcript", "both"])
def test_a_transcript_alone_gives_the_same_files_as_equal_captions_alone(tmp_path, wanted):
    texts = ["three <red> circle", "{go} left -->"]
    (tmp_path / "captions").mkdir()
    (tmp_path / "transcript").mkdir()
    captions = exported(tmp_path / "captions", [record("a.mp4", *texts, start=3.5)], "vtt", "srt")
    spoken = [transcript_record("a.mp4", *texts, start=3.5)]
    assert files(exported(tmp_path / "transcript", spoken, "vtt", "srt", cues=wanted)) == files(captions)


def test_webvtt_shows_captions_in_brackets_at_the_top_while_somebody_speaks(tmp_path):
    value = record_of_both([(0, 4, "a <b>"), (4, 8, "7")], [(1, 2, "three"), (3.5, 5, "4"), (6, 7, "[x]")])
    content = (exported(tmp_path, [value], "vtt") / "vtt/clip.mp4.vtt").read_text()
    assert content.split("\n\n")[:-1] == [
        "WEBVTT",
        "1\n00:00:00.000 --> 00:00:04.000 line:0\n[a &lt;b&gt;]",
        "2\n00:00:01.000 --> 00:00:02.000\nthree",
        "3\n00:00:03.500 --> 00:00:05.000\n4",
        "4\n00:00:04.000 --> 00:00:08.000 line:0\n[7]",
        "5\n00:00:06.000 --> 00:00:07.000\n[x]",
    ]


def test_subrip_shows_captions_in_brackets_above_speech_in_one_cue_at_a_time(tmp_path):
    value = record_of_both([(0, 4, "a <b>"), (4, 8, "7")], [(1, 2, "three"), (3.5, 5, "4"), (9, 10, "[x]")])
    content = (exported(tmp_path, [value], "srt") / "srt/clip.mp4.srt").read_text()
    assert content.split("\n\n")[:-1] == [
        "1\n00:00:00,000 --> 00:00:01,000\n[a <\u2060b>]",
        "2\n00:00:01,000 --> 00:00:02,000\n[a <\u2060b>]\nthree",
        "3\n00:00:02,000 --> 00:00:03,500\n[a <\u2060b>]",
        "4\n00:00:03,500 --> 00:00:04,000\n[a <\u2060b>]\n4",
        "5\n00:00:04,000 --> 00:00:05,000\n[7]\n4",
        "6\n00:00:05,000 --> 00:00:08,000\n[7]",
        "7\n00:00:09,000 --> 00:00:10,000\n[x]",
    ]


times = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda t: (t[0] / 10, (t[0] + t[1]) / 10))


@given(st.lists(times, min_size=1, max_size=5), st.lists(times, max_size=5))
def test_both_formats_show_the_same_texts_at_any_time(captioned, spoken):
    captions = [(*time, f"c{k}") for k, time in enumerate(captioned)]
    value = record_of_both(captions, [(*time, f"s{k}") for k, time in enumerate(spoken)])
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [value], "vtt", "srt")
        vtt, srt = cues(out / "vtt/clip.mp4.vtt"), cues(out / "srt/clip.mp4.srt")
    assert len(vtt) == len(captioned) + len(spoken)
    for time in [k / 10 + 0.05 for k in range(40)]:
        shown_by_vtt = [text for start, end, [text] in vtt if float(start[6:]) <= time < float(end[6:])]
        shown_by_srt = [texts for start, end, texts in srt if start <= time < end] or [[]]
        assert [sorted(texts) for texts in shown_by_srt] == [sorted(shown_by_vtt)]


def test_players_show_brackets_and_both_lines(tmp_path):
    out = exported(tmp_path, [record_of_both([(0, 2, "{\\an8}a"), (2, 3, "b")], [(0, 2, "three")])], "vtt")
    assert shown_by_ffmpeg(out / "vtt/clip.mp4.vtt") == ["[{\\an8}a]", "three", "[b]"]
