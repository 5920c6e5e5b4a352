"""The values that travel through the house: what a video is, what a model wants, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import ServerError
from reelscribe.identity import identity_of

FrameArray = NDArray[np.uint8]
"""RGB, (H, W, 3) or (N, H, W, 3)."""

Resample = Literal["bilinear", "bicubic"]

Resize = Literal["exact", "planes", "fast"]
"""How the client scales frames: docs/decisions.md says what each costs."""


@dataclass(frozen=True)
class FrameSize:
    """How a captioner wants its frames: `width` x `height` pixels.

    Frames are stretched to that size, or, where `shortest_edge` is given, scaled with their aspect kept until the
    shortest edge is so long, and then cut from the centre.
    """

    width: int
    height: int
    resample: Resample = "bicubic"
    shortest_edge: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one frame, however large the video is."""
        return self.width * self.height * 3

    def for_video(self, _width: int, _height: int) -> FrameSize:
        """This one, however large a video is shown."""
        return self

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Width and height that a frame is scaled to before it is cut."""
        if self.shortest_edge is None:
            return self.width, self.height
        # As transformers' get_resize_output_image_size rounds it.
        if width <= height:
            return self.shortest_edge, int(self.shortest_edge * height / width)
        return int(self.shortest_edge * width / height), self.shortest_edge

    def cut(self, width: int, height: int) -> tuple[int, int]:
        """Left and top of the part that is kept of a scaled frame."""
        return (width - self.width) // 2, (height - self.height) // 2


@dataclass(frozen=True)
class PixelBudget:
    """How a captioner of dynamic resolution wants its frames: sides that are multiples of `factor`, the aspect kept,
    and from `min_pixels` to `max_pixels` pixels.
    """

    factor: int
    min_pixels: int
    max_pixels: int
    resample: Resample = "bicubic"

    @property
    def nbytes(self) -> int:
        """Bytes of one frame at most."""
        return self.max_pixels * 3

    def for_video(self, width: int, height: int) -> FrameSize:
        """The size for frames that are shown as `width` x `height`.

        The arithmetic is `smart_resize` of Qwen2-VL's image processor.
        """
        across, down = (max(self.factor, round(side / self.factor) * self.factor) for side in (width, height))
        if across * down > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            across, down = (self._whole(math.floor, side / scale) for side in (width, height))
        elif across * down < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            across, down = (self._whole(math.ceil, side * scale) for side in (width, height))
        # A very long and narrow picture would be over budget, as its short side cannot be less than `factor`.
        longest = self.max_pixels // min(across, down) // self.factor * self.factor
        return FrameSize(min(across, longest), min(down, longest), self.resample)

    def _whole(self, rounded: Callable[[float], int], side: float) -> int:
        return max(self.factor, rounded(side / self.factor) * self.factor)


def frame_from_json(value: Mapping[str, Any]) -> FrameSize | PixelBudget:
    """What `asdict` made of either. Raises TypeError or ValueError."""
    frame = PixelBudget(**value) if "factor" in value else FrameSize(**value)
    if frame.resample not in get_args(Resample):
        raise ValueError(f"resample {frame.resample!r}")
    return frame


@dataclass(frozen=True)
class ModelDescription:
    """What a captioner says of itself: `describe` of the handler."""

    name: str
    """Hub name or directory of the weights."""
    revision: str
    """Commit of the hub, or a digest of the weights' own bytes."""
    prompt: str
    generation: Mapping[str, Any]
    """Options of `generate`, by their names in transformers."""
    frame: FrameSize | PixelBudget
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Per channel, of values from 0 to 1; the server subtracts and divides."""
    dtype: str
    """What the model computes in, by torch's name."""
    device_batch: int
    max_frames: int
    """Per request."""
    max_side: int
    """Pixels of the longer side of a frame."""
    workers: int = 1
    """That the model was given when it was loaded."""
    response_seconds: float = 120
    """That one request may compute before its worker is replaced."""
    stages: int = 1
    """Processes that the model is split over."""
    devices: tuple[str, ...] = ()
    """Where the worker that was asked computes, stage by stage: "cpu", or "cuda:2"."""

    @property
    def identity(self) -> str:
        """The same for models that would say the same of the same frames."""
        return identity_of(self.to_json())

    @classmethod
    def of_all(cls, servers: Sequence[ModelDescription]) -> ModelDescription:
        """The same model on several servers: all of their workers, and what each of them takes."""
        return replace(
            servers[0],
            workers=sum(server.workers for server in servers),
            max_frames=min(server.max_frames for server in servers),
            max_side=min(server.max_side for server in servers),
        )

    def to_json(self) -> dict[str, Any]:
        """As the handler sends it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> ModelDescription:
        """As a client reads it. Raises ServerError for anything else."""
        try:
            tuples = {name: tuple(value[name]) for name in ("mean", "std", "devices") if name in value}
            return cls(**{**value, **tuples, "frame": frame_from_json(value["frame"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(
                f"describe: expected the description of a caption handler, got {str(value)[:200]} ({error});"
                " is the model a reelscribe archive of this version?"
            ) from None


@dataclass(frozen=True)
class Source:
    """A file as it was given; without size and digest if it could not be read."""

    path: str
    bytes: int | None = None
    sha256: str = ""


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says of itself, and how many frames its packets really hold."""

    duration_seconds: float
    """That the container states, or FFmpeg's estimate."""
    width: int
    height: int
    """Pixels, as they are stored."""
    rotation: int
    """Degrees that the stored frames are turned clockwise to be shown: 0, 90, 180 or 270."""
    pixel_aspect: float
    """How many times wider than high a stored pixel is shown."""
    frames: int
    average_fps: float
    start_seconds: float
    """Presentation time of the first frame."""
    end_seconds: float
    """When the last frame has been shown."""
    video_codec: str
    audio_codec: str | None

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height in square pixels, turned as they are shown."""
        width, height = max(1, round(self.width * self.pixel_aspect)), self.height
        return (height, width) if self.rotation in (90, 270) else (width, height)


@dataclass(frozen=True)
class Span:
    """Some of a video's chosen frames, by their ordinals: from `first` to before `stop`, or to the last."""

    first: int = 0
    stop: int | None = None
    anchor: int | None = None
    """Frame index of the last captioned frame before them, with which the first of them is compared for reuse."""


@dataclass(frozen=True)
class Caption:
    """The caption of one frame."""

    frame_index: int
    """Its number in the video, from 0."""
    pts_seconds: float
    """Its presentation time."""
    text: str
    reused_from: int | None = None
    """Index of the frame that was captioned in place of this one, which is nearly equal."""


@dataclass(frozen=True)
class Failure:
    """Why a frame has no caption."""

    frame_index: int
    pts_seconds: float
    error: str


@dataclass(frozen=True)
class Segment:
    """One caption for as long as it stays the same, in seconds of presentation time."""

    start: float
    end: float
    text: str
