"""Records as runs write them, exports of them, and how other programs read the exports."""

import csv
import html
import json
import re

import av
import srt
import webvtt
from hypothesis import strategies as st

from reelscribe.export.formats import export

WORD_JOINER = "\u2060"

MARKUP = [
    *("-->", "<b>", "</i>", "<unk> x", "a < b > c", "<00:00:01.000>", "&", "&amp;", "&lt;b&gt;", "AT&T", "a\\Nb"),
    *("{\\an8}x", "{\\p1}x", '{"label": 1}', "{y:i}x", "NOTE x", "STYLE", "WEBVTT", "7", "\\", "\ufeffx", "x\0y"),
    "00:00:09,000 --> 00:00:10,000",
    "a\n\n7\n00:00:09,000 --> 00:00:10,000\nb",
    "a\r\rb",
    "a\u2028b",
    "👩\u200d🚀",
]
"""Texts that look like the syntax of a subtitle format."""

TEXTS = st.text() | st.lists(st.sampled_from([*MARKUP, "\n", "\r\n", "\n\n", " ", "a"]), max_size=6).map("".join)


def record(path="clip.mp4", *captions, start=0.0, **changes):
    """A record of captions; each caption is shown for a second, from `start` on."""
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
    """A file of records, as a run writes it: bytes that are not UTF-8 are escaped, \\udc80 to \\udcff."""
    path = folder / "annotations.jsonl"
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in records)
    path.write_text(lines, encoding="utf-8", errors="backslashreplace")
    return path


def transcript_record(path="clip.mp4", *texts, start=0.0, **changes):
    """A record of a transcript; each text is spoken for a second, from `start` on."""
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
    """Export records; returns the folder of the export, after a check that nothing else was written."""
    before = set(folder.rglob("*"))
    written = export(annotations(folder, records), folder / "out", formats, cues)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(set(files) - before - {folder / "annotations.jsonl"})
    return folder / "out"


def record_of_both(captions, spoken, **changes):
    """A record with captions and a transcript, each from (start, end, text)."""
    segments = [dict(zip(("start", "end", "text"), caption, strict=True)) for caption in captions]
    return record(segments=segments) | transcript_record(transcript=[utterance(*times) for times in spoken]) | changes


def utterance(start, end, text, words=None):
    """An utterance as a record has it."""
    value = {"start": start, "end": end, "text": text, "language": None, "no_speech_prob": None}
    return value if words is None else value | {"words": words}


def evenly_spoken(words, seconds=0.5):
    """Words as a record has them; each is spoken for `seconds`, right after the one before."""
    return [{"start": k * seconds, "end": (k + 1) * seconds, "text": word} for k, word in enumerate(words)]


def files(out):
    """The content of each file below a folder."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def words(text):
    """The words of a text, without invisible characters."""
    return [word for word in re.split(r"[\s\0-\x1f\x7f-\x9f]+", text.replace(WORD_JOINER, "")) if word]


def cues(path):
    """(start, end, words) of each cue, as the reference libraries read it."""
    if path.suffix == ".vtt":
        found = webvtt.read(str(path), strict=True).captions
        return [(c.start, c.end, words(html.unescape(c.raw_text))) for c in found]
    found = srt.parse(path.read_bytes().decode())
    plain = str.maketrans("\uff5b\uff5d", "{}")
    return [(c.start.total_seconds(), c.end.total_seconds(), words(c.content.translate(plain))) for c in found]


def shown_by_ffmpeg(path):
    """The text of each cue as FFmpeg shows it; fails if FFmpeg finds a style or a line break in it."""
    shown = []
    with av.open(str(path)) as container:
        for packet in container.demux(container.streams.subtitles[0]):
            for subtitle in packet.decode() if packet.size else []:
                text = subtitle.ass.decode().split(",", 8)[8]
                assert not re.search(r"\\[Nnh]|{", text.replace("\\{{}", ""))
                shown.append(text.replace("\\{{}", "{").replace(WORD_JOINER, ""))
    return shown


def rows(path):
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))
