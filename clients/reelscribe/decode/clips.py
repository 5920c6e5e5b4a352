"""Cut a video into clips, and read the frames of each that a model takes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.contract.source import Section
from reelscribe.decode.sampling import TIME_TOLERANCE, Times
from reelscribe.decode.shots import ShotDetection
from reelscribe.decode.video import Library, OpenVideo, Picture
from reelscribe.errors import UsageError

Cut = Literal["shots", "windows"]
"""Where clips begin: at cuts, or at regular times."""

LEAST_SECONDS = 0.1
"""Least that clips may be limited to, and least time between the starts of windows, in seconds. With less, a video of
hours would have more clips than fit into memory."""


@dataclass(frozen=True)
class ClipCutting:
    """Where a video is cut into clips.

    Raises:
        UsageError: A value is out of its range.
    """

    cut: Cut = "shots"
    """Whether clips are shots, or windows of equal length."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """How shots are found."""
    min_seconds: float = 1.0
    """Shorter shots are joined to the next one, and the last one to the one before; so is a short last window."""
    max_seconds: float = 30.0
    """Longer shots are divided evenly; more than `min_seconds`, and at least LEAST_SECONDS."""
    window_seconds: float = 10.0
    """Length of a window; at least LEAST_SECONDS."""
    overlap_seconds: float = 0.0
    """How long successive windows overlap; less than `window_seconds` by at least LEAST_SECONDS."""

    def __post_init__(self) -> None:
        if self.cut not in get_args(Cut):
            raise UsageError(f"clips: expected one of {', '.join(get_args(Cut))}, got {self.cut!r}")
        if not 0 <= self.min_seconds < math.inf:
            raise UsageError(f"shortest clip: expected 0 seconds or more, got {self.min_seconds}")
        if not max(self.min_seconds, LEAST_SECONDS - TIME_TOLERANCE) < self.max_seconds < math.inf:
            raise UsageError(
                f"longest clip: expected {LEAST_SECONDS} seconds or more, and more than the shortest,"
                f" {self.min_seconds}, got {self.max_seconds}"
            )
        if not LEAST_SECONDS <= self.window_seconds < math.inf:
            raise UsageError(f"window: expected {LEAST_SECONDS} seconds or more, got {self.window_seconds}")
        most = round(self.window_seconds - LEAST_SECONDS, 6)
        if not 0 <= self.overlap_seconds <= most:
            raise UsageError(
                f"overlap: expected from 0 to {most} of the {self.window_seconds} seconds of a window, got"
                f" {self.overlap_seconds}"
            )

    @property
    def longest_seconds(self) -> float:
        """Length of the longest possible clip, in seconds."""
        return self.max_seconds if self.cut == "shots" else self.window_seconds + self.min_seconds

    def describe(self) -> str:
        """Describe in words what the clips are, such as "a clip for each shot"."""
        if self.cut == "shots":
            return "a clip for each shot"
        return f"a clip of each {self.window_seconds:g} seconds"

    def settings(self) -> dict[str, Any]:
        """Return what decides where the clips are, as JSON."""
        if self.cut == "shots":
            detection = self.detection.to_json()
            return {"cut": "shots", "detection": detection, "min": self.min_seconds, "max": self.max_seconds}
        return {
            "cut": "windows",
            "window": self.window_seconds,
            "overlap": self.overlap_seconds,
            "min": self.min_seconds,
        }

    def clips(self, shots: Sequence[Section], times: Times, end_seconds: float) -> list[Section]:
        """Cut a video into clips.

        Args:
            shots: Its shots, in order; windows need none.
            times: Presentation time of each frame in seconds, ascending.
            end_seconds: Presentation time at which the last frame disappears, in seconds.

        Returns:
            The clips in the order of time. Those of shots hold every frame once.
        """
        if len(times) == 0:
            return []
        if self.cut == "windows":
            starts, ends = self._windows(float(times[0]), end_seconds)
        else:
            edges = self._edges(self._joined([shot.start_seconds for shot in shots] or [float(times[0])], end_seconds))
            starts, ends = edges[:-1], edges[1:]
        first = np.searchsorted(times, np.asarray(starts) - TIME_TOLERANCE).tolist()
        stop = np.searchsorted(times, np.asarray(ends) - TIME_TOLERANCE).tolist()
        return [
            Section(a, b, round(start, 6), round(end, 6))
            for a, b, start, end in zip(first, stop, starts, ends, strict=True)
            if a < b  # a stretch of a variable frame rate may have no frame
        ]

    def _joined(self, starts: Sequence[float], end: float) -> list[float]:
        """Leave out the starts of shots that are joined to others; returns the rest and the end."""
        kept = [starts[0]]
        for start in starts[1:]:
            if start - kept[-1] >= self.min_seconds - TIME_TOLERANCE:
                kept.append(start)
        if len(kept) > 1 and end - kept[-1] < self.min_seconds - TIME_TOLERANCE:
            kept.pop()
        return [*kept, end]

    def _edges(self, edges: Sequence[float]) -> list[float]:
        """Divide what is too long; returns the starts of clips and the end of the last one."""
        divided = []
        for start, end in pairwise(edges):
            parts = max(1, math.ceil((end - start) / self.max_seconds - TIME_TOLERANCE))
            divided += [start + (end - start) * k / parts for k in range(parts)]
        return [*divided, edges[-1]]

    def _windows(self, start: float, end: float) -> tuple[list[float], list[float]]:
        step = self.window_seconds - self.overlap_seconds
        # The last window begins early enough to show something that no window before it has shown.
        count = max(1, math.ceil((end - start - self.overlap_seconds) / step - TIME_TOLERANCE))
        starts = [start + step * k for k in range(count)]
        ends = [min(each + self.window_seconds, end) for each in starts]
        if count > 1 and ends[-1] - starts[-1] < self.min_seconds - TIME_TOLERANCE:
            starts.pop()
            ends = [*ends[:-2], end]
        return starts, ends


@dataclass(frozen=True)
class ClipTask:
    """Which clips to read, and how."""

    path: str
    """Path of the video file."""
    budget: ClipBudget
    """How many frames of a clip are taken, and at which size."""
    cutting: ClipCutting = field(default_factory=ClipCutting)
    """Where the video is cut into clips."""
    resize: Resize = "fast"
    """How frames are scaled."""
    library: Library = "av"
    """Library to decode with; see `VideoTask`."""
    known_shots: Sequence[Section] | None = None
    """The shots, if they have been found before."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "budget": self.budget.to_json(), "cutting": asdict(self.cutting)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned. Raises TypeError, KeyError or UsageError for anything else."""
        cutting, shots = value["cutting"], value["known_shots"]
        fields = {
            "budget": ClipBudget.from_json(value["budget"]),
            "cutting": ClipCutting(**{**cutting, "detection": ShotDetection.from_json(cutting["detection"])}),
            "known_shots": None if shots is None else [Section(*shot) for shot in shots],
        }
        return cls(**{**value, **fields})


