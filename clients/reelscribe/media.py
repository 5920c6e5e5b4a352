"""The values that travel through the house: what a video is, what a model wants, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import ServerError

FrameArray = NDArray[np.uint8]
"""RGB, (H, W, 3) or (N, H, W, 3)."""

Resample = Literal["bilinear", "bicubic"]


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
        """Bytes of one frame."""
        return self.width * self.height * 3

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
class ModelDescription:
    """What a captioner says of itself: `describe` of the handler."""

    name: str
    """Hub name or directory of the weights."""
    revision: str
    """Commit of the hub, or a digest of the weights' own bytes."""
    prompt: str
    generation: Mapping[str, Any]
    """Options of `generate`, by their names in transformers."""
    frame: FrameSize
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

    def to_json(self) -> dict[str, Any]:
        """As the handler sends it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> ModelDescription:
        """As a client reads it. Raises ServerError for anything else."""
        try:
            frame = FrameSize(**value["frame"])
            if frame.resample not in get_args(Resample):
                raise ValueError(f"resample {frame.resample!r}")
            return cls(**{**value, "frame": frame, "mean": tuple(value["mean"]), "std": tuple(value["std"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ServerError(
                f"describe: expected the description of a caption handler, got {str(value)[:200]} ({error});"
                " is the model a reelscribe archive of this version?"
            ) from None


@dataclass(frozen=True)
class Source:
    """A file as it was given; `bytes` and `sha256` are None if it could not be read."""

    path: str
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says of itself, and how many frames its packets really hold."""

    duration_seconds: float
    width: int
    height: int
    frames: int
    average_fps: float
    video_codec: str
    audio_codec: str | None


@dataclass(frozen=True)
class Caption:
    """The caption of one frame; `pts_seconds` is its presentation time."""

    frame_index: int
    pts_seconds: float
    text: str
