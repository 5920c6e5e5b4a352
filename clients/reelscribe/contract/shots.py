"""Windows of frames for a shot model, and its answer: how likely each frame ends a shot.

A shot model looks at windows of successive frames. At both ends of a window, it does not know what comes before or
after, so successive windows overlap, and only the middle of each counts. Before the first frame of a video, the first
one is repeated, and after the last frame the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.fields import check_types, read_confidence, read_count, read_list

WindowArray = NDArray[np.uint8]
"""Windows of successive frames, (N, T, height, width, 3) uint8 RGB."""

MAX_WINDOW_FRAMES = 10_000
"""Largest number of frames of a window that a model may ask for."""

WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt")
"""Suffixes of files of weights."""


def weights_in(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, in order; none if there is no such folder. A shot model has one."""
    return sorted(path for suffix in WEIGHTS_SUFFIXES for path in folder.glob(f"*{suffix}"))


@dataclass(frozen=True)
class Windowing:
    """The windows that a shot model takes."""

    width: int
    """Width of frames, which are stretched to it, in pixels."""
    height: int
    """Height of frames, in pixels."""
    frames: int
    """Number of frames of a window."""
    context: int
    """Number of frames at either end of a window whose answers do not count; less than half of `frames`."""

    @property
    def step(self) -> int:
        """Number of frames in the middle of a window whose answers count, by which successive windows are apart."""
        return self.frames - 2 * self.context

    @property
    def nbytes(self) -> int:
        """Bytes of one window."""
        return self.frames * self.height * self.width * 3

    def indices(self, first: int, count: int) -> NDArray[np.intp]:
        """Return the indices of the frames of the window whose middle begins with a frame of a video.

        Args:
            first: Index of that frame.
            count: Number of frames of the video, at least 1.

        Returns:
            (frames,) integers, ascending.
        """
        return np.arange(first - self.context, first - self.context + self.frames).clip(0, count - 1)

    def check(self) -> None:
        """Raise TypeError if a field has another type, or a number with which nothing can work."""
        check_types(self)
        for name in ("width", "height"):
            read_count(name, getattr(self, name), 1, 2**16)
        read_count("frames", self.frames, 1, MAX_WINDOW_FRAMES)
        read_count("context", self.context, 0, (self.frames - 1) // 2)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make it from the JSON that a handler sent. Raises TypeError for an unknown or missing field."""
        return cls(**value)


@dataclass(frozen=True)
class WindowAnswer:
    """A shot model's answer for one window of T frames."""

    cut: tuple[float, ...]
    """For each frame, the probability (0 to 1) that a shot ends with it. It is high for about one frame of each cut,
    dissolve or fade."""
    transition: tuple[float, ...]
    """For each frame, the probability (0 to 1) that it is part of a cut, dissolve or fade. It is high for all of its
    frames."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, frames: int) -> Self:
        """Make an answer from the JSON that a handler sent.

        Args:
            value: The parsed JSON.
            frames: Number of frames of the window.

        Returns:
            The answer.

        Raises:
            TypeError: The JSON is not the answer for a window of so many frames.
            KeyError: A field is missing.
        """
        if not isinstance(value, dict):
            raise TypeError('a window: expected an object with "cut" and "transition"')
        return cls(*(_probabilities(name, value[name], frames) for name in ("cut", "transition")))


def _probabilities(name: str, value: Any, frames: int) -> tuple[float, ...]:
    given = [read_confidence(name, each) for each in read_list(name, value)]
    known = tuple(each for each in given if each is not None)
    if len(known) != frames or len(given) != frames:
        raise TypeError(f"{name}: expected {frames} probabilities, got {len(known)}")
    return known
