"""Cut a video into clips, and read the frames of each that a model takes.

The clips of a video whose shots are not known yet are read while the shots are looked for, in the same decoding. Which
frames a clip takes follows from its end, so frames that it may take are buffered until then. A clip that takes others,
or for which too much would have to be buffered, is decoded again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self, get_args

import av
import numpy as np

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.fields import check_options
from reelscribe.contract.frames import FrameArray, InputSize, Resize
from reelscribe.contract.source import Section, Span
from reelscribe.decode.sampling import TIME_TOLERANCE, Times
from reelscribe.decode.shots import CONTEXT_FRAMES, CutDetector, ShotDetection, shots_between
from reelscribe.decode.video import OpenVideo
from reelscribe.errors import UsageError

Cut = Literal["shots", "windows"]
"""The way in which a video is cut into clips: at the cuts between shots, or at regular times."""

MIN_CLIP_SECONDS = 0.1
"""Least that clips may be limited to, and least time between the starts of windows, in seconds. With less, a video of
hours would have more clips than fit into memory."""

DEFAULT_MAX_SECONDS = 30.0
"""Default of the longest clip of a shot, in seconds."""

DEFAULT_WINDOW_SECONDS = 10.0
"""Default length of a window, in seconds."""

MAX_BUFFERED_BYTES = 2**28
"""Largest number of bytes of frames that are buffered until their clip ends: 80 frames of 1080p."""


@dataclass(frozen=True)
class ClipCutting:
    """Settings of the way in which a video is cut into clips.

    Raises:
        UsageError: A value is out of its range, or is not for clips of this kind.
    """

    cut: Cut | None = None
    """The kind of clips: shots, or windows of equal length. None, which becomes either, means windows if a value is
    given that only windows have, and otherwise shots."""
    detection: ShotDetection = field(default_factory=ShotDetection)
    """Settings of the detection of shots."""
    min_seconds: float = 1.0
    """Shorter shots are joined to the next one, and the last one to the one before; so is a short last window."""
    max_seconds: float | None = None
    """Longer shots are divided evenly; more than `min_seconds`, and at least MIN_CLIP_SECONDS. None for
    DEFAULT_MAX_SECONDS. Windows have none."""
    window_seconds: float | None = None
    """Length of a window; at least MIN_CLIP_SECONDS. None for DEFAULT_WINDOW_SECONDS. Shots have none."""
    overlap_seconds: float | None = None
    """Overlap of successive windows, in seconds; less than the length of a window by at least MIN_CLIP_SECONDS. None
    for 0. Shots have none."""

    def __post_init__(self) -> None:
        check_options(self)
        of_windows = {"clip seconds": self.window_seconds, "clip overlap": self.overlap_seconds}
        others = {"shots": of_windows, "windows": {"clip seconds max": self.max_seconds}}
        if self.cut is None:
            given = any(value is not None for value in of_windows.values())
            object.__setattr__(self, "cut", "windows" if given else "shots")
        if self.cut not in others:
            raise UsageError(f"clips: expected one of {', '.join(get_args(Cut))}, got {self.cut!r}")
        for name, value in others[self.cut].items():
            if value is not None:
                (other,) = others.keys() - {self.cut}
                raise UsageError(
                    f"{name}: expected {other} with it, got clips that are {self.cut}; leave it out, or choose {other}"
                )
        if not 0 <= self.min_seconds < math.inf:
            raise UsageError(f"clip seconds min: expected 0 seconds or more, got {self.min_seconds}")
        if self.cut == "shots" and not max(self.min_seconds, MIN_CLIP_SECONDS - TIME_TOLERANCE) < self._max < math.inf:
            raise UsageError(
                f"clip seconds max: expected {MIN_CLIP_SECONDS} seconds or more, and more than the shortest,"
                f" {self.min_seconds}, got {self._max}"
            )
        if not MIN_CLIP_SECONDS <= self._window < math.inf:
            raise UsageError(f"clip seconds: expected {MIN_CLIP_SECONDS} seconds or more, got {self.window_seconds}")
        most = round(self._window - MIN_CLIP_SECONDS, 6)
        if not 0 <= self._overlap <= most:
            raise UsageError(
                f"clip overlap: expected from 0 to {most} of the {self._window} seconds of a window, got"
                f" {self.overlap_seconds}"
            )

    @property
    def _max(self) -> float:
        return DEFAULT_MAX_SECONDS if self.max_seconds is None else self.max_seconds

    @property
    def _window(self) -> float:
        return DEFAULT_WINDOW_SECONDS if self.window_seconds is None else self.window_seconds

    @property
    def _overlap(self) -> float:
        return self.overlap_seconds or 0.0

    @property
    def longest_seconds(self) -> float:
        """Length of the longest possible clip, in seconds."""
        return self._max if self.cut == "shots" else self._window + self.min_seconds

    @property
    def step_seconds(self) -> float:
        """Time between the starts of successive windows, in seconds."""
        return self._window - self._overlap

    def describe(self) -> str:
        """Describe in words what the clips are, such as "a clip for each shot"."""
        if self.cut == "shots":
            return "a clip for each shot"
        return f"a clip of each {self._window:g} seconds"

    def settings(self) -> dict[str, Any]:
        """Return what decides where the clips are, as JSON."""
        if self.cut == "shots":
            detection = self.detection.to_json()
            return {"cut": "shots", "detection": detection, "min": self.min_seconds, "max": self._max}
        return {
            "cut": "windows",
            "window": self._window,
            "overlap": self._overlap,
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
            return _sections(*self._windows(float(times[0]), end_seconds), times)
        starts = [shots[0].start_seconds if shots else float(times[0])]
        for shot in shots[1:]:
            if self.is_start(shot.start_seconds, starts[-1], end_seconds):
                starts.append(shot.start_seconds)
        edges = pairwise([*starts, end_seconds])
        return [clip for start, end in edges for clip in self.divide(start, end, times)]

    def is_start(self, shot_start: float, clip_start: float, end_seconds: float) -> bool:
        """Return whether a shot begins a new clip, and is not joined to the shots before it.

        Args:
            shot_start: Where the shot begins, in seconds.
            clip_start: Where the clip of the shot before it begins, in seconds.
            end_seconds: Where the video ends, in seconds.
        """
        return min(shot_start - clip_start, end_seconds - shot_start) >= self.min_seconds - TIME_TOLERANCE

    def divide(self, start: float, end: float, times: Times) -> list[Section]:
        """Return the clips of shots that are joined, or of a single one: one clip, or equal parts if it is too long.

        Args:
            start: Where the first of the shots begins, in seconds.
            end: Where the last of them ends, in seconds.
            times: Presentation time of each frame of the video in seconds, ascending.
        """
        parts = max(1, math.ceil((end - start) / self._max - TIME_TOLERANCE))
        edges = [*(start + (end - start) * k / parts for k in range(parts)), end]
        return _sections(edges[:-1], edges[1:], times)

    def _windows(self, start: float, end: float) -> tuple[list[float], list[float]]:
        step = self.step_seconds
        # The last window begins early enough to show something that no window before it has shown.
        count = max(1, math.ceil((end - start - self._overlap) / step - TIME_TOLERANCE))
        starts = [start + step * k for k in range(count)]
        ends = [min(each + self._window, end) for each in starts]
        if count > 1 and ends[-1] - starts[-1] < self.min_seconds - TIME_TOLERANCE:
            starts.pop()
            ends = [*ends[:-2], end]
        return starts, ends


def _sections(starts: Sequence[float], ends: Sequence[float], times: Times) -> list[Section]:
    first = np.searchsorted(times, np.asarray(starts) - TIME_TOLERANCE).tolist()
    stop = np.searchsorted(times, np.asarray(ends) - TIME_TOLERANCE).tolist()
    return [
        Section(a, b, round(start, 6), round(end, 6))
        for a, b, start, end in zip(first, stop, starts, ends, strict=True)
        if a < b  # a stretch of a variable frame rate may have no frame
    ]


@dataclass(frozen=True)
class ClipTask:
    """A request to a decode process for clips of a video."""

    path: str
    """Path of the video file."""
    budget: ClipBudget
    """Number of frames that are taken of a clip, and their size."""
    cutting: ClipCutting = field(default_factory=ClipCutting)
    """Settings of the way in which the video is cut."""
    resize: Resize = "fast"
    """Method of scaling frames."""
    deinterlace: bool = False
    """If True, frames that are marked as interlaced are deinterlaced."""
    known_shots: Sequence[Section] | None = None
    """The shots, if they have been found before."""
    stat: str = ""
    """The `file_stat` that the file must have; empty for the one that it has when it is builder."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**vars(self), "budget": self.budget.to_json(), "cutting": asdict(self.cutting)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Make a task from what `to_json` returned.

        Args:
            value: The parsed JSON.

        Returns:
            The task.

        Raises:
            TypeError: A field is unknown or missing. KeyError says the same.
            UsageError: A value is out of its range.
        """
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
        task: The request.
        heartbeat: Called regularly while reading makes progress.

    Raises:
        MediaError: The file is missing, empty, or not a video.
    """

    count: int | None
    """Number of clips; None as long as it is not known, because shots are still looked for."""

    def __init__(self, task: ClipTask, heartbeat: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            task.path,
            stat=task.stat,
            deinterlace=task.deinterlace,
            known_shots=task.known_shots,
            heartbeat=heartbeat,
        )
        self._task = task
        self.count = None
        if task.cutting.cut == "windows" or self.shots is not None:
            self.count = len(self._all_clips())

    def read(self, spans: Sequence[Span]) -> Iterator[ReadClip]:
        """Read clips. No more of them are in memory than overlap.

        Args:
            spans: Their numbers, ascending. The clips of a span with an anchor begin with that frame, even if shots are
                found at other places than by the process that has read those before it.

        Yields:
            The clip of each number, in order. When they end, `count` and `shots` are known.

        Raises:
            MediaError: The file cannot be builder again.
        """
        if self._task.cutting.cut == "windows":
            spans = [replace(span, anchor=None) for span in spans]
        numbers = _ClipNumbers(spans)
        if self.count is None and self.can_seek:
            yield from self._search(numbers)
        else:
            if self.count is None:
                self.find_shots(self._task.cutting.detection)
            yield from self._read([self._choose(*each) for each in self._numbered(self._all_clips(), numbers)])
        self.count = numbers.count

    def _numbered(self, sections: Iterable[Section], numbers: _ClipNumbers) -> Iterator[tuple[int, Section]]:
        """Yield the clips that are wanted, with their numbers."""
        for section in sections:
            ordinal = numbers.take(section)
            if ordinal is None:
                continue
            if section.start_frame < numbers.anchor:
                start = self.seconds(numbers.anchor)
                yield ordinal, section._replace(start_frame=numbers.anchor, start_seconds=start)
            else:
                yield ordinal, section

    def _read(self, clips: Sequence[ChosenClip]) -> Iterator[ReadClip]:
        chosen = deque(clips)
        wanted = sorted({index for clip in chosen for index in clip.wanted})
        builders = deque[_ClipBuilder]()
        for index, frame in self.decode(wanted):
            while chosen and chosen[0].wanted[0] <= index:
                builders.append(self._begin(chosen.popleft()))
            while builders and builders[0].clip.wanted[-1] < index:
                yield builders.popleft().result
            for builder in builders:
                builder.add(index, self.seconds(index), frame)
        yield from (builder.result for builder in builders)
        yield from (self._begin(clip).result for clip in chosen)

    def _search(self, numbers: _ClipNumbers) -> Iterator[ReadClip]:
        """Look for shots, and read the clips of each as soon as its end is known."""
        cutting, end = self._task.cutting, self.info.end_seconds
        detector, buffer = CutDetector(cutting.detection), FrameBuffer(self.times, self._step, cutting.longest_seconds)
        cuts, start = [0], 0

        def clips_until(stop: float) -> Iterator[ReadClip]:
            sections = cutting.divide(self.seconds(start), stop, self.times)
            chosen = [self._choose(*each) for each in self._numbered(sections, numbers)]
            buffered = [buffer.take(clip.wanted) for clip in chosen]
            if None in buffered:  # one more decoding for all of them, and not one for each
                yield from self._read(chosen)
                return
            for clip, frames in zip(chosen, buffered, strict=True):
                builder = self._begin(clip)
                for index, frame in zip(clip.wanted, frames or (), strict=True):
                    builder.add(index, self.seconds(index), frame)
                yield builder.result

        def clips_before(found: Sequence[int]) -> Iterator[ReadClip]:
            nonlocal start
            for cut in found:
                cuts.append(cut)
                if cutting.is_start(self.seconds(cut), self.seconds(start), end):
                    yield from clips_until(self.seconds(cut))
                    start = cut
                    buffer.begin(cut)

        for index, frame in self.decode(range(len(self.times))):
            buffer.add(index, frame)
            found = list[int]()
            with suppress(av.FFmpegError):  # it cannot convert some pixel formats
                found = detector.push(index, frame)
            yield from clips_before(found)
        yield from clips_before(detector.flush())
        yield from clips_until(end)
        self.shots = shots_between([*cuts, len(self.times)], self.times, end)

    def _begin(self, clip: ChosenClip) -> _ClipBuilder:
        return _ClipBuilder(clip, self.scaler(clip.size, self._task.resize))

    def _all_clips(self) -> list[Section]:
        return self._task.cutting.clips(self.shots or (), self.times, self.info.end_seconds)

    @property
    def _step(self) -> float:
        """The time that a frame is taken at is a multiple of this many seconds after the start of its clip."""
        return 1 / self._task.budget.fps / 2

    def _choose(self, ordinal: int, span: Section) -> ChosenClip:
        """Choose frames of a clip: those that are shown about in the middle of equally long parts of it.

        The times are rounded to multiples of `_step`, so that only few frames can be taken, wherever the clip ends.
        """
        budget = self._task.budget
        # Rounded, so that windows of the same length have the same number of frames.
        available, seconds = span.end_frame - span.start_frame, round(span.end_seconds - span.start_seconds, 6)
        count = budget.fitting_count(budget.frame_count(available, seconds), *self.info.shown_size)
        middles = np.rint((np.arange(count) + 0.5) * seconds / count / self._step) * self._step
        wanted = np.unique(
            _frames_shown_at(self.times, span.start_seconds + middles).clip(span.start_frame, span.end_frame - 1)
        )
        if len(wanted) < count:  # the clip is short, or frames of a variable rate are shown for longer than a part
            wanted = span.start_frame + ((np.arange(count) + 0.5) * available / count).astype(np.intp)
        return ChosenClip(ordinal, span, wanted.tolist(), budget.frame_size(count, *self.info.shown_size))


