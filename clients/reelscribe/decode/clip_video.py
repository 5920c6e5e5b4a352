"""Read the clips of a video: the frames of each that a model takes.

The clips of a video whose shots are not known yet are read while the shots are looked for, in the same decoding. Which
frames a clip takes follows from its end, so frames that it may take are held until then. A clip that takes others, or
would have to hold too much, is decoded again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import av
import numpy as np

from reelscribe.contract.frames import FrameArray, InputSize
from reelscribe.contract.source import Section, Span
from reelscribe.decode.clips import ClipTask
from reelscribe.decode.sampling import TIME_TOLERANCE, Times
from reelscribe.decode.shots import CONTEXT_FRAMES, CutFinder, shots_between
from reelscribe.decode.video import OpenVideo

HELD_BYTES = 2**28
"""The most bytes of frames that are held until their clip ends: 80 frames of 1080p."""


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
            MediaError: The file cannot be opened again.
        """
        if self._task.cutting.cut == "windows":
            spans = [replace(span, anchor=None) for span in spans]
        numbers = _Numbers(spans)
        if self.count is None and self.can_go_back:
            yield from self._search(numbers)
        else:
            if self.count is None:
                self.find_shots(self._task.cutting.detection)
            yield from self._read([self._choose(*each) for each in self._numbered(self._all_clips(), numbers)])
        self.count = numbers.count

    def _numbered(self, sections: Iterable[Section], numbers: _Numbers) -> Iterator[tuple[int, Section]]:
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
        open_clips = deque[_OpenClip]()
        for index, picture in self.pictures(wanted):
            while chosen and chosen[0].wanted[0] <= index:
                open_clips.append(self._open(chosen.popleft()))
            while open_clips and open_clips[0].clip.wanted[-1] < index:
                yield open_clips.popleft().read
            for clip in open_clips:
                clip.add(index, self.seconds(index), picture)
        yield from (clip.read for clip in open_clips)
        yield from (self._open(clip).read for clip in chosen)

    def _search(self, numbers: _Numbers) -> Iterator[ReadClip]:
        """Look for shots, and read the clips of each as soon as its end is known."""
        cutting, end = self._task.cutting, self.info.end_seconds
        finder, held = CutFinder(cutting.detection), HeldFrames(self.times, self._step, cutting.longest_seconds)
        cuts, start = [0], 0

        def clips_until(stop: float) -> Iterator[ReadClip]:
            sections = cutting.divide(self.seconds(start), stop, self.times)
            chosen = [self._choose(*each) for each in self._numbered(sections, numbers)]
            pictures = [held.take(clip.wanted) for clip in chosen]
            if None in pictures:  # one more decoding for all of them, and not one for each
                yield from self._read(chosen)
                return
            for clip, frames in zip(chosen, pictures, strict=True):
                opened = self._open(clip)
                for index, picture in zip(clip.wanted, frames or (), strict=True):
                    opened.add(index, self.seconds(index), picture)
                yield opened.read

        def look_at(found: Sequence[int]) -> Iterator[ReadClip]:
            nonlocal start
            for cut in found:
                cuts.append(cut)
                if cutting.is_start(self.seconds(cut), self.seconds(start), end):
                    yield from clips_until(self.seconds(cut))
                    start = cut
                    held.begin(cut)

        for index, picture in self.pictures(range(len(self.times))):
            held.add(index, picture)
            found = list[int]()
            with suppress(av.FFmpegError):  # it cannot convert some pixel formats
                found = finder.add(index, picture)
            yield from look_at(found)
        yield from look_at(finder.end())
        yield from clips_until(end)
        self.shots = shots_between([*cuts, len(self.times)], self.times, end)

    def _open(self, clip: ChosenClip) -> _OpenClip:
        return _OpenClip(clip, self.scaler(clip.size, self._task.resize))

    def _all_clips(self) -> list[Section]:
        return self._task.cutting.clips(self.shots or (), self.times, self.info.end_seconds)

    @property
    def _step(self) -> float:
        """The time that a frame is taken at is a multiple of so many seconds after the start of its clip."""
        return 1 / self._task.budget.fps / 2

    def _choose(self, ordinal: int, span: Section) -> ChosenClip:
        """Choose frames of a clip: those that are shown about in the middle of equally long parts of it.

        The times are rounded to multiples of `_step`, so that only few frames can be taken, wherever the clip ends.
        """
        budget = self._task.budget
        # Rounded, so that windows of the same length have the same number of frames.
        available, seconds = span.end_frame - span.start_frame, round(span.end_seconds - span.start_seconds, 6)
        count = budget.frame_count(available, seconds)
        middles = np.rint((np.arange(count) + 0.5) * seconds / count / self._step) * self._step
        wanted = np.unique(_shown(self.times, span.start_seconds + middles).clip(span.start_frame, span.end_frame - 1))
        if len(wanted) < count:  # the clip is short, or frames of a variable rate are shown for longer than a part
            wanted = span.start_frame + ((np.arange(count) + 0.5) * available / count).astype(np.intp)
        return ChosenClip(ordinal, span, wanted.tolist(), budget.frame_size(count, *self.info.shown_size))


