"""Frames as arrays, and the input size of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FrameArray = NDArray[np.uint8]
"""RGB, (H, W, 3) or (N, H, W, 3)."""

Resample = Literal["bilinear", "bicubic"]

Resize = Literal["exact", "planes", "fast"]
"""How the client scales frames: docs/decisions.md says what each costs."""


@dataclass(frozen=True)
class InputSize:
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

    def for_video(self, _width: int, _height: int) -> InputSize:
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

    def for_video(self, width: int, height: int) -> InputSize:
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
        return InputSize(min(across, longest), min(down, longest), self.resample)

    def _whole(self, rounded: Callable[[float], int], side: float) -> int:
        return max(self.factor, rounded(side / self.factor) * self.factor)


def input_size_from_json(value: Mapping[str, Any]) -> InputSize | PixelBudget:
    """What `asdict` made of either. Raises TypeError or ValueError."""
    frame = PixelBudget(**value) if "factor" in value else InputSize(**value)
    if frame.resample not in get_args(Resample):
        raise ValueError(f"resample {frame.resample!r}")
    return frame
