"""A record: one line of annotations.jsonl."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from memory import peak_memory
from reelscribe.media import Caption, Failure, Segment, Source, VideoInfo
from reelscribe.records import Model, Record

FRAMES = [
    Caption(0, 0.0, "a star"),
    Caption(1, 0.1, "a star", reused_from=0),
    Caption(2, 0.2, "a moon"),
    Failure(3, 0.3, "it cannot be decoded"),
    Caption(4, 0.4, "a moon"),
]

RECORD = Record(
    Source("vidéo.mp4", 10, "00ff"),
    Model("some/model", "abc"),
    {"sampling": {"every": 2}},
    media=VideoInfo(
        duration_seconds=2.0,
        width=640,
        height=360,
        rotation=0,
        pixel_aspect=1.0,
        frames=5,
        average_fps=10.0,
        start_seconds=0.0,
        end_seconds=0.5,
        video_codec="h264",
        audio_codec=None,
    ),
    end_seconds=0.5,
    frames=lambda: FRAMES,
)

FAILED = Record(Source("x.mp4"), Model("m", "r"), {}, error=("MediaError", "the file is empty"))


def line(record: Record) -> str:
    return "".join(record.pieces())


def with_frames(*frames: Caption | Failure, end_seconds: float = 9.0) -> Record:
    return replace(RECORD, frames=lambda: frames, end_seconds=end_seconds)


@pytest.mark.parametrize("record", [RECORD, FAILED, with_frames(), with_frames(Caption(0, 0.0, 'a "quote"\n'))])
def test_a_record_is_one_line_of_json_as_json_dumps_would_write_it(record):
    text = line(record)
    assert "\n" not in text
    assert text == json.dumps(json.loads(text), ensure_ascii=False)


def test_the_fields_are_those_of_the_source_its_video_and_its_frames():
    value = json.loads(line(RECORD))
    assert value["source"] == {"path": "vidéo.mp4", "bytes": 10, "sha256": "00ff"}
    assert value["status"] == "ok"
    assert (value["media"]["frames"], value["media"]["video_codec"]) == (5, "h264")
    assert value["captions"][:2] == [
        {"frame_index": 0, "pts_seconds": 0.0, "text": "a star"},
        {"frame_index": 1, "pts_seconds": 0.1, "text": "a star", "reused_from": 0},
    ]
    assert value["segments"][0] == {"start": 0.0, "end": 0.2, "text": "a star"}
    assert value["failures"] == [{"frame_index": 3, "pts_seconds": 0.3, "error": "it cannot be decoded"}]
    assert value["settings"] == {"sampling": {"every": 2}}
    assert "error" not in value


def test_a_failed_record_says_why():
    value = json.loads(line(FAILED))
    assert value["status"] == "error"
    assert value["error"] == {"type": "MediaError", "message": "the file is empty"}
    assert value["source"] == {"path": "x.mp4", "bytes": None, "sha256": None}
    assert (value["media"], value["captions"], value["segments"], value["failures"]) == (None, [], [], [])


def test_equal_captions_in_a_row_are_one_segment_up_to_the_next_other_frame():
    assert list(RECORD.segments()) == [
        Segment(0.0, 0.2, "a star"),
        Segment(0.2, 0.3, "a moon"),
        Segment(0.4, 0.5, "a moon"),
    ]


def test_the_last_segment_lasts_until_the_video_does():
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=7.5).segments()) == [Segment(2.0, 7.5, "a star")]
    # Also where the header claims that it was over before.
    assert list(with_frames(Caption(0, 2.0, "a star"), end_seconds=0.0).segments()) == [Segment(2.0, 2.0, "a star")]


def test_frames_without_a_caption_or_with_an_empty_one_are_in_no_segment():
    frames = [Failure(0, 0.0, "x"), Caption(1, 1.0, ""), Caption(2, 2.0, "a star"), Caption(3, 3.0, "")]
    assert list(with_frames(*frames).segments()) == [Segment(2.0, 3.0, "a star")]
    assert list(with_frames(*frames[:2]).segments()) == []


def test_a_record_of_very_many_captions_is_never_in_memory_as_a_whole():
    captions = range(100_000)
    record = replace(RECORD, frames=lambda: (Caption(k, k / 10, f"caption {k}") for k in captions))
    with peak_memory() as peak:
        written = sum(map(len, record.pieces()))
    assert written > 10_000_000
    assert peak() < 100_000


def field_names(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(field_names(item, prefix + "[].") for item in value))
    if not isinstance(value, dict) or prefix == "settings.":
        return set()
    return {prefix + key for key in value}.union(*(field_names(v, f"{prefix}{k}.") for k, v in value.items()))


def test_every_field_is_documented():
    names = field_names(json.loads(line(replace(RECORD, error=FAILED.error))))
    written = {name.replace(".[]", "[]") for name in names}
    text = (Path(__file__).parents[1] / "docs/records.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.M)
    documented = {name for row in rows for name in re.findall(r"`([\w.\[\]]+)`", row)}
    assert written == {name for name in documented if not name.startswith("settings.")}
