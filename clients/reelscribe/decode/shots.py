"""Find the shots of a video: the stretches between its cuts.

Frames are reduced to a small size. The difference of two frames is measured after one has been moved onto the other, so
that neither pans nor shake count. A cut is where a frame differs from the one before it, and no frame shortly before
resembles one shortly after: a flash or a strobe is no cut, as the shot goes on after it.

`scripts/bench defaults/cuts` shows what each rule is for. Without the last one, 26 cuts of its held-out set are false;
without CUT_TO_MOTION, 6, where large things move fast. Without MIN_CONTRAST_RATIO, a strobe hides a cut. Without
_WINDOW, a cut between photos is false; if frames could move farther than a third, one between photos would be lost.
Without the rules for black, about half of the fades have a false cut, and a third have none.

Some cuts are wrong nevertheless. A dissolve of two or three frames may count as one or two cuts. A fade through black
counts as several if it takes up to FLASH_FRAMES, and often as none if it is slower but black for only a few frames. A
cut is not found at a flash, between two shots of one frame, or between pictures that differ by less than the threshold;
where the brightness changes at once and for longer than a flash, a cut is found that is none. Shots of HDR are looked
for without mapping it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from reelscribe.contract.fields import check_options
from reelscribe.contract.source import Section
from reelscribe.decode.frame_conversion import as_progressive, opaque
from reelscribe.decode.sampling import Times
from reelscribe.errors import UsageError

VERSION = "1"
"""Version of the detection, which changes when it finds other shots."""

DEFAULT_THRESHOLD = 0.75
"""Chosen with the videos of `scripts/bench defaults/cuts --set tuning`."""

FLASH_FRAMES = 6
"""Largest number of frames that may interrupt a shot, which then goes on."""

CONTEXT_FRAMES = FLASH_FRAMES + 1
"""Number of frames before a cut, and after it, that decide whether it is one."""

WIDTH, HEIGHT = 64, 36
"""Size to which frames are reduced, in pixels, whatever the shape of the video."""

CUT_TO_MOTION = 1.5
"""Least ratio of the difference at a cut to the smaller one beside it: where everything moves, nothing is a cut."""

SIMILAR_STEP = 4
"""A frame is first compared with the one that is this many frames later: if they are similar, those between are never
scaled."""

STEADY_DISTANCES = (6, 3, 1)
"""Distances from a cut, in frames, of the frames that tell whether a shot is steady there. Whatever the rhythm of a
strobe, it does not look steady at all of them."""

ADDED_CONTRAST = 0.7
"""Contrast that is added to that of frames, in levels, so that noise is no difference between flat ones."""

MIN_CONTRAST_RATIO = 0.25
"""Least ratio of the contrast of a frame to that of the frames at a cut, with which it can tell that the shot goes on:
white is like white."""

BLACK_LUMA = 24
"""Luma below which a frame is black, in levels of video, in which black is 16."""

VISIBLE_LUMA = 40
"""Luma that a frame reaches somewhere if there was a cut between it and black; less is a step of a fade."""


@dataclass(frozen=True)
class ShotDetection:
    """Settings of the detection of shots.

    Raises:
        UsageError: The threshold is out of its range.
    """

    threshold: float = DEFAULT_THRESHOLD
    """Least difference between the frames of two shots, more than 0: the average difference of their pixels as a
    multiple of their contrast."""

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.threshold < math.inf:
            raise UsageError(f"shot threshold: expected a number over 0, got {self.threshold}")

    def to_json(self) -> dict[str, Any]:
        """Return everything that decides which shots are found."""
        return {"threshold": self.threshold}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make the settings from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The settings.

        Raises:
            TypeError: A field is unknown.
            UsageError: The threshold is out of its range.
        """
        return cls(**value)