class ChosenClip(NamedTuple):
    """A clip of a video, and the frames of it that are taken."""

    ordinal: int
    """Number of the clip among those of the video, from 0."""
    span: Section
    """The frames and the time that it spans."""
    wanted: Sequence[int]
    """Indices of the frames that are taken, ascending."""
    size: InputSize
    """Size to which they are scaled."""


class ReadClip(NamedTuple):
    """A clip with its frames."""

    clip: ChosenClip
    frame_indices: list[int]
    """Indices of the frames that could be decoded."""
    pts_seconds: list[float]
    """Presentation time of each of them, in seconds."""
    images: list[FrameArray]
    """(height, width, 3) uint8 RGB each."""


class ClipVideo(OpenVideo):
    """An open video file that is cut into clips, as a context manager that closes the file.

    Args:
        task: Which clips to read, and how.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The file is missing, empty, or not a video.
    """

    clips: list[Section]
    """All clips, in order."""

    def __init__(self, task: ClipTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            task.path,
            library=task.library,
            detection=task.cutting.detection if task.cutting.cut == "shots" else None,
            known_shots=task.known_shots,
            heartbeat=heartbeat,
        )
        self._task = task
        self.clips = task.cutting.clips(self.shots or (), self.times, self.info.end_seconds)

    def read(self, ordinals: range) -> Iterator[ReadClip]:
        """Read clips. No more of them are in memory than overlap.

        Args:
            ordinals: Their numbers.

        Yields:
            The clip of each number, in order.

        Raises:
            MediaError: The file cannot be opened again.
        """
        chosen = deque(self._choose(ordinal) for ordinal in ordinals)
        wanted = sorted({index for clip in chosen for index in clip.wanted})
        open_clips = deque[tuple[ReadClip, Callable[[Picture], FrameArray | None]]]()
        for index, picture in self.pictures(wanted):
            while chosen and chosen[0].wanted[0] <= index:
                clip = chosen.popleft()
                open_clips.append((ReadClip(clip, [], [], []), self.scaler(clip.size, self._task.resize)))
            while open_clips and open_clips[0][0].clip.wanted[-1] < index:
                yield open_clips.popleft()[0]
            for read, scale in open_clips:
                if index in read.clip.wanted and (image := scale(picture)) is not None:
                    read.frame_indices.append(index)
                    read.pts_seconds.append(self.seconds(index))
                    read.images.append(image)
        yield from (read for read, _ in open_clips)
        yield from (ReadClip(clip, [], [], []) for clip in chosen)

    def _choose(self, ordinal: int) -> ChosenClip:
        """Choose frames of a clip: those that are shown in the middle of equally long parts of it."""
        span, budget = self.clips[ordinal], self._task.budget
        # Rounded, so that windows of the same length have the same number of frames.
        available, seconds = span.end_frame - span.start_frame, round(span.end_seconds - span.start_seconds, 6)
        count = budget.frame_count(available, seconds)
        middles = span.start_seconds + (np.arange(count) + 0.5) * seconds / count
        shown = np.searchsorted(self.times, middles + TIME_TOLERANCE, "right") - 1
        wanted = np.unique(shown.clip(span.start_frame, span.end_frame - 1))
        if len(wanted) < count:  # frames of a variable rate may be shown for longer than a part
            wanted = span.start_frame + ((np.arange(count) + 0.5) * available / count).astype(np.intp)
        return ChosenClip(ordinal, span, wanted.tolist(), budget.frame_size(count, *self.info.shown_size))