class _Numbers:
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


class _OpenClip:
    """A clip that is being read."""

    def __init__(self, clip: ChosenClip, scale: Callable[[av.VideoFrame], FrameArray | None]) -> None:
        self.clip, self._scale = clip, scale
        self.read = ReadClip(clip, [], [], [])

    def add(self, index: int, seconds: float, picture: av.VideoFrame) -> None:
        """Add a frame if the clip takes it and it can be scaled."""
        if index in self.clip.wanted and (image := self._scale(picture)) is not None:
            self.read.frame_indices.append(index)
            self.read.pts_seconds.append(seconds)
            self.read.images.append(image)


class HeldFrames:
    """Holds the frames that the clip which is being decoded may take, and the last ones, as a clip may begin there."""

    def __init__(self, times: Times, step: float, longest_seconds: float) -> None:
        """Begin with the first frame.

        Args:
            times: Presentation time of each frame of the video in seconds, ascending; at least one.
            step: The clip may take the frames that are shown at multiples of so many seconds after its start.
            longest_seconds: Nothing is held of a clip that is longer, because it will be divided.
        """
        self._times, self._longest, self._step = np.asarray(times), longest_seconds, step
        self._pictures: dict[int, av.VideoFrame] = {}
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
        for index in [index for index in self._pictures if index < first]:
            self._drop(index)

    def add(self, index: int, picture: av.VideoFrame) -> None:
        """Hold the next frame that could be decoded."""
        if self._times[index] > self._end + TIME_TOLERANCE:
            self._candidates.clear()
        self._pictures[index] = picture
        self._nbytes += _size(picture)
        for old in [old for old in self._pictures if old <= index - CONTEXT_FRAMES and old not in self._candidates]:
            self._drop(old)
        if self._nbytes > HELD_BYTES:
            self._candidates.clear()
            self._pictures.clear()
            self._nbytes = 0

    def take(self, wanted: Sequence[int]) -> list[av.VideoFrame] | None:
        """Return the frames of these indices; None if one of them is not held."""
        pictures = [self._pictures.get(index) for index in wanted]
        return None if any(picture is None for picture in pictures) else pictures  # type: ignore[return-value]

    def _drop(self, index: int) -> None:
        self._nbytes -= _size(self._pictures.pop(index))


def _shown(times: Times, moments: np.ndarray) -> np.ndarray:
    """Return the index of the frame that is shown at each moment; -1 before the first."""
    return np.searchsorted(times, moments + TIME_TOLERANCE, "right") - 1


def _size(picture: av.VideoFrame) -> int:
    return sum(plane.buffer_size for plane in picture.planes)