class CutDetector:
    """Finds cuts among the frames of one video, which are given to it one after the other.

    Args:
        detection: Settings of the detection.
    """

    def __init__(self, detection: ShotDetection) -> None:
        self._threshold = detection.threshold
        self._reformatter = VideoReformatter()
        self._formats = set[str]()
        self._before = deque[_SmallFrame](maxlen=CONTEXT_FRAMES)
        self._after = deque[_SmallFrame]()
        self._passed = 0
        """Number of frames, from the first that is not decided, that are known to begin no shot."""

    def push(self, index: int, frame: av.VideoFrame) -> list[int]:
        """Take the next frame that could be decoded.

        Args:
            index: Its index in the video.
            frame: The frame.

        Returns:
            Indices of frames that begin a shot, ascending, as far as they are decided.

        Raises:
            av.FFmpegError: FFmpeg cannot convert the frame.
        """
        small = _SmallFrame(index, partial(self._reduce, frame))
        if frame.format.name not in self._formats:  # what cannot be converted is refused at once
            _ = small.planes
            self._formats.add(frame.format.name)
        self._after.append(small)
        return self._decide() if len(self._after) == CONTEXT_FRAMES else []

    def flush(self) -> list[int]:
        """End the video, and return the cuts that were left to be decided."""
        return [cut for _ in range(len(self._after)) for cut in self._decide()]

    def _reduce(self, frame: av.VideoFrame) -> NDArray[np.float32]:
        small = self._reformatter.reformat(
            as_progressive(opaque(frame)), WIDTH, HEIGHT, format="yuv444p", interpolation=Interpolation.AREA, threads=1
        )
        lines = [np.frombuffer(memoryview(plane), np.uint8).reshape(HEIGHT, -1) for plane in small.planes]
        return np.array([plane[:, :WIDTH] for plane in lines], np.float32)

    def _decide(self) -> list[int]:
        """Return the index of the first frame that is not decided yet if it begins a shot, and go on to the next."""
        first, is_cut = self._after[0], False
        if self._passed:
            self._passed -= 1
        elif self._before:
            before, after = [*self._before], [*self._after]
            similar = _count_similar(before[-1], after, self._threshold)
            is_cut = (not similar and _is_cut(before, after, self._threshold)) or _ends_black(before, first)
            self._passed = max(0, similar - 1)
        self._before.append(self._after.popleft())
        return [first.index] if is_cut else []


class _SmallFrame:
    """A frame, reduced to a small size when it is needed.

    Args:
        index: Index of the frame in the video.
        reduce: Reduces the frame, and returns `planes`.
    """

    def __init__(self, index: int, reduce: Callable[[], NDArray[np.float32]]) -> None:
        self.index, self._reduce = index, reduce

    @cached_property
    def planes(self) -> NDArray[np.float32]:
        """(3, HEIGHT, WIDTH), luma and chroma in levels of video."""
        return self._reduce()

    @cached_property
    def contrast(self) -> float:
        """Average difference of a pixel from the average colour, in levels."""
        pixels = self.planes.reshape(len(self.planes), -1)
        apart: NDArray[np.float32] = np.abs(pixels - pixels.mean(1, keepdims=True))
        return float(apart.sum()) / apart.size  # of 2-D arrays, the method `mean` is three times as slow

    @cached_property
    def spectrum(self) -> NDArray[np.complexfloating[Any, Any]]:
        """Fourier transform of the luma, which fades out towards the edges."""
        return np.fft.rfft2(self.planes[0] * _WINDOW)

    @cached_property
    def brightest(self) -> float:
        """Largest luma, in levels of video."""
        return float(self.planes[0].max())


_WINDOW = np.sqrt(np.outer(np.hanning(HEIGHT + 2)[1:-1], np.hanning(WIDTH + 2)[1:-1])).astype(np.float32)


def _count_similar(last: _SmallFrame, after: Sequence[_SmallFrame], threshold: float) -> int:
    """Return how many frames of `after` are known to go on with the shot of the one before: SIMILAR_STEP, 1 or 0."""
    steps = (step for step in (SIMILAR_STEP, 1) if step <= len(after))
    return next((step for step in steps if _are_similar(last, after[step - 1], threshold)), 0)


def _is_cut(before: Sequence[_SmallFrame], after: Sequence[_SmallFrame], threshold: float) -> bool:
    """Return whether a cut is between the last frame of `before` and the first of `after`, which are not similar."""
    last, first = before[-1], after[0]
    if min(last.brightest, first.brightest) < BLACK_LUMA and max(last.brightest, first.brightest) < VISIBLE_LUMA:
        return False
    beside = [_aligned_difference(frame, last) for frame in before[-2:-1]]
    beside += [_aligned_difference(first, frame) for frame in after[1:2]]
    if beside and _aligned_difference(last, first) < CUT_TO_MOTION * min(beside):
        return False
    if _is_steady(before[::-1], threshold) and _is_steady(after, threshold):
        return True
    least = MIN_CONTRAST_RATIO * min(last.contrast, first.contrast)
    return not any(
        min(one.contrast, other.contrast) >= least and _are_similar(one, other, threshold)
        for distance in range(2, FLASH_FRAMES + 2)
        for one, other in _pairs(before, after, distance)
    )


