"""One video file -> its description and its frames, scaled to a model's input. Runs inside decode processes.

The packets say which frames there are and when each is shown. decord decodes where its index agrees with them; it
counts on an index that some containers do not have, and then gives wrong frames without a word, so there PyAV decodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import decord
import numpy as np
from av.stream import Disposition
from PIL import Image

from reelscribe.errors import MediaError
from reelscribe.media import FrameArray, FrameSize, VideoInfo
from reelscribe.scaling import fit

# Damage is reported as MediaError; what the codecs say about every broken packet helps nobody.
decord.logging.set_level(decord.logging.QUIET)
av.logging.set_level(av.logging.PANIC)

DECORD_FORMATS = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi"}
"""FFmpeg's names of the containers with an index that decord reads rightly."""

SAME_SECONDS = 1e-3
MISSING_SECONDS = 1.0
MISSING_SHARE = 0.02
"""A file that ends so much before it says it does, or has so many frames less, was cut. Headers are wrong by less."""


@dataclass(frozen=True)
class VideoTask:
    """What to read: frames 0, `every`, 2 * `every`, ... of the file at `path`, as `frame` has it."""

    path: str
    frame: FrameSize
    every: int = 1


class Video:
    """An open video file; use it as a context manager.

    Raises MediaError, here and while frames are read, with the reason why it cannot be read.
    """

    def __init__(self, task: VideoTask) -> None:
        self._task = task
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(task.path).open("rb"))
            except OSError as error:
                raise MediaError(f"{task.path}: {error.strerror}") from None
            if os.fstat(file.fileno()).st_size == 0:
                raise MediaError(f"{task.path}: the file is empty")
            # FFmpeg takes names apart (protocols, encodings); this one means the file and nothing else.
            self._name = f"/dev/fd/{file.fileno()}"
            self._packets = self._read_packets()
            if not self._packets.times:
                raise MediaError(f"{task.path}: expected a video stream with pictures, got {self._packets.streams}")
            self._close = stack.pop_all().close
        self.info = self._packets.info

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def frames(self) -> Iterator[tuple[int, float, FrameArray]]:
        """(frame index, presentation time in seconds, (height, width, 3) uint8 RGB) of each chosen frame.

        Raises MediaError after the last frame of a file that was cut or is damaged.
        """
        count = 0
        try:
            for index, seconds, frame in self._decord_frames() or self._av_frames():
                count = index + 1
                if index % self._task.every == 0:
                    yield index, round(seconds, 6), fit(Image.fromarray(frame()), self._task.frame)
        except (decord.DECORDError, av.FFmpegError):
            raise MediaError(
                f"{self._task.path}: damaged: frame {count} of {self.info.frames} cannot be decoded"
            ) from None
        if self.info.frames - count > 1 + MISSING_SHARE * self.info.frames:
            raise MediaError(f"{self._task.path}: damaged: {count} of {self.info.frames} frames could be decoded")
        if self._packets.missing_seconds > MISSING_SECONDS:
            raise MediaError(
                f"{self._task.path}: cut short: it ends {self._packets.missing_seconds:.1f} s before it says it does"
            )
        if self._packets.missing_frames > 1 + MISSING_SHARE * self.info.frames:
            raise MediaError(
                f"{self._task.path}: cut short: {self._packets.missing_frames} of the frames it announces are missing"
            )

    def _read_packets(self) -> _Packets:
        try:
            with av.open(self._name) as container:
                return _Packets(container)
        except (av.FFmpegError, UnicodeError) as error:
            raise MediaError(f"{self._task.path}: not a media file that can be read: {_first_line(error)}") from None

    def _decord_frames(self) -> Iterator[tuple[int, float, Any]] | None:
        """Frames by decord, or None if it would give others than the packets say."""
        if self._packets.format not in DECORD_FORMATS:
            return None
        times = np.array(self._packets.times)
        try:
            # One thread: processes are what runs in parallel here.
            reader = decord.VideoReader(self._name, num_threads=1)
            starts = reader.get_frame_timestamp(range(len(reader)))[:, 0].astype(np.float64)
        except decord.DECORDError:
            return None
        if len(starts) != len(times) or np.abs((starts - starts[0]) - (times - times[0])).max() > SAME_SECONDS:
            return None
        return self._next_frames(reader)

    def _next_frames(self, reader: Any) -> Iterator[tuple[int, float, Any]]:
        # Not skip_frames, which lands on other frames in files without an index.
        for index, seconds in enumerate(self._packets.times):
            try:
                frame = reader.next()
            except StopIteration:
                return  # fewer than there are packets: `frames` counts them
            yield index, seconds, frame.asnumpy

    def _av_frames(self) -> Iterator[tuple[int, float, Any]]:
        with av.open(self._name) as container:
            stream = container.streams[self._packets.stream_index]
            assert isinstance(stream, av.VideoStream)
            stream.codec_context.thread_count = 1
            for index, frame in enumerate(container.decode(stream)):
                seconds = frame.time if frame.time is not None else index / (self.info.average_fps or 1)
                yield index, seconds, lambda frame=frame: frame.to_ndarray(format="rgb24")


class _Packets:
    """What a pass over all packets tells, without decoding any."""

    def __init__(self, container: av.container.InputContainer) -> None:
        self.format = container.format.name
        videos = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        video = videos[0] if videos else None
        self.streams = ", ".join(stream.type for stream in container.streams) or "no streams"
        times: list[float | None] = []
        stored, end = 0, 0.0
        for packet in container.demux():
            if packet.size == 0:
                continue  # the end of a stream
            if packet.pts is not None and packet.time_base is not None:
                end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
            if packet.stream is video:
                stored += 1
                if not packet.is_discard:  # outside the part that an edit list shows
                    times.append(float(packet.pts * packet.time_base) if packet.pts is not None else None)
        if video is None:
            self.times: list[float] = []
            return
        self.stream_index = video.index
        fps = float(video.average_rate or video.guessed_rate or 0)
        known = [seconds for seconds in times if seconds is not None]
        self.times = sorted(known) if len(known) == len(times) else [k / (fps or 1) for k in range(len(times))]
        start, duration = (container.start_time or 0) / av.time_base, (container.duration or 0) / av.time_base
        self.missing_seconds = start + duration - end if end else 0.0
        self.missing_frames = max(0, video.frames - stored)
        self.info = VideoInfo(
            duration_seconds=round(duration, 6),
            width=video.width,
            height=video.height,
            frames=len(self.times),
            average_fps=round(fps, 6),
            video_codec=video.codec_context.name,
            audio_codec=container.streams.audio[0].codec_context.name if container.streams.audio else None,
        )


def _first_line(error: Exception) -> str:
    """The one line of a library's message that is for people."""
    lines = [line.strip() for line in (getattr(error, "strerror", None) or str(error)).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
