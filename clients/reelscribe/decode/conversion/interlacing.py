"""Frames of two fields, each of which has every other line: interlaced video.

Many frames are only marked as interlaced: both of their fields show the same moment, as those of films on television.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

import av
import numpy as np
from av.filter import Graph


def as_progressive(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a frame without the mark of interlaced ones, of which FFmpeg would scale each field by itself.

    Args:
        frame: The frame, which is left as it is.

    Returns:
        A frame with the same pixels, which are not copied.
    """
    if not frame.interlaced_frame:
        return frame
    graph = _unmarking_graph(frame.width, frame.height, frame.format.name)
    graph.vpush(frame)
    return graph.vpull()


@lru_cache(maxsize=1)
def _unmarking_graph(width: int, height: int, pixel_format: str) -> Graph:
    return _graph(width, height, pixel_format, "setfield", "prog")


def with_neighbours(wanted: Sequence[int], frames: int) -> Sequence[int]:
    """Return the frames that `deinterlaced` needs: those that are wanted, and the ones before and after each of them.

    Args:
        wanted: Indices of the frames that are wanted, ascending.
        frames: Number of frames in the video.

    Returns:
        Indices of frames, ascending.
    """
    indices = np.asarray(wanted, np.int64)
    needed = np.unique(np.concatenate([indices - 1, indices, indices + 1]))
    return array("q", needed[(needed >= 0) & (needed < frames)].tobytes())


def deinterlaced(
    frames: Iterable[tuple[int, av.VideoFrame]], wanted: Sequence[int]
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Deinterlace the frames that are marked as interlaced, with FFmpeg's filter `bwdif`.

    What comes of a frame depends on it, the one before and the one after it, and on nothing else: so it is the same
    whichever others are wanted. Where a neighbour is missing, at an end of the video or beside damage, it depends on
    the other one.

    Args:
        frames: Index and content of each frame of `with_neighbours` that can be decoded, in order.
        wanted: Indices of the frames that are wanted, ascending.

    Yields:
        (index, frame) for each wanted frame that can be decoded, in order.
    """

    def is_wanted(index: int) -> bool:
        at = bisect_left(wanted, index)
        return at < len(wanted) and wanted[at] == index

    run: _Run | None = None
    for index, frame in frames:
        if run and not run.goes_on_with(index, frame):
            yield from run.end(is_wanted(run.last))
            run = None
        run = run or _Run(frame)
        done = run.add(index, frame)
        if done and is_wanted(done[0]):
            yield done
    if run:
        yield from run.end(is_wanted(run.last))


class _Run:
    """Successive frames on their way through the filter, which holds one back until it has the next one."""

    last: int
    """Index of the frame that was added last."""

    def __init__(self, first: av.VideoFrame) -> None:
        self._kind = _kind(first)
        self._held = deque[tuple[int, av.VideoFrame]]()
        self._graph: Graph | None = None
        with suppress(av.FFmpegError):  # it does not take frames of fewer than four lines, for example
            self._graph = _graph(*self._kind, "bwdif", "mode=send_frame:parity=auto:deint=interlaced")

    def goes_on_with(self, index: int, frame: av.VideoFrame) -> bool:
        return index == self.last + 1 and _kind(frame) == self._kind

    def add(self, index: int, frame: av.VideoFrame) -> tuple[int, av.VideoFrame] | None:
        """Add the next frame, and return the one before it, deinterlaced; None if there is none."""
        self.last = index
        self._held.append((index, frame))
        if self._graph:
            self._graph.vpush(frame)
        return self._pull() if len(self._held) > 1 else None

    def end(self, is_wanted: bool) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield the last frame, deinterlaced, if it is wanted."""
        if is_wanted:
            if self._graph:
                self._graph.vpush(None)
            yield self._pull()

    def _pull(self) -> tuple[int, av.VideoFrame]:
        index, frame = self._held.popleft()
        filtered = self._graph.vpull() if self._graph else frame
        return index, filtered if frame.interlaced_frame else frame


def _kind(frame: av.VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


def _graph(width: int, height: int, pixel_format: str, name: str, options: str) -> Graph:
    """Return a graph of one filter of FFmpeg."""
    graph = Graph()
    graph.threads = 1  # the machine's cores are used by several decode processes
    # What time base frames have makes no difference, as their times are not used.
    source = graph.add_buffer(
        width=width, height=height, format=av.VideoFormat(pixel_format), time_base=Fraction(1, 25)
    )
    graph.link_nodes(source, graph.add(name, options), graph.add("buffersink")).configure()
    return graph
