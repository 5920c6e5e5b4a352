"""The clips of a video: the command to read them, the opened video, and its batches.

`child/clips.py` executes the command. A batch covers every clip from number `first` to before `stop`: its frames are in
the slot, one clip after the other, or none of them can be decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reelscribe.contract.clips import Clip
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import Section, Span, VideoInfo
from reelscribe.decode.clips import ClipCutting, ClipTask
from reelscribe.decode_pool.commands import DecodedBatch, Opened, ReadCommand
from reelscribe.decode_pool.slots import Slots
from reelscribe.results.batches import SavedBatch, SavedClipBatch
from reelscribe.results.jobs import SavedVideo
from reelscribe.thumbnails.store import ThumbnailTask

USUAL_SHOT_SECONDS = 5.0
"""Average length of a shot, to say about how many clips a run has before it; in films and on the web, it is 3 to 8."""


def likely_clips(cutting: ClipCutting, seconds: float) -> float:
    """Return about how many clips a video of a duration in seconds has, at least one."""
    return max(1.0, seconds / (USUAL_SHOT_SECONDS if cutting.cut == "shots" else cutting.step_seconds))


class SentClip(NamedTuple):
    """A clip whose frames are in a slot."""

    span: Section
    """The frames and the time that it spans."""
    shape: tuple[int, int, int, int]
    """(N, height, width, 3) of its frames."""
    frame_indices: list[int]
    """Index in the video of each of the N frames."""
    pts_seconds: list[float]
    """Presentation time of each of the N frames, in seconds."""


@dataclass(frozen=True)
class OpenedClips(Opened):
    """Facts about a video that are known when it is opened, and once more when its shots have been found."""

    info: VideoInfo
    """Description of the video stream."""
    clips: int | None
    """Number of clips; None as long as shots are looked for."""
    why_incomplete: str | None
    """Why frames are missing; None if the file is complete."""
    shots: Sequence[Section] | None
    """The shots; None if clips are windows, and as long as shots are looked for."""
    cutting: ClipCutting
    """Where the video is cut into clips."""

    @property
    def total(self) -> int | None:
        """Number of clips; None as long as shots are looked for."""
        return self.clips

    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the clips from `first` to before `stop`; see `Opened.share`."""
        seconds = max(0.0, self.info.end_seconds - self.info.start_seconds)
        usual = likely_clips(self.cutting, seconds) if seconds and self.info.average_fps else 0.0
        clips = self.clips if self.clips is not None else max(usual, first + 1)
        share = min(1.0, ((clips if stop is None else stop) - first) / max(1, clips))
        return share, share * seconds

    def share_of(self, batch: DecodedBatch | SavedBatch) -> tuple[float, float]:
        """Return the part of the video that a batch is; see `Opened.share_of`."""
        if self.cutting.cut == "windows":
            return super().share_of(batch)
        # How many clips there are is known at the end, but the shots together are the whole video.
        assert isinstance(batch, DecodedClipBatch | SavedClipBatch)
        seconds = batch.seconds
        return seconds / max(seconds, self.info.end_seconds - self.info.start_seconds, 1e-9), seconds

    def to_save(self) -> SavedVideo:
        """Return what the ledger keeps."""
        return SavedVideo(self.info, self.info.end_seconds, self.why_incomplete, self.shots)


@dataclass(frozen=True, kw_only=True)
class DecodedClipBatch(DecodedBatch):
    """The clips of a video from number `first` to before `stop`."""

    path: str
    """Path of the video."""
    clips: list[SentClip]
    """The clips to describe; may be empty."""
    frames: list[FrameArray]
    """The frames of each of these clips, (N, height, width, 3) uint8 RGB, valid until `release`."""
    undecodable: list[Section]
    """The clips of which no frame can be decoded."""
    prompt: Callable[[Section], str | None]
    """Returns the prompt of a clip; None for that of the model."""

    @property
    def items(self) -> Sequence[Clip]:
        """Clips to describe, with their prompts."""
        return [
            Clip(frames, clip.pts_seconds, self.prompt(clip.span))
            for clip, frames in zip(self.clips, self.frames, strict=True)
        ]

    @property
    def seconds(self) -> float:
        """Length of all clips together."""
        spans = [*(clip.span for clip in self.clips), *self.undecodable]
        return sum(span.end_seconds - span.start_seconds for span in spans)

    @property
    def nbytes(self) -> int:
        """Size of the frames to send, in bytes."""
        return sum(array.nbytes for array in self.frames)

    def _copied(self) -> dict[str, Any]:
        return {"frames": [array.copy() for array in self.frames]}


@dataclass(frozen=True)
class ReadClips(ReadCommand[OpenedClips, DecodedClipBatch]):
    """The command to read clips of a video, and the parser of its replies."""

    task: ClipTask
    """Which clips to read, and how."""
    clips_per_batch: int
    """Largest number of clips in a batch."""
    thumbnails: ThumbnailTask | None = None
    """Which thumbnails to keep of the clips that are read; None for none."""
    prompt: Callable[[Section], str | None] = lambda _: None
    """Returns the prompt of a clip, which stays in the parent; None for that of the model."""

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of clips to read, in ascending order."""
        command = {
            "task": self.task.to_json(),
            "spans": [vars(span) for span in spans],
            "clips_per_batch": self.clips_per_batch,
            "thumbnails": self.thumbnails and self.thumbnails.to_json(),
        }
        return {"read_clips": command}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedClips:
        """Parse the content of an "opened" reply."""
        shots = None if reply["shots"] is None else [Section(*shot) for shot in reply["shots"]]
        fields = {**reply, "info": VideoInfo(**reply["info"]), "shots": shots}
        return OpenedClips(**fields, cutting=self.task.cutting)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedClips, slots: Slots) -> DecodedClipBatch:  # noqa: ARG002 - each clip has its size
        """Parse the content of a "batch" reply. Its frames are views of the slot."""
        clips = [SentClip(Section(*span), tuple(shape), *frames) for span, shape, *frames in reply["clips"]]
        frames, at = [], 0
        # A batch without a slot has no frames, and any slot has room for 0 bytes.
        levels = slots.array(reply["slot"] or 0, (sum(int(np.prod(clip.shape)) for clip in clips),), np.uint8)
        for clip in clips:
            size = int(np.prod(clip.shape))
            frames.append(levels[at : at + size].reshape(clip.shape))
            at += size
        undecodable = [Section(*span) for span in reply["undecodable"]]
        fields = {**reply, "clips": clips, "undecodable": undecodable}
        return DecodedClipBatch(**fields, path=self.task.path, frames=frames, slots=slots, prompt=self.prompt)
