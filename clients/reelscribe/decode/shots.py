"""Find the shots of a video: the stretches between its cuts.

The detectors are those of PySceneDetect. They compare successive frames at a reduced size; here they are told the
numbers of frames, so that the times of shots are presentation times, whatever the frame rate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import Times
from reelscribe.errors import UsageError

Detector = Literal["adaptive", "content", "threshold"]
"""What counts as a cut: a change that is large beside those around it ("adaptive"), one that is large in itself
("content"), or a fade through black ("threshold"). The names are PySceneDetect's."""

DEFAULT_THRESHOLDS: dict[Detector, float] = {"adaptive": 3.0, "content": 27.0, "threshold": 12.0}
"""PySceneDetect's own threshold of each detector."""

LONGER_SIDE = 256
"""Largest side of the reduced frames, in pixels. At 128, cuts between dark shots were missed."""

FLASH_FRAMES = 4
"""Largest number of frames of a flash: a picture that interrupts a shot, which then goes on."""


CONTEXT_FRAMES = 16
"""Number of frames before a frame that decide whether it begins a shot, except for "threshold"."""


@dataclass(frozen=True)
class ShotDetection:
    """How shots are found.

    Raises:
        UsageError: The detector is unknown, or the threshold out of its range.
    """

    detector: Detector = "adaptive"
    """What counts as a cut."""
    threshold: float | None = None
    """How large a change must be: for "adaptive" its ratio to the average of the changes around it, for "content" the
    average change of hue, saturation and brightness in levels of 255, for "threshold" the brightness in levels of 255
    below which the picture is black. None for that of DEFAULT_THRESHOLDS."""

    def __post_init__(self) -> None:
        if self.detector not in get_args(Detector):
            raise UsageError(f"shot detector: expected one of {', '.join(get_args(Detector))}, got {self.detector!r}")
        if self.threshold is not None and not 0 < self.threshold < math.inf:
            raise UsageError(f"shot threshold: expected a number over 0, got {self.threshold}")

    def to_json(self) -> dict[str, Any]:
        """Return everything that decides which shots are found."""
        threshold = DEFAULT_THRESHOLDS[self.detector] if self.threshold is None else self.threshold
        return {"detector": self.detector, "threshold": threshold}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. Raises TypeError if a field is unknown."""
        return cls(**value)


def library_version() -> str:
    """Return the version of PySceneDetect, on which the shots that are found may depend."""
    from importlib.metadata import version  # decode processes import this module, and start faster without it

    return version("scenedetect-headless")


class CutFinder:
    """Finds cuts among the frames of one video, which are added one after the other.

    A flash is no cut: if the picture after two cuts that are close together is like that before them, the shot goes on.
    Nor is there a cut between two black pictures, unless fades are looked for.
    """

    def __init__(self, detection: ShotDetection) -> None:
        """Begin before the first frame.

        Args:
            detection: How shots are found.
        """
        self._detector = _create_detector(detection)
        self._size: tuple[int, int] | None = None
        self._reformatter = VideoReformatter()
        self._recent = deque[tuple[int, NDArray[np.uint8]]](maxlen=CONTEXT_FRAMES)
        self._undecided: list[_Cut] = []
        """Cuts that may be the beginning of a flash."""

    def add(self, index: int, frame: av.VideoFrame | FrameArray) -> list[int]:
        """Look at the next frame that could be decoded.

        Args:
            index: Its index in the video.
            frame: The frame; an array is (height, width, 3) uint8 RGB.

        Returns:
            Indices of frames that begin a shot, ascending, as far as they are decided.

        Raises:
            av.FFmpegError: FFmpeg cannot convert the frame.
        """
        from scenedetect import FrameTimecode

        picture = self._reduce(frame if isinstance(frame, av.VideoFrame) else av.VideoFrame.from_ndarray(frame))
        self._recent.append((index, picture))
        # The frame rate only turns numbers of frames to seconds, which are not used.
        self._add_cuts(self._detector.process_frame(FrameTimecode(index, 25.0), picture))
        return self._decide(index)

    def end(self) -> list[int]:
        """Return the cuts that were left to be decided when the video ended."""
        from scenedetect import FrameTimecode

        if not self._recent:
            return []
        last = self._recent[-1][0]
        self._add_cuts(self._detector.post_process(FrameTimecode(last, 25.0)))
        return self._decide(last + 2 * CONTEXT_FRAMES)

    def _reduce(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        if self._size is None:  # it stays that of the first frame, because the detectors compare only equal sizes
            scale = min(1.0, LONGER_SIDE / max(frame.width, frame.height))
            self._size = (max(2, round(frame.width * scale)), max(2, round(frame.height * scale)))
        reduced = self._reformatter.reformat(
            frame, *self._size, format="bgr24", interpolation=Interpolation.BILINEAR, threads=1
        )
        return reduced.to_ndarray().astype(np.uint8, copy=False)

    def _add_cuts(self, found: Iterable[Any]) -> None:
        self._undecided += [self._cut(timecode.frame_num) for timecode in found]

    def _cut(self, index: int) -> _Cut:
        before = [picture for at, picture in self._recent if at < index]
        after = [picture for at, picture in self._recent if at >= index]
        return _Cut(index, before[-1] if before else None, after[0] if after else None)

    def _decide(self, seen: int) -> list[int]:
        """Take the cuts that have been decided when the frame `seen` is known."""
        decided = []
        while self._undecided:
            first, *others = self._undecided
            end = next((cut for cut in others if cut.at - first.at <= FLASH_FRAMES and _is_flash(first, cut)), None)
            if end:
                self._undecided = [cut for cut in others if cut.at > end.at]
            elif seen - first.at > CONTEXT_FRAMES // 2:
                decided.append(first.at)
                self._undecided = others
            else:
                break
        return decided


class _Cut(NamedTuple):
    at: int
    """Index of the frame after it."""
    before: NDArray[np.uint8] | None
    """The reduced frame before the cut; None if it is no longer known."""
    after: NDArray[np.uint8] | None
    """The reduced frame after the cut."""


def _is_flash(first: _Cut, second: _Cut) -> bool:
    """Whether the picture after the second cut is much more like that before the first than the flash between is."""
    pictures = (first.before, first.after, second.before, second.after)
    if any(picture is None for picture in pictures):
        return False
    across = _difference(first.before, second.after)
    return 2 * across < min(_difference(first.before, first.after), _difference(second.before, second.after))


def _difference(a: Any, b: Any) -> float:
    return float(np.abs(a.astype(np.int16) - b).mean())


def find_shots(
    frames: Iterable[tuple[int, av.VideoFrame | FrameArray]],
    times: Times,
    end_seconds: float,
    detection: ShotDetection,
) -> tuple[list[Section], int]:
    """Find the shots of a video.

    Args:
        frames: Index and content of each frame that can be decoded, in order; an array is (height, width, 3) uint8 RGB.
        times: Presentation time of each frame of the video in seconds, ascending.
        end_seconds: Presentation time at which the last frame disappears, in seconds.
        detection: How shots are found.

    Returns:
        The shots in order, which together hold every frame, and the number of frames that cannot be decoded.
    """
    finder, cuts, undecodable = CutFinder(detection), list[int](), len(times)
    for index, frame in frames:
        with suppress(av.FFmpegError):  # it cannot convert some pixel formats; their frames count as undecodable
            cuts += finder.add(index, frame)
            undecodable -= 1
    cuts += finder.end()
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


def _create_detector(detection: ShotDetection) -> Any:
    """Return PySceneDetect's detector, which finds shots of any length."""
    # Imported late, because it takes longer to import than everything else and few decode processes need it.
    import cv2
    from scenedetect.detectors import AdaptiveDetector, ContentDetector, ThresholdDetector

    cv2.setNumThreads(1)  # the machine's cores are used by several decode processes
    threshold = detection.to_json()["threshold"]
    if detection.detector == "adaptive":
        return AdaptiveDetector(adaptive_threshold=threshold, min_scene_len=1)
    if detection.detector == "content":
        return ContentDetector(threshold=threshold, min_scene_len=0)
    return ThresholdDetector(threshold=threshold, min_scene_len=0)
