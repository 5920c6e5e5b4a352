"""Makes small copies of sources in a format that browsers play: WebM with VP8 and Opus.

Run as a module, this is the child that decodes and encodes; `make_preview` is the parent's side.
"""

from __future__ import annotations

import errno
import math
import resource
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.stream import AudioStream

from reelscribe._child_process import Send, messages, serve
from reelscribe._files import atomic_file
from reelscribe.contract.frames import FrameArray
from reelscribe.decode.frame_conversion import dynamic_range_of_transfer
from reelscribe.decode.packets import demux, is_usable
from reelscribe.errors import MediaError, OutputError
from reelscribe.viewer.media.unindexed_video import Media, make_scaler, open_media

LONGER_SIDE = 480
"""Largest side of the pictures, in pixels."""

FRAMES_PER_SECOND = 25
"""Most frames in a second; others are left out."""

VIDEO_BITS = 300_000
"""Bits a second for pictures, about."""

AUDIO_BITS = 48_000
"""Bits a second for audio."""

AUDIO_RATE = 48_000
"""Sample rate of the audio, in Hz; Opus has few others."""

MOST_BYTES = 2**30
"""Largest preview, in bytes; about six hours."""

FIRST_PACKETS = 1000
"""Number of packets of pictures in which the first that can be decoded is searched."""

_MILLISECOND = Fraction(1, 1000)

_SLIGHT_SECONDS = 0.015
"""How much earlier than the last samples end the next ones may begin: less than a packet of Opus lasts."""

Scale = Callable[[av.VideoFrame], FrameArray]


def make_preview(source: Path, destination: Path, *, cancelled: threading.Event | None = None) -> None:
    """Make a small WebM file of a source, in a child process. Its times are those of the source, within 0.1 seconds.

    Args:
        source: Path of a video or a recording.
        destination: Where the file goes, in a folder that exists. It appears when it is complete.
        cancelled: Set by another thread to give up, which kills the child; None if nobody does.

    Raises:
        MediaError: The source cannot be read, has neither pictures nor audio, makes no progress or is too long, or this
            was cancelled.
        OutputError: The preview cannot be written.
    """
    try:
        with atomic_file(destination) as file:
            request = {"path": str(source), "out": file.fileno()}
            for message, _ in messages(
                "reelscribe.viewer.media.preview_maker", request, files=[file.fileno()], cancelled=cancelled
            ):
                if "unwritable" in message:
                    raise OutputError(f"{destination}: a preview cannot be written: {message['unwritable']}")
    except OSError as error:
        raise OutputError(f"{destination}: a preview cannot be written: {error.strerror}") from None


def _transcode(request: dict[str, Any], send: Send) -> None:
    """Execute a request in the child."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing beyond the limit is an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    with open_media(request["path"], send) as media:
        first = _first_picture(media)
    try:
        with (
            open_media(request["path"], send) as media,
            open(request["out"], "wb") as file,
            av.open(file, "w", format="webm") as preview,
        ):
            _copy(media, preview, first, send)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise MediaError(f"too long for a preview, which would have more than {MOST_BYTES} bytes") from None
        send(unwritable=error.strerror or str(error))


def _first_picture(media: Media) -> tuple[Scale, FrameArray] | None:
    """Return what scales the pictures of a file, and its first one; None if it has no pictures."""
    container, video, _ = media
    if video is None:
        return None
    stated = dynamic_range_of_transfer(video.codec_context.color_trc)
    for packet in islice(container.demux(video), FIRST_PACKETS):
        for frame in _decoded(packet):
            scale = make_scaler(container, video, stated, frame, LONGER_SIDE, even=True)
            return scale, scale(frame)
    return None


def _copy(
    media: Media,
    preview: av.container.OutputContainer,
    first: tuple[Scale, FrameArray] | None,
    send: Send,
) -> None:
    container, video, audio = media
    copies: dict[int, _VideoCopy | _AudioCopy] = {}
    if video and first:
        video.thread_count = 1  # with more, FFmpeg and Python sometimes wait for each other
        copies[video.index] = _VideoCopy(preview, *first)
    if audio:
        copies[audio.index] = _AudioCopy(preview, audio)
    if not copies:
        raise MediaError("expected pictures or audio that can be decoded, got neither")
    last_sent = time.monotonic()
    for packet in demux(container, lambda: None):
        if copy := copies.get(packet.stream_index):
            for frame in _decoded(packet):
                preview.mux(copy.encoded(frame))
        if time.monotonic() - last_sent > 1:
            last_sent = time.monotonic()
            send()
    for index, copy in copies.items():
        for frame in _held_back(container.streams[index]):
            preview.mux(copy.encoded(frame))
        preview.mux(copy.stream.encode(None))


def _decoded(packet: Any) -> list[Any]:
    try:
        frames: list[Any] = packet.decode() if is_usable(packet) else []
    except av.FFmpegError:
        return []  # a damaged packet costs its own frames
    return frames


def _held_back(stream: Any) -> list[Any]:
    """Return the frames that a decoder gives when there are no more packets."""
    try:
        frames: list[Any] = stream.codec_context.decode(None)
    except av.FFmpegError:
        return []
    for frame in frames:
        frame.time_base = stream.time_base  # no packet has told it
    return frames


class _VideoCopy:
    """The pictures of a preview."""

    def __init__(self, preview: av.container.OutputContainer, scale: Scale, first: FrameArray) -> None:
        options = {"deadline": "realtime", "cpu-used": "8", "g": str(2 * FRAMES_PER_SECOND)}
        self.stream = preview.add_stream("libvpx", FRAMES_PER_SECOND, options)
        self.stream.height, self.stream.width = first.shape[:2]
        self.stream.pix_fmt = "yuv420p"
        self.stream.bit_rate = VIDEO_BITS
        self.stream.codec_context.time_base = _MILLISECOND
        self._scale, self._next = scale, 0

    def encoded(self, frame: av.VideoFrame) -> list[av.Packet[Any]]:
        """Return the packets for the next frame of the source; none if it is left out."""
        if frame.time is None or (at := round(1000 * frame.time)) < self._next:
            return []
        self._next = at + 1000 // FRAMES_PER_SECOND - 5  # of a source of just this rate, none is left out
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(self._scale(frame)))
        picture.pts, picture.time_base = at, _MILLISECOND
        return self.stream.encode(picture)


class _AudioCopy:
    """The audio of a preview."""

    def __init__(self, preview: av.container.OutputContainer, audio: AudioStream) -> None:
        self.stream = preview.add_stream("libopus", AUDIO_RATE)
        self.stream.layout = "mono" if audio.codec_context.channels == 1 else "stereo"
        self.stream.bit_rate = AUDIO_BITS
        self._end = -math.inf

    def encoded(self, frame: av.AudioFrame) -> list[av.Packet[Any]]:
        """Return the packets for the next samples of the source; none if they begin before the last ones end."""
        if frame.time is not None:
            if frame.time < self._end - _SLIGHT_SECONDS:  # parts of a recording overlap, which no WebM file may
                return []
            self._end = frame.time + frame.samples / frame.sample_rate
        return self.stream.encode(frame)


if __name__ == "__main__":
    serve(_transcode)
