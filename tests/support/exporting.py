"""Records as runs write them, what is exported of them, and how other programs read that."""

import csv
import html
import json
import re

import av
import srt
import webvtt

from reelscribe.export.formats import export

WORD_JOINER = "\u2060"


def record(path="clip.mp4", *captions, start=0.0, **changes):
    """Captions are shown for a second each, from `start` on."""
    rows = [{"frame_index": k, "pts_seconds": start + k, "text": text} for k, text in enumerate(captions)]
    segments = [{"start": row["pts_seconds"], "end": row["pts_seconds"] + 1, "text": row["text"]} for row in rows]
    return {
        "source": {"path": path, "bytes": 5, "sha256": "00ff"},
        "status": "ok",
        "media": {"start_seconds": start, "end_seconds": start + len(rows)},
        "captions": rows,
        "segments": segments,
        "failures": [],
        "model": {"name": "some/model", "revision": "abc"},
        "settings": {},
    } | changes


def annotations(folder, records):
    """As reelscribe writes them: bytes of names that are not UTF-8 as \\udc80 to \\udcff."""
    path = folder / "annotations.jsonl"
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in records)
    path.write_text(lines, encoding="utf-8", errors="backslashreplace")
    return path


def transcript_record(path="clip.mp4", *texts, start=0.0, **changes):
    """Each text is spoken for a second, from `start` on."""
    times = [{"start": start + k, "end": start + k + 1, "text": text} for k, text in enumerate(texts)]
    return {
        "source": {"path": path, "bytes": 5, "sha256": "00ff"},
        "status": "ok",
        "audio": {"codec": "aac", "sample_rate": 48000, "channels": 2, "media_start_seconds": start},
        "transcript": [{**time, "language": "en", "no_speech_prob": 0.25} for time in times],
        "silences": [],
        "transcript_failures": [],
        "speech_model": {"name": "some/whisper", "revision": "def"},
        "speech_settings": {},
    } | changes


def exported(folder, records, *formats, cues="both"):
    """The folder of the exports; nothing else was written."""
    before = set(folder.rglob("*"))
    written = export(annotations(folder, records), folder / "out", formats, cues)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(set(files) - before - {folder / "annotations.jsonl"})
    return folder / "out"


def words(text):
    return [word for word in re.split(r"[\s\0-\x1f\x7f-\x9f]+", text.replace(WORD_JOINER, "")) if word]


def cues(path):
    """(start, end, words) of each cue, by the reference libraries."""
    if path.suffix == ".vtt":
        found = webvtt.read(str(path), strict=True).captions
        return [(c.start, c.end, words(html.unescape(c.raw_text))) for c in found]
    found = srt.parse(path.read_bytes().decode())
    plain = str.maketrans("\uff5b\uff5d", "{}")
    return [(c.start.total_seconds(), c.end.total_seconds(), words(c.content.translate(plain))) for c in found]


def shown_by_ffmpeg(path):
    """What a player shows of each cue; what it takes for a style or a line break fails the test."""
    shown = []
    with av.open(str(path)) as container:
        for packet in container.demux(container.streams.subtitles[0]):
            for subtitle in packet.decode() if packet.size else []:
                text = subtitle.ass.decode().split(",", 8)[8]
                assert not re.search(r"\\[Nnh]|{", text.replace("\\{{}", ""))
                shown.append(text.replace("\\{{}", "{").replace(WORD_JOINER, ""))
    return shown


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))