def _is_steady(frames: Sequence[_SmallFrame], threshold: float) -> bool:
    """Return whether the frames on one side of a cut, from it on, are of one shot: then there is no flash there."""
    return len(frames) == CONTEXT_FRAMES and all(
        _are_similar(frames[0], frames[k], threshold) for k in STEADY_DISTANCES
    )


def _are_similar(one: _SmallFrame, other: _SmallFrame, threshold: float) -> bool:
    """Return whether two frames are of one shot."""
    return _difference_at(one, other) < threshold or _aligned_difference(one, other) < threshold


def _pairs(
    before: Sequence[_SmallFrame], after: Sequence[_SmallFrame], distance: int
) -> Iterable[tuple[_SmallFrame, _SmallFrame]]:
    """Return the pairs of a frame before a cut and one after it that are this many frames apart."""
    return (
        (before[-back], after[distance - back])
        for back in range(1, distance + 1)
        if back <= len(before) and distance - back < len(after)
    )


def _ends_black(before: Sequence[_SmallFrame], first: _SmallFrame) -> bool:
    """Return whether the video was black for longer than a flash, and is not any more."""
    was_black = len(before) > FLASH_FRAMES and all(frame.brightest < BLACK_LUMA for frame in reversed(before))
    return was_black and first.brightest >= BLACK_LUMA


def _aligned_difference(one: _SmallFrame, other: _SmallFrame) -> float:
    """Return the difference of two frames if one is moved onto the other, as a multiple of their contrast.

    Phase correlation tells how far to move it. Up to a third of the frame counts as movement.
    """
    product = one.spectrum * other.spectrum.conj()
    correlation = np.fft.irfft2(product / (np.abs(product) + 1e-3), (HEIGHT, WIDTH))
    down, right = divmod(int(correlation.argmax()), WIDTH)
    down, right = down - HEIGHT * (down > HEIGHT // 2), right - WIDTH * (right > WIDTH // 2)
    if abs(down) > HEIGHT // 3 or abs(right) > WIDTH // 3:
        down = right = 0
    return _difference_at(one, other, down, right)


def _difference_at(one: _SmallFrame, other: _SmallFrame, down: int = 0, right: int = 0) -> float:
    """Return the difference of two frames where they overlap if the other is moved by this many pixels."""
    rows = slice(max(0, down), HEIGHT + min(0, down)), slice(max(0, -down), HEIGHT + min(0, -down))
    columns = slice(max(0, right), WIDTH + min(0, right)), slice(max(0, -right), WIDTH + min(0, -right))
    apart = one.planes[:, rows[0], columns[0]] - other.planes[:, rows[1], columns[1]]
    return float(np.abs(apart, out=apart).sum()) / apart.size / ((one.contrast + other.contrast) / 2 + ADDED_CONTRAST)


def find_shots(
    frames: Iterable[tuple[int, av.VideoFrame]],
    times: Times,
    end_seconds: float,
    detection: ShotDetection,
) -> tuple[list[Section], int]:
    """Find the shots of a video.

    Args:
        frames: Index and content of each frame that can be decoded, in order.
        times: Presentation time of each frame of the video in seconds, ascending.
        end_seconds: Presentation time at which the last frame disappears, in seconds.
        detection: Settings of the detection.

    Returns:
        The shots in order, which together hold every frame, and the number of frames that cannot be decoded.
    """
    detector, cuts, undecodable = CutDetector(detection), list[int](), len(times)
    for index, frame in frames:
        with suppress(av.FFmpegError):  # it cannot convert some pixel formats; their frames count as undecodable
            cuts += detector.push(index, frame)
            undecodable -= 1
    cuts += detector.flush()
    return shots_between([0, *cuts, len(times)], times, end_seconds), undecodable


def shots_between(edges: Iterable[int], times: Times, end_seconds: float) -> list[Section]:
    """Return the shots of a video.

    Args:
        edges: Indices of the first frame of each shot, and the number of frames.
        times: Presentation time of each frame in seconds, ascending.
        end_seconds: Presentation time at which the last frame disappears, in seconds.
    """
    frames = sorted({*edges})
    seconds = [round(float(time), 6) for time in (*(times[frame] for frame in frames[:-1]), end_seconds)]
    return [Section(*pair) for pair in zip(frames, frames[1:], seconds, seconds[1:], strict=False)]
