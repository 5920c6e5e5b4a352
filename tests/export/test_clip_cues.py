"""The cues of clips: which description is shown when, also where clips overlap."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clip_records import clips_record, with_clips
from support.exporting import TEXTS, cues, exported, files, record, record_of_both, video, words


def test_cues_of_clips_have_times_from_the_first_frame(tmp_path):
    value = clips_record("a.mp4", (10, 12, "a dog\nruns"), (12, 15.5, "a cat"), media=video(10.0))
    out = exported(tmp_path, [value], "srt", "vtt", cues="clips")
    assert cues(out / "srt/a.mp4.srt") == [(0, 2, ["a", "dog", "runs"]), (2, 5.5, ["a", "cat"])]
    assert [found for _, _, found in cues(out / "vtt/a.mp4.vtt")] == [["a", "dog", "runs"], ["a", "cat"]]


def test_a_description_is_shown_until_the_next_window_begins(tmp_path):
    value = clips_record("a.mp4", (0, 10, "one"), (8, 18, "two"), (16, 20, "three"), (30, 31, "four"))
    out = exported(tmp_path, [value], "srt", cues="clips")
    assert cues(out / "srt/a.mp4.srt") == [(0, 8, ["one"]), (8, 16, ["two"]), (16, 20, ["three"]), (30, 31, ["four"])]


windows = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), min_size=1, unique_by=lambda times: times[0])


@given(windows)
def test_cues_of_overlapping_clips_never_overlap(times):
    clips = [(start / 10, (start + seconds) / 10, f"c{start}") for start, seconds in times]
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [clips_record("a.mp4", *clips)], "vtt", "srt", cues="clips")
        vtt, srt = cues(out / "vtt/a.mp4.vtt"), cues(out / "srt/a.mp4.srt")
    assert [found for _, _, found in vtt] == [found for _, _, found in srt] == [[text] for _, _, text in sorted(clips)]
    assert all(one[1] <= other[0] for found in (vtt, srt) for one, other in pairwise(found))


@given(TEXTS)
def test_any_description_is_one_cue_and_is_read_back_word_for_word(text):
    with TemporaryDirectory() as folder:
        out = exported(Path(folder), [clips_record("x", (0, 1, text), (1, 2, "last"))], "vtt", cues="clips")
        # Lines are also broken within what has no spaces, as between Chinese characters.
        read = ["".join(found) for _, _, found in cues(out / "vtt/x.vtt")]
        assert read == [*filter(None, ["".join(words(text))]), "last"]


@pytest.mark.parametrize(
    ("captions", "clips", "spoken", "shown"),
    [
        (["c"], [(0, 1, "d")], [(0, 1, "s")], "s"),
        (["c"], [(0, 1, "d")], [], "d"),
        (["c"], [], [], "c"),
        (["c"], None, [], "c"),
        ([], None, [], None),
    ],
)
def test_by_default_cues_are_what_is_said_or_else_clips_or_else_captions(tmp_path, captions, clips, spoken, shown):
    value = record_of_both([(0, 1, text) for text in captions], spoken)
    value = value if clips is None else with_clips(value, *clips)
    out = exported(tmp_path, [value], "srt", cues="auto")
    assert [found for path in files(out) for _, _, found in cues(out / path)] == ([[shown]] if shown else [])


def test_descriptions_are_shown_with_speech_and_captions_where_no_clip_is_described(tmp_path):
    described = with_clips(record_of_both([(0, 4, "caption")], [(1, 2, "three")]), (0, 3, "a dog"), (2, 4, "a cat"))
    failed = with_clips(record_of_both([(0, 4, "caption")], [(1, 2, "three")], source=record("b.mp4")["source"]))
    out = exported(tmp_path, [described, failed], "vtt", "srt", cues="both")
    assert (out / "vtt/clip.mp4.vtt").read_text().split("\n\n")[1:-1] == [
        "1\n00:00:00.000 --> 00:00:02.000 line:0\n[a dog]",
        "2\n00:00:01.000 --> 00:00:02.000\nthree",
        "3\n00:00:02.000 --> 00:00:04.000 line:0\n[a cat]",
    ]
    assert (out / "srt/clip.mp4.srt").read_text().split("\n\n")[:-1] == [
        "1\n00:00:00,000 --> 00:00:01,000\n[a dog]",
        "2\n00:00:01,000 --> 00:00:02,000\n[a dog]\nthree",
        "3\n00:00:02,000 --> 00:00:04,000\n[a cat]",
    ]
    assert [found for _, _, found in cues(out / "srt/b.mp4.srt")] == [
        ["[caption]"],
        ["[caption]", "three"],
        ["[caption]"],
    ]
