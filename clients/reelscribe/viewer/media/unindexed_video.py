"""Reads a file for pictures from any time of it, without an index of all of its packets, which a run makes.

Only if it has several video streams, the index is made to choose the one that a run reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import av
from av.audio.stream import AudioStream
from av.video.stream import VideoStream

from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import DynamicRange
from reelscribe.decode.container import (
    choose_streams,
    ffmpeg_reason,
    may_state_end_time,
    open_container,
    open_for_ffmpeg,
    stated_seconds,
    streams_of,
)
from reelscribe.decode.frame_conversion import FrameScaler, cropped, read_stated
from reelscribe.decode.packet_index import index_packets
from reelscribe.errors import MediaError, NoPictures
from reelscribe.thumbnails.pictures import thumbnail_size


class Media(NamedTuple):
    """An open media file, and of it what a run reads; None where there is nothing that can be decoded."""

    container: av.container.InputContainer
    video: VideoStream | None
    audio: AudioStream | None


@contextmanager
def open_media(path: str, heartbeat: Callable[[], None]) -> Iterator[Media]:
    """Open a media file; every error of FFmpeg in the block becomes a MediaError.

    Args:
        path: Path of the file.
        heartbeat: Called regularly while the file is read before the block begins.

    Raises:
        MediaError: The file cannot be read, or is no media file.
    """
    if not Path(path).is_file():  # opening a pipe would wait for its other end
        raise MediaError("expected a regular file")
    with open_for_ffmpeg(path) as file:
        try:
            with ExitStack() as stack:
                container = stack.enter_context(open_container(file.name))
                video, audio = choose_streams(container)
                if video and video.codec_context and not video.frames and len(streams_of("video", container)) > 1:
                    # Only its packets tell which stream a run reads, and whether that goes on in another one.
                    index = index_packets(file.name, heartbeat)
                    container = stack.enter_context(open_container(file.name, **index.options))
                    others = {stream.index for stream in streams_of("video", container)} - {index.stream_index}
                    video, audio = choose_streams(container, others)
                has_pictures, has_sound = (bool(stream and stream.codec_context) for stream in (video, audio))
                yield Media(container, video if has_pictures else None, audio if has_sound else None)
        except (av.FFmpegError, UnicodeError) as error:
            raise MediaError(f"not a media file that can be read: {ffmpeg_reason(error)}") from None


def require_video(media: Media) -> VideoStream:
    """Return the video stream that runs read.

    Args:
        media: The open file.

    Raises:
        NoPictures: There is none that can be decoded.
    """
    if media.video is None:
        raise NoPictures("expected a video stream with pictures")
    media.video.thread_count = 1  # with more, FFmpeg and Python sometimes wait for each other
    return media.video


def start_and_length(container: av.container.InputContainer) -> tuple[float, float]:
    """Return when a file begins and how long it is after that, in seconds of presentation time, as far as it states.

    Args:
        container: The open file.
    """
    start, duration = (container.start_time or 0) / av.time_base, stated_seconds(container)
    # FFmpeg computes the length of Ogg from its pages.
    states_end = may_state_end_time(container) and container.format.name != "ogg" and duration > start
    return start, duration - start if states_end else duration


def make_scaler(
    container: av.container.InputContainer,
    video: VideoStream,
    stated: DynamicRange,
    first: av.VideoFrame,
    longer_side: int,
    *,
    even: bool = False,
) -> Callable[[av.VideoFrame], FrameArray]:
    """Return what scales frames of a video to pictures as players show them.

    Args:
        container: The open file.
        video: The stream.
        stated: The dynamic range that it stated before anything was decoded, as a decoder may forget it.
        first: Its first frame that can be decoded, whose shape pictures get, and which alone tells how all are turned.
        longer_side: Largest side of the pictures, in pixels.
        even: Whether both sides must be even, as encoders want them.
    """
    rules = read_stated(container, video, stated, first)
    first = cropped(first, rules.margins)
    shape = rules.shown_size(first)
    size = thumbnail_size(shape, longer_side)
    if even:
        size = type(size)(max(2, size.width // 2 * 2), max(2, size.height // 2 * 2), size.resample)
    scale = FrameScaler(rules, size, "fast", shape)
    return lambda frame: scale(cropped(frame, rules.margins))
