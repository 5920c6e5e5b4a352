"""One video file -> its description and its frames, scaled to a model's input. Runs inside decode processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

import av
from PIL import Image

from reelscribe.contract.frames import FrameArray, InputSize, PixelBudget, Resize, input_size_from_json
from reelscribe.contract.scaling import fit
from reelscribe.contract.source import VideoInfo
from reelscribe.decode.frame_reader import FrameReader, read_with_decord
from reelscribe.decode.frame_scaler import FrameScaler
from reelscribe.decode.packets import scan
from reelscribe.decode.sampling import Sampling
from reelscribe.decode.source_file import open_file

Library = Literal["av", "decord"]
"""PyAV or decord."""


@dataclass(frozen=True)
class VideoTask:
    """What to read: the frames that `sampling` chooses of the file at `path`, as `frame` has it, scaled by `resize`.

    `library` is PyAV unless a process has hung or crashed on the file: then decord tries it, where it can be trusted.
    """

    path: str
    input_size: InputSize | PixelBudget
    sampling: Sampling = field(default_factory=Sampling)
    resize: Resize = "fast"
    library: Library = "av"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "sampling": self.sampling.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> VideoTask:
        """What `to_json` made. Raises TypeError, ValueError or UsageError."""
        for name, allowed in {"resize": Resize, "library": Library}.items():
            if value[name] not in get_args(allowed):
                raise ValueError(f"{name} {value[name]!r}")
        input_size, sampling = input_size_from_json(value["input_size"]), Sampling.from_json(value["sampling"])
        return cls(**{**value, "input_size": input_size, "sampling": sampling})


class ChosenFrame(NamedTuple):
    """One of the chosen frames."""

    ordinal: int
    """Its position among the chosen ones."""
    frame_index: int
    """Its position among all frames."""
    pts_seconds: float
    """Its presentation time."""
    image: FrameArray | None
    """(height, width, 3) uint8 RGB, or None: it cannot be decoded."""


class Video:
    """An open video file; use it as a context manager.

    Calls `heartbeat` whenever it gets on. Raises MediaError for what is no video: missing, empty, of another kind.
    """

    info: VideoInfo
    chosen: Sequence[int]
    """Indices of the chosen frames, ascending."""
    input_size: InputSize
    end_seconds: float
    """When what is chosen has been shown."""
    cut: str | None
    """Why the file is not whole, if it is not."""

    def __init__(self, task: VideoTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        self._task, self._beat = task, heartbeat
        with ExitStack() as stack:
            self._name = stack.enter_context(open_file(task.path))
            self._packets = packets = scan(self._name, heartbeat)
            self._close = stack.pop_all().close
        self.info, self.cut = packets.info, packets.cut
        self.input_size = task.input_size.for_video(*self.info.shown_size)
        self.chosen = task.sampling.choose(packets.times, packets.keys, self.info.end_seconds)
        self.end_seconds = task.sampling.span_end(packets.times, self.info.end_seconds)
        self._reader = FrameReader(self._name, packets, heartbeat)
        self._decoded_by_decord = 0

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def decoded(self) -> int:
        """Frames that were decoded so far, wanted or not."""
        return self._reader.decoded + self._decoded_by_decord

    def frames(self, ordinals: range) -> Iterator[ChosenFrame]:
        """Exactly one for each of `ordinals`, positions among the chosen frames, in order."""
        wanted = self.chosen[ordinals.start : ordinals.stop : ordinals.step]
        images = self._images(wanted)
        index, image = next(images, (self.info.frames, None))
        for ordinal, frame_index in zip(ordinals, wanted, strict=True):
            seconds = round(float(self._packets.times[frame_index]), 6)
            if index == frame_index:
                yield ChosenFrame(ordinal, frame_index, seconds, image)
                index, image = next(images, (self.info.frames, None))
            else:
                yield ChosenFrame(ordinal, frame_index, seconds, None)

    def _images(self, wanted: Sequence[int]) -> Iterator[tuple[int, FrameArray]]:
        """Of those of `wanted` that can be decoded, in order."""
        done = 0
        if self._task.library == "decord" and wanted:
            for index, image in read_with_decord(self._name, self._packets, self._beat):
                self._decoded_by_decord += 1
                if index == wanted[done]:
                    yield index, fit(Image.fromarray(image), self.input_size, self.info.shown_size)
                    done += 1
                    if done == len(wanted):
                        return
        scale = FrameScaler(self.info, self.input_size, self._task.resize)
        for index, frame in self._reader.read(wanted[done:]):
            with suppress(av.FFmpegError):  # pixels of a kind that it cannot convert
                yield index, scale(frame)
