"""Makes thumbnails of a source when somebody wants to see them, without a run.

Run as a module, this is the child that decodes; `make_thumbnails` is the parent's side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import av

from reelscribe._child_process import Send, messages, serve
from reelscribe.decode.frame_conversion import dynamic_range_of_transfer
from reelscribe.thumbnails.pictures import LONGER_SIDE, USUAL_COUNT, even_times, to_webp
from reelscribe.viewer.media.unindexed_video import make_scaler, open_media, require_video, start_and_length

MOST_SECONDS = 60.0
"""Longest time in which all thumbnails of a source are made, in seconds."""

MOST_FRAMES = 300
"""Most frames that are decoded for a thumbnail after the keyframe before it. Where keyframes are farther apart, the
thumbnail is one of an earlier time, which is said."""

TOLERANCE = 0.0005
"""Half of a millisecond, in which the times of thumbnails are counted."""


def make_thumbnails(
    source: Path, times: Sequence[float] | None = None, *, cancelled: threading.Event | None = None
) -> Iterator[tuple[float, bytes]]:
    """Make thumbnails of a source. A child process decodes it, which is killed when the iterator is closed.

    Args:
        source: Path of the file.
        times: Presentation times in seconds; None for 12, evenly over the duration.
        cancelled: Set by another thread to give up; None if nobody does.

    Yields:
        (presentation time in seconds, WebP file) of each picture that can be decoded, in the order of time. The time is
        that of the picture, which is the one that is shown at the wanted time or, where keyframes are far apart, an
        earlier one.

    Raises:
        MediaError: The source cannot be read, has no pictures, or took too long, or this was cancelled.
    """
    request = {"path": str(source), "times": None if times is None else sorted(times)}
    for message, webp in messages(
        "reelscribe.viewer.media.thumbnail_maker", request, cancelled=cancelled, seconds=MOST_SECONDS
    ):
        if webp:
            yield message["seconds"], webp


def _make(request: dict[str, Any], send: Send) -> None:
    """Execute a request in the child."""
    with open_media(request["path"], send) as media:
        container, video = media.container, require_video(media)
        stated = dynamic_range_of_transfer(video.codec_context.color_trc)
        times = request["times"]
        if times is None:
            start, length = start_and_length(container)
            times = even_times(length, USUAL_COUNT, start)
        scale, sent, first = None, set[float](), _frame_at(container, video, None)
        for time in times:
            frame = _frame_at(container, video, time)
            if frame is None:
                continue
            seconds = round(max(0.0, frame.time or 0.0), 3)
            if seconds not in sent:
                sent.add(seconds)
                scale = scale or make_scaler(container, video, stated, first or frame, LONGER_SIDE)
                send(to_webp(scale(frame)), seconds=seconds)


def _frame_at(
    container: av.container.InputContainer, video: av.VideoStream, seconds: float | None
) -> av.VideoFrame | None:
    """Return the frame that is shown at a time, as far as few enough frames are decoded for it; the first for None."""
    shown = None
    try:
        if seconds is None:
            return next(container.decode(video), None)
        container.seek(max(0, round(seconds / (video.time_base or 1))), stream=video)
        for frame in islice(container.decode(video), MOST_FRAMES):
            if frame.time is not None and frame.time > seconds + TOLERANCE and shown is not None:
                break
            shown = frame
    except av.FFmpegError:  # damage; what was decoded before it is shown
        pass
    return shown


if __name__ == "__main__":
    serve(_make)
