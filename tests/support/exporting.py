"""Records as runs write them, exports of them, and how other programs read the exports."""

import csv
import html
import json
import re

import av
import srt
import webvtt
from hypothesis import strategies as st

from reelscribe.export.annotations_reader import SavedModel, annotated_source
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.cues import cues_of
from reelscribe.export.folder import NAME as MEMORY
from reelscribe.export.formats import export
from reelscribe.storage.address import absolute_name

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


SETTINGS = {
    "c0": {"model": {"name": "some/model", "revision": "abc"}, "settings": {}},
    "50": {"model": {"name": "some/whisper", "revision": "def"}, "settings": {}},
}
"""What run.json says about the settings of the records below."""


def record(path="clip.mp4", *captions, start=0.0, **changes):
    """A record of captions; each caption is shown for a second, from `start` on."""
    rows = [
        {
            "frame_index": k,
            "pts_seconds": start + k,
            "text": text,
            "reused_from": None,
            "avg_logprob": -0.5,
            "flags": [],
        }
        for k, text in enumerate(captions)
    ]
    spans = [{"start": row["pts_seconds"], "end": row["pts_seconds"] + 1, "text": row["text"]} for row in rows]
    return {
        "source": {
            "path": path,
            "bytes": 5,
            "sha256": "00ff",
            "missing": False,
            "absolute_path": absolute_name(str(path)),
        },
        "status": "ok",
        "error": None,
        "media": video(start),
        "audio": None,
        "summary": None,
        "summary_settings": None,
        "shots": [],
        "shot_settings": None,
        "captions": rows,
        "caption_spans": spans,
        "caption_failures": [],
        "caption_settings": "c0",
        "clips": [],
        "clip_failures": [],
        "clip_settings": None,
        "segments": [],
        "silences": [],
        "speech_failures": [],
        "speech_settings": None,
    } | changes


def video(start=0.0):
    """A video stream as a record has it."""
    return {
        "duration_seconds": 4.0,
        "width": 64,
        "height": 48,
        "frames": 40,
        "start_seconds": start,
        "video_codec": "h264",
        "audio_codec": None,
    }


def audio(start=0.0):
    """An audio stream as a record has it."""
    return {"codec": "aac", "sample_rate": 48000, "channels": 2, "media_start_seconds": start, "seconds": 9.5}


def annotations(folder, records):
    """A file of records, as a run writes it: halves of surrogate pairs are text; with run.json beside it."""
    path = folder / "annotations.jsonl"
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in records)
    path.write_text(re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half[0]):x}", lines))
    (folder / "run.json").write_text(json.dumps({"settings": SETTINGS}))
    return path


def transcript_record(path="clip.mp4", *texts, start=0.0, **changes):
    """A record of a transcript; each text is spoken for a second, from `start` on."""
    heard = {"language": "en", "language_probability": 0.75, "avg_logprob": -0.5, "no_speech_prob": 0.25}
    speech = {
        "media": None,
        "audio": audio(start),
        "caption_settings": None,
        "segments": [utterance(start + k, start + k + 1, text) | heard for k, text in enumerate(texts)],
        "speech_settings": "50",
    }
    return record(path, **speech) | changes


def spoken_by(value, *speakers):
    """The record, with these speakers of its segments, one after the other and again from the first."""
    segments = [segment | {"speaker": speakers[k % len(speakers)]} for k, segment in enumerate(value["segments"])]
    return value | {"segments": segments}


def with_summary(value, title="A talk", text="One. Two. Three.", keywords=("big dog", "talk")):
    """A record with a summary."""
    summary = {"title": title, "text": text, "keywords": [*keywords]}
    return value | {"summary": summary, "summary_settings": "c0"}


def both(captions, transcript):
    """One record that has what a record of captions and a record of a transcript have."""
    return captions | {name: transcript[name] for name in ("audio", "segments", "speech_settings")}


def exported(folder, records, *formats, cues="both", **rules):
    """Export records; returns the folder of the export, after a check that nothing else was written."""
    before = set(folder.rglob("*"))
    written = export(annotations(folder, records), folder / "out", formats, CueRules(made_from=cues, **rules)).written
    files = [path for path in folder.rglob("*") if path.is_file()]
    own = {folder / "annotations.jsonl", folder / "run.json", folder / "out" / MEMORY}
    assert sorted(written) == sorted(set(files) - before - own)
    return folder / "out"


def cues_made(value, **rules):
    """The cues of a record."""
    models = {key: SavedModel("some/model", "abc") for key in SETTINGS}
    return cues_of(annotated_source(json.dumps(value).encode(), models), CueRules(**rules))


def line_texts(cue):
    """The lines of a cue."""
    return ["".join(piece.text + piece.space for piece in line).rstrip() for line in cue.lines]


def record_of_both(captions, spoken, **changes):
    """A record with captions and a transcript, each from (start, end, text)."""
    spans = [dict(zip(("start", "end", "text"), caption, strict=True)) for caption in captions]
    speech = transcript_record(segments=[utterance(*times) for times in spoken])
    return both(record(caption_spans=spans), speech) | changes


def utterance(start, end, text, words=None):
    """An utterance as a record has it."""
    times = {"start": start, "end": end, "text": text}
    return {**times, "language": None, "no_speech_prob": None, "words": words, "avg_logprob": None}


def evenly_spoken(words, seconds=0.5):
    """Words as a record has them; each is spoken for `seconds`, right after the one before."""
    times = [(k * seconds, (k + 1) * seconds) for k in range(len(words))]
    return [
        {"start": start, "end": end, "text": word, "probability": 0.75}
        for (start, end), word in zip(times, words, strict=True)
    ]


def said(text, start=0.0, seconds=0.3, pauses=None):
    """An utterance whose words have times, each a character where there are no spaces; `pauses` follow some words."""
    words, time = [], start
    for word in text.split() if " " in text else text:
        words.append({"start": time, "end": time + seconds, "text": word, "probability": None})
        time = round(time + seconds + (pauses or {}).get(word, 0), 3)
    return utterance(start, words[-1]["end"], text, words)


def files(out):
    """The content of each file below a folder, except for the memory of exports."""
    found = (path for path in out.rglob("*") if path.is_file() and path.name != MEMORY)
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def words(text):
    """The words of a text, without invisible characters."""
    visible = re.sub(f"[{WORD_JOINER}\u202b\u202c]", "", text)
    return [word for word in re.split(r"[\s\0-\x1f\x7f-\x9f]+", visible) if word]


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
