"""Chapters: FFmpeg's metadata, as FFmpeg reads it, and lines for video sites."""

import re
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.cli.result_commands import describe_written
from support.clip_records import clips_record, ffmpeg_chapters, with_clips, with_shots
from support.exporting import TEXTS, exported, files, record, transcript_record, video


def chapters(folder, value):
    """(start, end, title) of each chapter of a record in FFmpeg's metadata, and the lines for video sites."""
    out = exported(folder, [value], "chapters") / "chapters"
    assert sorted(files(out)) == ["a.mp4.chapters.txt", "a.mp4.ffmetadata"]
    return ffmpeg_chapters(out / "a.mp4.ffmetadata"), (out / "a.mp4.chapters.txt").read_text().splitlines()


def test_each_clip_is_a_chapter_with_times_from_the_first_frame(tmp_path):
    value = clips_record("a.mp4", (5, 25, "A dog runs."), (25, 45.5, "A cat sleeps."), media=video(5.0))
    assert chapters(tmp_path, value) == (
        [(0, 20, "A dog runs."), (20, 40.5, "A cat sleeps.")],
        ["00:00 A dog runs.", "00:20 A cat sleeps."],
    )


def test_the_files_are_those_that_ffmpeg_and_video_sites_expect(tmp_path):
    out = exported(tmp_path, [clips_record("a.mp4", (0, 12.5, "a=b; #c \\d"), (12.5, 30, "e\\"))], "chapters")
    assert {name: content.decode() for name, content in files(out).items()} == {
        "chapters/a.mp4.ffmetadata": (
            ";FFMETADATA1\n"
            "[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=12500\ntitle=a\\=b\\; \\#c \\\\d\n"
            "[CHAPTER]\nTIMEBASE=1/1000\nSTART=12500\nEND=30000\ntitle=e\\\\ \n"
        ),
        "chapters/a.mp4.chapters.txt": "00:00 a=b; #c \\d\n00:12 e\\\n",
    }


SHOTS, CAPTIONS = [(0, 15), (15, 30)], ["a dog"] * 20


@pytest.mark.parametrize(
    ("value", "titles"),
    [
        (with_shots(with_clips(record("a.mp4", *CAPTIONS), (0, 30, "a clip")), *SHOTS), ["a clip"]),
        (with_shots(with_clips(record("a.mp4", *CAPTIONS), (0, 30, " \n")), *SHOTS), ["Shot 1", "Shot 2"]),
        (with_shots(with_clips(record("a.mp4", *CAPTIONS)), *SHOTS), ["Shot 1", "Shot 2"]),
        (with_shots(record("a.mp4", *CAPTIONS)), ["a dog"]),
        (record("a.mp4", *CAPTIONS), ["a dog"]),
    ],
)
def test_chapters_are_clips_or_else_shots_or_else_captions(tmp_path, value, titles):
    assert [title for _, _, title in chapters(tmp_path, value)[0]] == titles


def test_a_source_without_any_of_them_has_no_chapters(tmp_path):
    values = [clips_record("a"), with_shots(record("b")), record("c", " "), transcript_record("d", "three")]
    assert not any(name.startswith("chapters") for name in files(exported(tmp_path, values, "chapters", "csv")))


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([0, 12, 15, 40], ["00:00 c0", "00:15 c15", "00:40 c40"]),
        ([0, 3, 40], ["00:00 c3", "00:40 c40"]),
        ([0, 20, 22, 24, 26, 28, 30, 32, 34], ["00:00 c0", "00:20 c20", "00:34 c34"]),
        ([0, 2, 5], ["00:00 c0"]),
        ([4, 30], ["00:00 c4", "00:30 c30"]),
        ([600, 612], ["00:00 Beginning", "10:00 c600", "10:12 c612"]),
        ([0, 3599, 3610, 36_000], ["00:00 c0", "59:59 c3599", "1:00:10 c3610", "10:00:00 c36000"]),
        ([0, 1, 360_000], ["00:00 c1", "100:00:00 c360000"]),
    ],
)
def test_chapters_last_10_seconds_at_least_from_the_beginning_on(tmp_path, starts, expected):
    ends = [*starts[1:], starts[-1] + 11 if starts[-1] > 10 else 9]
    clips = [(start, end, f"c{start}") for start, end in zip(starts, ends, strict=True)]
    assert chapters(tmp_path, clips_record("a.mp4", *clips))[1] == expected


def test_equal_titles_in_a_row_and_gaps_make_no_chapters(tmp_path):
    value = clips_record("a.mp4", (0, 10, "a dog"), (60, 70, "a  dog"), (120, 130, "a cat"), (125, 126, "a dog"))
    assert chapters(tmp_path, value)[0] == [(0, 120, "a dog"), (120, 130, "a cat")]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("x" * 100, "x" * 100),
        ("x" * 101, "x" * 99 + "…"),
        ("word " * 40, ("word " * 20)[:-1] + "…"),
        ("a " + "鏡" * 200, "a " + "鏡" * 97 + "…"),
        ("x" * 95 + " words", "x" * 95 + "…"),
        (" a\n\tb\x85c\u2028d\0e ", "a b c d e"),
        ("half \ud800 pair", "half \\ud800 pair"),
        ("a=b;c#d\\e\\\nf [CHAPTER]", "a=b;c#d\\e\\ f [CHAPTER]"),
        ("=;#\\", "=;#\\"),
    ],
)
def test_a_title_is_one_line_of_100_characters_at_most(tmp_path, text, title):
    found, lines = chapters(tmp_path, clips_record("a.mp4", (0, 60, text), (60, 90, "next")))
    assert [title for _, _, title in found] == [title, "next"]
    assert lines == [f"00:00 {title}", "01:00 next"]


def test_no_title_for_video_sites_has_an_angle_bracket(tmp_path):
    found, lines = chapters(tmp_path, clips_record("a.mp4", (0, 60, "a <b> --> c")))
    assert [title for _, _, title in found] == ["a <b> --> c"]
    assert lines == ["00:00 a \u2039b\u203a --\u203a c"]


clips = st.tuples(st.floats(-1e4, 1e6), st.floats(0, 1e4), TEXTS).map(lambda clip: (clip[0], sum(clip[:2]), clip[2]))


@given(st.lists(clips, max_size=8))
def test_chapters_of_any_clips_are_read_back_and_keep_the_rules(described):
    with TemporaryDirectory() as folder:
        found, lines = chapters(Path(folder), clips_record("a.mp4", *described, (1, 2, "x")))
    starts = [start for start, _, _ in found]
    assert starts[0] == 0
    assert all(later - start >= 10 for start, later in pairwise(starts))
    assert all(end == later for (_, end, _), later in zip(found, starts[1:], strict=False))
    assert found[-1][1] > starts[-1]
    assert all(0 < len(title) <= 100 for _, _, title in found)
    assert [re.fullmatch(r"(?:\d+:)?\d\d:\d\d (.*)", line)[1] for line in lines] == [
        title.translate(str.maketrans("<>", "\u2039\u203a")) for _, _, title in found
    ]


def test_the_command_counts_the_files_of_each_kind():
    written = [Path("out/chapters", f"{name}{suffix}") for name in "ab" for suffix in (".ffmetadata", ".chapters.txt")]
    assert describe_written(written, Path("out")) == "wrote 2 .ffmetadata files and 2 .txt files below out/chapters"
