"""The results of a shot model: what the ledger keeps of its answers, and the shots that follow from them.

The ledger keeps the frames that may end a shot or are part of a transition, which are few. Shots are made of them when
a record is read, as those of one batch may begin in the batch before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reelscribe.contract.fields import read_confidence, read_count, read_number
from reelscribe.contract.outcomes import Failure
from reelscribe.contract.source import Section, Transition, VideoInfo
from reelscribe.results.batches import SavedBatch, failure_from_row
from reelscribe.results.jobs import SavedVideo

CUT_FRAMES = 2
"""Largest number of frames of a transition that counts as a cut. TransNetV2 marks one frame of a cut, seldom two, and
all frames of a dissolve (`scripts/bench defaults/cuts --set tuning --weights FOLDER`)."""


class MarkedFrame(NamedTuple):
    """A frame that may end a shot, or is part of a transition."""

    frame_index: int
    """Index in the video."""
    end_seconds: float
    """Presentation time at which it disappears, in seconds."""
    cut: float
    """Probability (0 to 1) that a shot ends with it."""
    transition: float
    """Probability (0 to 1) that it is part of a transition."""


@dataclass(frozen=True)
class SavedShotBatch(SavedBatch):
    """The results of the frames from index `first` to before `stop`."""

    marked: Sequence[MarkedFrame] = ()
    """Those of which a probability exceeds the threshold, in order."""
    failures: Sequence[Failure] = ()
    """Those that cannot be decoded, or have no probabilities, in order."""

    @property
    def amount(self) -> float:
        """Number of frames that did not fail."""
        return self.stop - self.first - len(self.failures)

    def _lists(self) -> tuple[Sequence[MarkedFrame], Sequence[object], Sequence[object]]:
        failures = [(failure.frame_index, failure.pts_seconds, failure.error) for failure in self.failures]
        return self.marked, (), failures

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedShotBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: Index of the first frame of the batch.
            stop: The index after that of the last frame.
            anchor: None.
            results: What `results_to_json` returned.
        """
        marked, _, failures = json.loads(results)
        return cls(
            first,
            stop,
            anchor,
            marked=[_marked_frame(*row) for row in marked],
            failures=[failure_from_row(*row) for row in failures],
        )


def _marked_frame(frame_index: int, end_seconds: float, cut: float, transition: float) -> MarkedFrame:
    index, seconds = read_count("frame_index", frame_index), read_number("end_seconds", end_seconds)
    return MarkedFrame(
        index, seconds, read_confidence("cut", cut) or 0.0, read_confidence("transition", transition) or 0.0
    )


def shots_of(
    marked: Iterable[MarkedFrame], video: VideoInfo, threshold: float
) -> tuple[list[Section], list[Transition | None]]:
    """Make shots of the frames that a model has marked.

    Successive frames that may end a shot are one transition: the next shot begins after the last of them.

    Args:
        marked: The marked frames of the whole video, in order.
        video: The video.
        threshold: Probability above which a frame ends a shot, or is part of a transition.

    Returns:
        The shots in order, which together hold every frame; and for each, how it follows the one before, None for the
        first one.
    """
    ends: list[MarkedFrame] = []
    transitions: list[Transition | None] = [None]
    for run in _runs(marked):
        last = [
            frame
            for k, frame in enumerate(run)
            if frame.cut > threshold and not (k + 1 < len(run) and run[k + 1].cut > threshold)
        ]
        for frame in last:
            if frame.frame_index + 1 < video.frames:
                ends.append(frame)
                transitions.append("gradual" if len(run) > CUT_FRAMES else "cut")
    edges = [0, *(end.frame_index + 1 for end in ends), video.frames]
    seconds = [video.start_seconds, *(end.end_seconds for end in ends), video.end_seconds]
    shots = [Section(*each) for each in zip(edges, edges[1:], seconds, seconds[1:], strict=False)]
    return shots, transitions


def shots_of_job(
    opened: SavedVideo, settings: Mapping[str, Any], batches: Iterable[SavedShotBatch]
) -> tuple[Sequence[Section], Sequence[Transition | None]]:
    """Return the shots that a job has found, with all of its results.

    Args:
        opened: The video. Our own detector finds its shots when it opens it.
        settings: Everything except the model that decides the shots, as JSON.
        batches: The saved batches of a shot model, in order.

    Returns:
        The shots in order, and how each follows the one before; nothing of the latter if the detector does not tell.
    """
    if opened.shots is not None:
        return opened.shots, ()
    threshold = read_number("threshold", settings["detection"]["threshold"])
    return shots_of((frame for batch in batches for frame in batch.marked), opened.info, threshold)


def _runs(marked: Iterable[MarkedFrame]) -> list[list[MarkedFrame]]:
    """Return the marked frames in groups of successive ones."""
    runs: list[list[MarkedFrame]] = []
    for frame in marked:
        if runs and runs[-1][-1].frame_index + 1 == frame.frame_index:
            runs[-1].append(frame)
        else:
            runs.append([frame])
    return runs
