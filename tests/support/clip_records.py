"""Records with clips and shots as runs write them, and how FFmpeg reads chapters."""

import av

from support.exporting import record


def clip(start, end, text, **changes):
    """The description of a clip as a record has it."""
    times = {"start": start, "end": end}
    answer = {"text": text, "status": "complete", "tokens": 5, "avg_logprob": -0.5, "json": None, "flags": []}
    return {**times, "frames": 8, **answer, **changes}


def with_clips(value, *clips, **changes):
    """A record with clips, too, each from (start, end, text) or as `clip` returns it."""
    described = [each if isinstance(each, dict) else clip(*each) for each in clips]
    return value | {"clips": described, "clip_failures": [], "clip_settings": "c0"} | changes


def clips_record(path, *clips, **changes):
    """A record of clips alone."""
    return with_clips(record(path, caption_settings=None), *clips, **changes)


def with_shots(value, *times, settings="c0"):
    """A record with shots, too, each from (start, end), at 10 frames a second; all but the first follow a cut."""
    shots = [
        {
            "start": start,
            "end": end,
            "start_frame": int(start * 10),
            "end_frame": int(end * 10),
            "transition": "cut" if number else None,
        }
        for number, (start, end) in enumerate(times)
    ]
    return value | {"shots": shots, "shot_settings": settings}


def ffmpeg_chapters(path):
    """(start, end, title) of each chapter of a metadata file, in seconds, as FFmpeg reads it."""
    with av.open(str(path), format="ffmetadata") as container:
        found = container.chapters()
    assert all(each["metadata"].keys() == {"title"} for each in found)
    seconds = [[float(each[key] * each["time_base"]) for key in ("start", "end")] for each in found]
    return [(*times, each["metadata"]["title"].rstrip()) for times, each in zip(seconds, found, strict=True)]
