"""One video file -> its description and its frames, scaled to a model's input. Runs inside decode processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import decord
import numpy as np
from PIL import Image

from reelscribe.errors import MediaError
from reelscribe.media import FrameArray, FrameSize, VideoInfo

# Damage is reported as MediaError; what the codecs say about every broken packet helps nobody.
decord.logging.set_level(decord.logging.QUIET)
av.logging.set_level(av.logging.PANIC)

_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class VideoTask:
    """What to read: frames 0, `every`, 2 * `every`, ... of the file at `path`, as `frame` has it."""

    path: str
    frame: FrameSize
    every: int = 1


class Video:
    """An open video file. Raises MediaError, here and while it is read, with the reason why it cannot be."""

    def __init__(self, task: VideoTask) -> None:
        self._task = task
        path = Path(task.path)
        if not path.exists():
            raise MediaError(f"{path}: no such file")
        if not path.is_file():
            raise MediaError(f"{path}: expected a regular file")
        if path.stat().st_size == 0:
            raise MediaError(f"{path}: the file is empty")
        width, height, seconds, codec, audio = _streams(path)
        try:
            # One thread: processes are what runs in parallel here.
            self._reader = decord.VideoReader(str(path), num_threads=1)
            starts = self._reader.get_frame_timestamp(range(len(self._reader)))[:, 0]
        except decord.DECORDError as error:
            raise MediaError(f"{path}: the video stream cannot be opened: {_first_line(error)}") from None
        self._pts_seconds: list[float] = np.round(starts.astype(np.float64), 6).tolist()
        self.info = VideoInfo(
            duration_seconds=seconds,
            width=width,
            height=height,
            frames=len(self._reader),
            average_fps=round(float(self._reader.get_avg_fps()), 6),
            video_codec=codec,
            audio_codec=audio,
        )

    def frames(self) -> Iterator[tuple[int, float, FrameArray]]:
        """(frame index, presentation time in seconds, (height, width, 3) uint8 RGB) of each chosen frame."""
        every = self._task.every
        for index in range(0, self.info.frames, every):
            try:
                if index and every > 1:
                    self._reader.skip_frames(every - 1)
                frame = self._reader.next().asnumpy()
            except (decord.DECORDError, StopIteration) as error:
                raise MediaError(
                    f"{self._task.path}: damaged or cut short: frame {index} of {self.info.frames} cannot be decoded:"
                    f" {_first_line(error)}"
                ) from None
            yield index, self._pts_seconds[index], _fit(frame, self._task.frame)


def _streams(path: Path) -> tuple[int, int, float, str, str | None]:
    """Width, height, duration in seconds, video codec and audio codec, from the container."""
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise MediaError(f"{path}: expected a video stream, got {len(container.streams)} streams without one")
            video = container.streams.video[0]
            audio = container.streams.audio[0].codec_context.name if container.streams.audio else None
            seconds = (container.duration or 0) / av.time_base
            return video.width, video.height, round(seconds, 6), video.codec_context.name, audio
    except (av.FFmpegError, UnicodeError) as error:
        raise MediaError(f"{path}: not a media file that can be read: {_first_line(error)}") from None


def _fit(frame: FrameArray, size: FrameSize) -> FrameArray:
    """Scale and cut with PIL, as the models' own processors do: lossless against scaling on the server."""
    height, width = frame.shape[:2]
    if (width, height) == (size.width, size.height):
        return frame
    scaled = size.scaled(width, height)
    image = Image.fromarray(frame).resize(scaled, _RESAMPLING[size.resample])
    left, top = size.cut(*scaled)
    return np.asarray(image)[top : top + size.height, left : left + size.width]


def _first_line(error: Any) -> str:
    """The one line of a library's message that is for people."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
