"""Frames as arrays, the input size of a captioner, and a captioner's answer for one frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import check_types, read_confidence, read_count
from reelscribe.errors import UsageError, brief

FrameArray = NDArray[np.uint8]
"""One frame, (H, W, 3), or several, (N, H, W, 3): uint8 RGB."""

MAX_SIDE = 2**16
"""Longest side that a model may ask for, in pixels."""

Resample = Literal["bilinear", "bicubic"]
"""Interpolation with which the image processor of a model scales."""

Resize = Literal["exact", "fast"]
"""Method with which the client scales frames; `reelscribe.decode.frame_conversion` explains the methods."""


def frame_batch(frames: Any) -> FrameArray:
    """Check an array that a program gives as frames.

    Args:
        frames: One frame, (H, W, 3), or several, (N, H, W, 3), of uint8 RGB.

    Returns:
        (N, H, W, 3); a view of `frames`.

    Raises:
        UsageError: It is something else, or has no pixels.
    """
    if not isinstance(frames, np.ndarray):
        raise UsageError(f"frames: expected an array of (H, W, 3) or (N, H, W, 3) uint8 RGB, got {brief(frames)}")
    if frames.ndim not in (3, 4) or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise UsageError(
            f"frames: expected (H, W, 3) or (N, H, W, 3) uint8 RGB with at least one pixel, got {frames.shape}"
            f" {frames.dtype}; convert them before"
        )
    return frames if frames.ndim == 4 else frames[None]


@dataclass(frozen=True)
class InputSize:
    """The fixed frame size of a captioner.

    Frames are stretched to `width` x `height`. With `shortest_edge` they keep their aspect ratio instead: they are
    scaled until the shortest edge has that length and then cropped at the centre to `width` x `height`.
    """

    width: int
    """Width of the frames that are sent, in pixels."""
    height: int
    """Height of the frames that are sent, in pixels."""
    resample: Resample = "bicubic"
    """Interpolation for scaling."""
    shortest_edge: int | None = None
    """Length of the shortest edge before cropping, in pixels; None if frames are stretched."""

    def check(self) -> None:
        """Raise TypeError if a field has another type, or a number that no size has."""
        check_types(self)
        for name in ("width", "height"):
            read_count(name, getattr(self, name), 1, MAX_SIDE)
        if self.shortest_edge is not None:
            read_count("shortest_edge", self.shortest_edge, 1, MAX_SIDE)

    @property
    def nbytes(self) -> int:
        """Bytes of one frame."""
        return self.width * self.height * 3

    def for_video(self, _width: int, _height: int) -> InputSize:
        """Return this size, which is the same for every video; `PixelBudget` has this method, too."""
        return self

    def scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that a frame of `width` x `height` pixels is scaled to before it is cropped.

        Only the centre is kept of the longer edge, which is therefore limited.
        """
        if self.shortest_edge is None:
            return self.width, self.height
        # This rounds as `get_resize_output_image_size` of transformers does.
        if width <= height:
            return self.shortest_edge, min(MAX_SIDE, int(self.shortest_edge * height / width))
        return min(MAX_SIDE, int(self.shortest_edge * width / height)), self.shortest_edge

    def crop_offset(self, width: int, height: int) -> tuple[int, int]:
        """Return the left and top edge of the crop, in pixels, in a scaled frame of `width` x `height` pixels."""
        return (width - self.width) // 2, (height - self.height) // 2


@dataclass(frozen=True)
class PixelBudget:
    """The frame sizes of a captioner of dynamic resolution.

    Both sides of a frame are multiples of `factor`, and it has from `min_pixels` to `max_pixels` pixels. Within these
    limits its aspect ratio changes as little as possible.
    """

    factor: int
    """Number that both sides are multiples of, in pixels."""
    min_pixels: int
    """Smallest number of pixels of a frame."""
    max_pixels: int
    """Largest number of pixels of a frame."""
    resample: Resample = "bicubic"
    """Interpolation for scaling."""

    def check(self) -> None:
        """Raise TypeError if a field has another type, or a number that no budget has."""
        check_types(self)
        read_count("factor", self.factor, 1, MAX_SIDE)
        read_count("min_pixels", self.min_pixels, 1)
        read_count("max_pixels", self.max_pixels, max(self.min_pixels, self.factor**2))

    @property
    def nbytes(self) -> int:
        """Bytes of the largest frame."""
        return self.max_pixels * 3

    def for_video(self, width: int, height: int) -> InputSize:
        """Choose the size for one video, with the arithmetic of `smart_resize` in Qwen2-VL's image processor.

        Args:
            width: Width of the frames as players show them, in pixels.
            height: Height of the frames as players show them, in pixels.

        Returns:
            The size that all frames of the video are stretched to.
        """
        scaled_width, scaled_height = (self._multiple(round, side) for side in (width, height))
        if scaled_width * scaled_height > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels)
            scaled_width, scaled_height = (self._multiple(math.floor, side / scale) for side in (width, height))
        elif scaled_width * scaled_height < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            scaled_width, scaled_height = (self._multiple(math.ceil, side * scale) for side in (width, height))
        # A very long and narrow picture would exceed the budget, because its short side is at least `factor`.
        longest = self.max_pixels // min(scaled_width, scaled_height) // self.factor * self.factor
        return InputSize(min(scaled_width, longest), min(scaled_height, longest), self.resample)

    def _multiple(self, round_to_int: Callable[[float], int], side: float) -> int:
        return max(self.factor, round_to_int(side / self.factor) * self.factor)


def input_size_from_json(value: Mapping[str, Any]) -> InputSize | PixelBudget:
    """Make an input size from the JSON of its fields.

    Args:
        value: The parsed JSON.

    Returns:
        A PixelBudget if the JSON has its field `factor`, otherwise an InputSize.

    Raises:
        TypeError: The fields are not those of one of the classes.
        ValueError: The interpolation is unknown.
    """
    size = PixelBudget(**value) if "factor" in value else InputSize(**value)
    if size.resample not in get_args(Resample):
        raise ValueError(f"resample: expected one of {', '.join(get_args(Resample))}, got {size.resample!r}")
    return size


@dataclass(frozen=True)
class FrameCaption:
    """A captioner's answer for one frame."""

    text: str
    """The caption."""
    avg_logprob: float | None = None
    """Average natural-log probability of its tokens and of the token that ends it (at most 0); None if unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a caption from the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Returns:
            The caption.

        Raises:
            TypeError: The JSON is not the caption of a frame.
            KeyError: A field is missing.
        """
        if not isinstance(value, dict) or type(value["text"]) is not str:
            raise TypeError('a caption: expected an object with "text" and "avg_logprob"')
        return cls(value["text"], read_confidence("avg_logprob", value["avg_logprob"]))
