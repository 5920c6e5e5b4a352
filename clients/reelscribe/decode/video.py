"""Read one video file: a description of it, and the chosen frames, scaled to a model's input size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, get_args

import av
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, PixelBudget, Resize, input_size_from_json
from reelscribe.contract.scaling import fit
from reelscribe.contract.source import Shot, VideoInfo
from reelscribe.decode.frame_reader import FrameReader, read_with_decord
from reelscribe.decode.frame_scaler import FrameScaler
from reelscribe.decode.packets import index_packets
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.shots import ShotDetection, find_shots
from reelscribe.decode.source_file import open_for_ffmpeg

Library = Literal["av", "decord"]
"""Library that decodes video: PyAV ("av") or decord."""


@dataclass(frozen=True)
class VideoTask:
    """Which frames to read, and how."""

    path: str
    """Path of the video file."""
    input_size: InputSize | PixelBudget
    """Input size of the model."""
    sampling: Sampling | None = field(default_factory=partial(Sampling, every=1))
    """Which frames are chosen; by default every frame, None for no frames."""
    resize: Resize = "fast"
    """How frames are scaled."""
    library: Library = "av"
    """Library to decode with. "decord" is for files on which a decode process crashed or hung with PyAV; PyAV still
    decodes the frames and files that decord does not decode correctly."""
    detection: ShotDetection | None = None
    """How to find the shots, from which `sampling` may choose; None if nobody asks for them."""
    known_shots: Sequence[Shot] | None = None
    """The shots, if they have been found before."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            **vars(self),
            "input_size": vars(self.input_size),
            "sampling": self.sampling and self.sampling.to_json(),
            "detection": self.detection and self.detection.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The task.

        Raises:
            TypeError: A field is unknown or missing. KeyError says the same.
            ValueError: `resize` or `library` is unknown.
            UsageError: A value of the sampling is out of its range.
        """
        for name, allowed in {"resize": Resize, "library": Library}.items():
            if value[name] not in get_args(allowed):
                raise ValueError(f"{name}: expected one of {', '.join(get_args(allowed))}, got {value[name]!r}")
        input_size, sampling = input_size_from_json(value["input_size"]), value["sampling"]
        detection, shots = value["detection"], value["known_shots"]
        return cls(
            **{
                **value,
                "input_size": input_size,
                "sampling": sampling and Sampling.from_json(sampling),
                "detection": detection and ShotDetection.from_json(detection),
                "known_shots": None if shots is None else [Shot(*shot) for shot in shots],
            }
        )


class ChosenFrame(NamedTuple):
    """One of the chosen frames of a video."""

    ordinal: int
    """Number of the frame among the chosen frames, from 0."""
    frame_index: int
    """Number of the frame among all frames of the video, from 0."""
    pts_seconds: float
    """Presentation time in seconds."""
    image: FrameArray | None
    """(height, width, 3) uint8 RGB, or None if the frame cannot be decoded."""


class Video:
    """An open video file, as a context manager that closes the file.

    Args:
        task: Which frames to read, and how.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The file is missing, empty, or not a video.
    """

    info: VideoInfo
    """Description of the video stream."""
    chosen: Sequence[int]
    """Indices of the chosen frames, ascending."""
    input_size: InputSize
    """Size to which frames are scaled."""
    end_seconds: float
    """Presentation time at which the part of the video ends from which frames are chosen, in seconds."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""
    shots: Sequence[Shot] | None
    """The shots; None if nobody asked for them."""

    def __init__(self, task: VideoTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        self._task, self._heartbeat = task, heartbeat
        with ExitStack() as stack:
            self._name = stack.enter_context(open_for_ffmpeg(task.path))
            self._packets = packets = index_packets(self._name, heartbeat)
            self._close = stack.pop_all().close
        self.info, self.why_incomplete = packets.info, packets.why_incomplete
        self.input_size = task.input_size.for_video(*self.info.shown_size)
        self._reader = FrameReader(self._name, packets, heartbeat)
        self._decoded_by_decord = 0
        self.shots = task.known_shots
        if task.detection and self.shots is None:
            frames = self._pictures(range(len(packets.times)))
            self.shots = find_shots(frames, packets.times, self.info.end_seconds, task.detection)
        self.chosen, self.end_seconds = range(0), self.info.end_seconds
        if task.sampling:
            shots, end = self.shots or (), self.info.end_seconds
            self.chosen = task.sampling.choose(packets.times, packets.keyframes, end, shots)
            self.end_seconds = task.sampling.span_end(packets.times, end)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def decoded(self) -> int:
        """Number of frames that have been decoded, chosen or not."""
        return self._reader.decoded + self._decoded_by_decord

    def frames(self, ordinals: range) -> Iterator[ChosenFrame]:
        """Read chosen frames.

        Args:
            ordinals: Ordinals of the frames among the chosen frames, ascending.

        Yields:
            The frame of each ordinal, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        wanted = self.chosen[ordinals.start : ordinals.stop : ordinals.step]
        images = self._images(wanted)
        no_more = (self.info.frames, None)  # the index of no frame
        decoded_index, image = next(images, no_more)
        for ordinal, frame_index in zip(ordinals, wanted, strict=True):
            seconds = round(float(self._packets.times[frame_index]), 6)
            if decoded_index == frame_index:
                yield ChosenFrame(ordinal, frame_index, seconds, image)
                decoded_index, image = next(images, no_more)
            else:
                yield ChosenFrame(ordinal, frame_index, seconds, None)

    def _images(self, wanted: Sequence[int]) -> Iterator[tuple[int, FrameArray]]:
        """Yield (index, image) for each wanted frame that can be decoded, in order."""
        scale = FrameScaler(self.info, self.input_size, self._task.resize)
        for index, frame in self._pictures(wanted):
            if isinstance(frame, av.VideoFrame):
                with suppress(
                    av.FFmpegError
                ):  # it cannot convert some pixel formats; their frames count as undecodable
                    yield index, scale(frame)
            else:
                yield index, fit(Image.fromarray(frame), self.input_size, self.info.shown_size)

    def _pictures(self, wanted: Sequence[int]) -> Iterator[tuple[int, av.VideoFrame | FrameArray]]:
        """Yield (index, frame) for each wanted frame that can be decoded, in order; decord returns arrays."""
        done = 0
        if self._task.library == "decord" and wanted:
            for index, frame in read_with_decord(self._name, self._packets, self._heartbeat):
                self._decoded_by_decord += 1
                if index == wanted[done]:
                    yield index, frame
                    done += 1
                    if done == len(wanted):
                        return
        yield from self._reader.read(wanted[done:])
