"""The audio of a source: the command to read it, the opened audio, and its batches.

`child/audio.py` executes the command. A batch covers every sample, at the sample rate of the task, from number `first`
to before `stop`: in a chunk in the slot, or in a silent chunk, which is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from reelscribe.contract.source import AudioInfo, Span
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import AudioTask
from reelscribe.decode_pool.commands import DecodedBatch, Opened, ReadCommand
from reelscribe.decode_pool.slots import Slots
from reelscribe.results.jobs import SavedAudio


class Stretch(NamedTuple):
    """A range of samples with its presentation time."""

    first: int
    """Number of the first sample."""
    stop: int
    """Number of the first sample after the range."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""

    def times(self, sample_rate: int) -> tuple[float, float]:
        """Return its start and its end, in seconds of presentation time, for a sample rate in Hz."""
        return self.start_seconds, round(self.start_seconds + (self.stop - self.first) / sample_rate, 6)


@dataclass(frozen=True)
class OpenedAudio(Opened):
    """Facts about a source's audio, as far as it was read."""

    info: AudioInfo
    """Description of the audio stream."""
    samples: int | None
    """Number of samples in the source, at the sample rate of the task; None until its end was read."""
    why_incomplete: str | None
    """Why audio is missing or damaged; None if nothing is missing in what was read."""
    sample_rate: int
    """Sample rate of the task, in Hz."""

    @property
    def total(self) -> int | None:
        """Number of samples; None until the end of the source was read."""
        return self.samples

    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the samples from `first` to before `stop`; see `Opened.share`."""
        # The number of samples is known once all audio has been decoded. Until then, use the container's duration.
        samples = self.samples or max(1.0, self.info.duration_seconds * self.sample_rate)
        seconds = 0.0 if stop is None else (stop - first) / self.sample_rate
        share = ((samples if stop is None else stop) - first) / samples
        return min(1.0, max(0.0, share)), seconds

    def to_save(self) -> SavedAudio:
        """Return what the ledger keeps."""
        return SavedAudio(self.info, self.why_incomplete)


@dataclass(frozen=True, kw_only=True)
class DecodedAudioBatch(DecodedBatch):
    """The audio of a source from sample `first` to before `stop`."""

    chunks: list[SampleArray]
    """The chunks to transcribe, (samples,) int16 each, valid until `release`; may be empty."""
    audible: list[Stretch]
    """The stretch of each of these chunks."""
    silent: list[Stretch]
    """The stretches of the silent chunks, whose samples are not sent."""
    sample_rate: int
    """Sample rate of the chunks, in Hz."""

    @property
    def items(self) -> Sequence[SampleArray]:
        """Chunks to transcribe."""
        return self.chunks

    @property
    def nbytes(self) -> int:
        """Size of the chunks to transcribe, in bytes."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def _copied(self) -> dict[str, Any]:
        return {"chunks": [chunk.copy() for chunk in self.chunks]}


@dataclass(frozen=True)
class ReadAudio(ReadCommand[OpenedAudio, DecodedAudioBatch]):
    """The command to read the audio of a source, and the parser of its replies."""

    task: AudioTask
    """Which audio to read, and how."""
    chunks_per_batch: int
    """Largest number of chunks to transcribe in a batch."""

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of samples to read, in ascending order."""
        spans_json = [asdict(span) for span in spans]
        return {"read_audio": {**vars(self), "task": self.task.to_json(), "spans": spans_json}}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedAudio:
        """Parse the content of an "opened" reply."""
        return OpenedAudio(**{**reply, "info": AudioInfo(**reply["info"])}, sample_rate=self.task.sample_rate)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedAudio, slots: Slots) -> DecodedAudioBatch:
        """Parse the content of a "batch" reply. The chunks are views of the slot, where each follows the one before."""
        rows = {name: [Stretch(*row) for row in reply[name]] for name in ("audible", "silent")}
        ends = list(accumulate(chunk.stop - chunk.first for chunk in rows["audible"]))
        # A batch without a slot has no chunks, and any slot has room for 0 samples.
        samples = slots.array(reply["slot"] or 0, (ends[-1] if ends else 0,), np.int16)
        chunks = np.split(samples, ends[:-1]) if ends else []
        fields = {**reply, **rows, "sample_rate": opened.sample_rate}
        return DecodedAudioBatch(**fields, chunks=chunks, slots=slots)
