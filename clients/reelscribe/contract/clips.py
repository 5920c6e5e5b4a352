"""Clips: their frames, how many of them a model takes and at which size, and a model's description of a clip."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from reelscribe.contract.fields import check_types, read_confidence, read_count
from reelscribe.contract.frames import MAX_SIDE, FrameArray, InputSize, Resample

MAX_ASPECT = 200
"""Limit for the longer side of a frame divided by the other, as in `smart_resize` of the Qwen-VL models."""

MOST_CLIP_BYTES = 52_000_000
"""The most bytes of the frames of a clip: those that leave room for a long prompt in a request of 50 MiB."""

CLIP_PROMPT = "Describe this video clip in one or two sentences: who or what is seen, and what happens, in order."
"""What a model is asked about a clip by default."""

STILL_PROMPT = "Describe this picture in one or two sentences."
"""What a model is asked about a single picture by default."""

ClipStatus = Literal["complete", "truncated"]
"""How a description ended: the model ended it by itself, or was stopped at its limit of tokens."""


@dataclass(frozen=True)
class Clip:
    """The frames of a clip, on their way to a model."""

    frames: FrameArray
    """(N, H, W, 3) uint8 RGB, in the order of time."""
    pts_seconds: Sequence[float]
    """Presentation time of each of the N frames, in seconds."""
    prompt: str | None = None
    """Question to the model; None for the prompt of its own settings."""

    def to_wire(self) -> dict[str, Any]:
        """Return the tree that is sent."""
        tree: dict[str, Any] = {"frames": self.frames, "pts_seconds": list(self.pts_seconds)}
        return tree if self.prompt is None else {**tree, "prompt": self.prompt}


@dataclass(frozen=True)
class ClipBudget:
    """How many frames of a clip a model takes, and at which size.

    The arithmetic is that of `smart_nframes` and `smart_resize`, as the processors of the Qwen-VL models and their
    reference implementation have it.
    """

    factor: int
    """Number that both sides of a frame are multiples of, in pixels."""
    min_pixels: int
    """Smallest number of pixels: of a frame, or with `whole_clip` of all frames of a clip together."""
    max_pixels: int | None = None
    """Largest number of pixels of a frame; None if `total_pixels` alone limits it."""
    total_pixels: int | None = None
    """Largest number of pixels of all frames of a clip together; None if `max_pixels` alone limits them. Without
    `whole_clip`, `frame_factor` successive frames count as one, because the model takes them together."""
    whole_clip: bool = False
    """True if the sizes of frames are rounded so that the clip as a whole, rather than each frame, keeps the limits."""
    resized_width: int | None = None
    """Width of every frame, in pixels; None if it follows from the limits. It comes with `resized_height`."""
    resized_height: int | None = None
    """Height of every frame, in pixels; None if it follows from the limits."""
    frame_factor: int = 2
    """Number that the number of frames is a multiple of, unless a clip has fewer frames."""
    fps: float = 2.0
    """Frames for each second of a clip."""
    min_frames: int = 4
    """Smallest number of frames of a clip that has so many."""
    max_frames: int = 768
    """Largest number of frames of a clip."""
    resample: Resample = "bicubic"
    """Interpolation for scaling."""

    def check(self) -> None:
        """Raise TypeError if a field has another type, or a number that no budget has."""
        check_types(self)
        for name in ("factor", "resized_width", "resized_height"):
            if getattr(self, name) is not None:
                read_count(name, getattr(self, name), 1, MAX_SIDE)
        for name in ("min_pixels", "max_pixels", "total_pixels", "frame_factor", "min_frames", "max_frames"):
            if getattr(self, name) is not None:
                read_count(name, getattr(self, name), 1)
        if self.fps <= 0:
            raise TypeError(f"fps: expected more than 0, got {self.fps}")

    def frame_count(self, available: int, seconds: float) -> int:
        """Choose how many frames of a clip are taken.

        Args:
            available: Number of frames that the clip has, at least 1.
            seconds: Its duration.

        Returns:
            A multiple of `frame_factor`, at most `available`; or all frames if there are fewer than `frame_factor`.
        """
        if available < self.frame_factor:
            return available
        least = math.ceil(self.min_frames / self.frame_factor) * self.frame_factor
        most = min(self.max_frames, available) // self.frame_factor * self.frame_factor
        return max(
            self.frame_factor, int(min(max(seconds * self.fps, least), most) // self.frame_factor) * self.frame_factor
        )

    def fitting_count(self, count: int, width: int, height: int) -> int:
        """Return the largest number of frames with which a clip fits into a request.

        Long clips of very long and narrow frames get fewer, as the shorter side of a frame is rounded up to `factor`.

        Args:
            count: The number of frames that are wanted, from `frame_count`. It is kept if all frames have one size.
            width: Width of the frames as players show them, in pixels.
            height: Height of the frames as players show them, in pixels.
        """
        if self.resized_width is None:
            while count > self.frame_factor and count * self.frame_size(count, width, height).nbytes > MOST_CLIP_BYTES:
                count -= self.frame_factor
        return count

    def frame_size(self, count: int, width: int, height: int) -> InputSize:
        """Choose the size of the frames of a clip.

        Args:
            count: Number of frames that are taken, at least 1.
            width: Width of the frames as players show them, in pixels.
            height: Height of the frames as players show them, in pixels.

        Returns:
            The size that the frames are stretched to.
        """
        if self.resized_width and self.resized_height:
            return InputSize(
                self._multiple(round, self.resized_width), self._multiple(round, self.resized_height), self.resample
            )
        if self.whole_clip and min(width, height) < self.factor:
            scale = max(self.factor / height, self.factor / width)
            width, height = int(width * scale), int(height * scale)
        longer = MAX_ASPECT * min(width, height)
        width, height = min(width, longer), min(height, longer)
        if not self.whole_clip:
            return self._size(1, width, height, self._frame_limit(count))
        most = self.total_pixels or math.inf
        return self._size(count, width, height, most if self.max_pixels is None else count * self._frame_limit(count))

    def _frame_limit(self, count: int) -> float:
        """The largest number of pixels of one of `count` frames."""
        share = math.inf if self.total_pixels is None else self.total_pixels // count
        if self.total_pixels is not None and not self.whole_clip:
            share = self.total_pixels * self.frame_factor // count
        if self.total_pixels is None and self.max_pixels is not None:
            return self.max_pixels
        return max(min(self.max_pixels or math.inf, share), int(self.min_pixels * 1.05))

    def _size(self, count: int, width: int, height: int, most: float) -> InputSize:
        """Round the sides, and scale them if `count` frames, or one, would have too many or too few pixels."""
        rounded = count
        if self.whole_clip and count >= self.frame_factor:
            rounded = round(count / self.frame_factor) * self.frame_factor
        new_width, new_height = (round(side / self.factor) * self.factor for side in (width, height))
        pixels = rounded * new_width * new_height
        if pixels > most:
            scale = math.sqrt(count * width * height / most)
            new_width, new_height = (self._multiple(math.floor, side / scale) for side in (width, height))
        elif pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (count * width * height))
            new_width, new_height = (math.ceil(side * scale / self.factor) * self.factor for side in (width, height))
        return InputSize(new_width, new_height, self.resample)

    def _multiple(self, round_to_int: Callable[[float], int], side: float) -> int:
        return max(self.factor, round_to_int(side / self.factor) * self.factor)

    def most_bytes(self, seconds: float) -> int:
        """Return a size that the frames of no clip of up to so many seconds exceed, in bytes."""
        count = self.frame_count(self.max_frames, seconds)
        if self.resized_width and self.resized_height:
            size = self.frame_size(count, self.resized_width, self.resized_height)
            return count * size.nbytes
        total = math.inf if self.total_pixels is None else self.total_pixels
        least = self.min_pixels / count if self.whole_clip else self.min_pixels
        if not self.whole_clip:
            total *= self.frame_factor
        # The least that is accepted of a frame may be more than the limits allow. Sides are multiples of the factor, so
        # the narrowest frames, whose shorter side is rounded up to it, exceed the limits, too.
        most = max(min(self.max_pixels or math.inf, total / count), 1.05 * self.min_pixels)
        sides = math.sqrt(MAX_ASPECT * least) + math.sqrt(least)
        frame = max(most, self.factor * math.sqrt(MAX_ASPECT * most), least + self.factor * sides + self.factor**2)
        return 3 * math.ceil(count * frame)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a budget from the JSON that a handler sent.

        Raises:
            TypeError: A field is unknown or missing.
            ValueError: The interpolation is unknown.
        """
        budget = cls(**value)
        if budget.resample not in get_args(Resample):
            raise ValueError(f"resample: expected one of {', '.join(get_args(Resample))}, got {budget.resample!r}")
        return budget


@dataclass(frozen=True)
class ClipDescription:
    """A model's answer for one clip."""

    text: str
    """The description."""
    status: ClipStatus
    """How the text ended."""
    tokens: int | None
    """Number of tokens that the model generated, with the one that ends the text; None if the server does not say."""
    avg_logprob: float | None = None
    """Average natural-log probability of these tokens (at most 0); None if unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that a handler sends."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a description from the JSON that a handler sent.

        Args:
            value: The parsed JSON.

        Returns:
            The description.

        Raises:
            TypeError: The JSON is not the description of a clip.
            KeyError: A field is missing.
        """
        if (
            not isinstance(value, dict)
            or not isinstance(value["text"], str)
            or value["status"] not in get_args(ClipStatus)
        ):
            raise TypeError('a description: expected an object with "text", "status", "tokens" and "avg_logprob"')
        average = read_confidence("avg_logprob", value["avg_logprob"])
        tokens = None if value["tokens"] is None else read_count("tokens", value["tokens"])
        return cls(value["text"], value["status"], tokens, average)