class _ClipNumbers:
    """Gives clips their numbers, in order, and tells which of them are wanted."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = deque(spans)
        self.count = 0
        """Number of the next clip."""
        self.anchor = 0
        """Index of the frame with which the next clip begins at the earliest."""

    def take(self, section: Section) -> int | None:
        """Return the number of the next clip; None if it is not wanted, because an earlier process has read it."""
        while self._spans and self._spans[0].stop is not None and self._spans[0].stop <= self.count:
            self._spans.popleft()
        span = self._spans[0] if self._spans else None
        if span and span.anchor is not None and self.count <= span.first:
            if section.end_frame <= span.anchor:
                self.count = min(self.count + 1, span.first)
                return None
            self.count, self.anchor = span.first, span.anchor
        self.count += 1
        return self.count - 1 if span and span.first < self.count else None


class _ClipBuilder:
    """A clip to which frames are added until it is complete."""

    def __init__(self, clip: ChosenClip, scale: Callable[[av.VideoFrame], FrameArray | None]) -> None:
        self.clip, self._scale = clip, scale
        self.result = ReadClip(clip, [], [], [])

    def add(self, index: int, seconds: float, frame: av.VideoFrame) -> None:
        """Add a frame if the clip takes it and it can be scaled."""
        if index in self.clip.wanted and (image := self._scale(frame)) is not None:
            self.result.frame_indices.append(index)
            self.result.pts_seconds.append(seconds)
            self.result.images.append(image)


class FrameBuffer:
    """Holds the frames that the clip which is being decoded may take, and the last ones, as a clip may begin there.

    Args:
        times: Presentation time of each frame of the video in seconds, ascending; at least one.
        step: The clip may take the frames that are shown at multiples of this many seconds after its start.
        longest_seconds: Nothing is buffered of a clip that is longer, because it will be divided.
    """

    def __init__(self, times: Times, step: float, longest_seconds: float) -> None:
        self._times, self._longest, self._step = np.asarray(times), longest_seconds, step
        self._frames: dict[int, av.VideoFrame] = {}
        self._nbytes = 0
        self.begin(0)

    def begin(self, first: int) -> None:
        """Begin a clip with the frame of the index `first`."""
        start = float(self._times[first])
        self._end = start + self._longest
        stop = int(np.searchsorted(self._times, self._end, "right"))
        shown_from = self._times[first:stop] - start - TIME_TOLERANCE
        # A frame is a candidate if it is shown at a multiple of the step.
        multiples = np.ceil(shown_from / self._step) * self._step
        chosen = multiples < np.append(shown_from[1:], math.inf)
        self._candidates = {*(first + np.flatnonzero(chosen)).tolist()}
        for index in [index for index in self._frames if index < first]:
            self._drop(index)

    def add(self, index: int, frame: av.VideoFrame) -> None:
        """Take the next frame that could be decoded."""
        if self._times[index] > self._end + TIME_TOLERANCE:
            self._candidates.clear()
        self._frames[index] = frame
        self._nbytes += _frame_bytes(frame)
        for old in [old for old in self._frames if old <= index - CONTEXT_FRAMES and old not in self._candidates]:
            self._drop(old)
        if self._nbytes > MAX_BUFFERED_BYTES:
            self._candidates.clear()
            self._frames.clear()
            self._nbytes = 0

    def take(self, wanted: Sequence[int]) -> list[av.VideoFrame] | None:
        """Return the frames of these indices; None if one of them is not in it."""
        frames = [self._frames.get(index) for index in wanted]
        return None if any(frame is None for frame in frames) else frames  # type: ignore[return-value]

    def _drop(self, index: int) -> None:
        self._nbytes -= _frame_bytes(self._frames.pop(index))


def _frames_shown_at(times: Times, moments: np.ndarray) -> np.ndarray:
    """Return the index of the frame that is shown at each moment; -1 before the first."""
    return np.searchsorted(times, moments + TIME_TOLERANCE, "right") - 1


def _frame_bytes(frame: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in frame.planes)
