"""Transfer the audio of a source from a decode process to its parent.

The parent sends a `ReadAudio` command with the spans to read, and the process runs `feed`, which replies::

    {"opened": {"info", "samples", "why_incomplete"}}         again at the end of the file, when `samples` is known
    {"batch": {"first", "stop", "slot", "audible", "silent"}}
    ...

The parent parses the replies into `OpenedAudio` and `DecodedAudioBatch`. A batch covers every sample, at the sample
rate of the task, from number `first` to before `stop`: in a chunk in the slot, or in a silent chunk, which is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from reelscribe.contract.source import AudioInfo, Span
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.portions.spans import Portion
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import MediaError, NoSound

MAX_SILENT_CHUNKS = 1024
"""Largest number of silent chunks in a batch. Without it, nothing would be saved in hours of silence."""


class Stretch(NamedTuple):
    """A range of samples with its presentation time."""

    first: int
    """Number of the first sample."""
    stop: int
    """Number of the first sample after the range."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""


@dataclass(frozen=True)
class OpenedAudio:
    """Facts about a source's audio, as far as it was read."""

    info: AudioInfo
    """Description of the audio stream."""
    samples: int | None
    """Number of samples in the source, at the sample rate of the task; None until its end was read."""
    why_incomplete: str | None
    """Why audio is missing or damaged; None if nothing is missing in what was read."""


@dataclass(frozen=True, kw_only=True)
class DecodedAudioBatch(DecodedBatch):
    """The audio of a source from sample `first` to before `stop`."""

    chunks: list[SampleArray]
    """The chunks to transcribe, (samples,) int16 each, valid until `release`; may be empty."""
    audible: list[Stretch]
    """The stretch of each of these chunks."""
    silent: list[Stretch]
    """The stretches of the silent chunks, whose samples are not sent."""

    @property
    def nbytes(self) -> int:
        """Size of the chunks to transcribe, in bytes."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def _copied(self) -> Self:
        return replace(self, chunks=[chunk.copy() for chunk in self.chunks], slot=None)


@dataclass(frozen=True)
class ReadAudio:
    """The command to read the audio of a source, and the parser of its replies."""

    task: AudioTask
    """Which audio to read, and how."""
    chunks_per_batch: int
    """Largest number of chunks to transcribe in a batch."""

    def for_portion(self, portion: Portion, opened: OpenedAudio | None) -> Self:  # noqa: ARG002 - there is only one
        """Return this command: one process reads the source."""
        return self

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the JSON of the command, with the spans of samples to read, in ascending order."""
        spans_json = [asdict(span) for span in spans]
        return {"read_audio": {**vars(self), "task": self.task.to_json(), "spans": spans_json}}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedAudio:
        """Parse the content of an "opened" reply."""
        return OpenedAudio(**{**reply, "info": AudioInfo(**reply["info"])})

    def parse_batch(self, reply: dict[str, Any], _: OpenedAudio, slots: Slots) -> DecodedAudioBatch:
        """Parse the content of a "batch" reply. The chunks are views of the slot, where each follows the one before."""
        rows = {name: [Stretch(*row) for row in reply[name]] for name in ("audible", "silent")}
        ends = list(accumulate(chunk.stop - chunk.first for chunk in rows["audible"]))
        # A batch without a slot has no chunks, and any slot has room for 0 samples.
        samples = slots.array(reply["slot"] or 0, (ends[-1] if ends else 0,), np.int16)
        chunks = np.split(samples, ends[:-1]) if ends else []
        return DecodedAudioBatch(**{**reply, **rows}, chunks=chunks, slots=slots)


def feed(channel: WorkerChannel, task: Any, spans: list[Any], chunks_per_batch: int) -> float:
    """Execute a `ReadAudio` command in the decode process.

    Args:
        channel: Connection to the parent.
        task: JSON of the AudioTask.
        spans: JSON of the spans of samples to read, in ascending order.
        chunks_per_batch: Largest number of chunks to transcribe in a batch.

    Returns:
        Seconds of audio that were decoded, including audio before the spans.

    Raises:
        NoSound: The file has video but no audio.
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    audio_task = AudioTask.from_json(task)
    with Audio(audio_task, channel.heartbeat) as audio:
        if audio.info is None and not audio.has_video:
            raise MediaError("expected sound, or at least pictures, got neither")
        if audio.info is None:
            raise NoSound("it has no sound")
        audio.file.check()
        channel.queue(opened={"info": asdict(audio.info), "samples": None, "why_incomplete": None})
        wanted = [Span(**span) for span in spans]
        _AudioFeed(channel, audio, wanted, audio_task.sample_rate, chunks_per_batch).run()
        return audio.read_seconds


@dataclass
class _Batch:
    """A batch that is being filled. Its fields are those of the "batch" reply."""

    first: int
    stop: int
    slot: int | None = None
    audible: list[Stretch] = field(default_factory=list)
    silent: list[Stretch] = field(default_factory=list)


class _AudioFeed:
    """Sends the spans of a source's audio in batches of up to `max_chunks` chunks to transcribe."""

    def __init__(
        self,
        channel: WorkerChannel,
        audio: Audio,
        spans: Sequence[Span],
        sample_rate: int,
        max_chunks: int,
    ) -> None:
        self._channel, self._audio, self._spans = channel, audio, spans
        self._sample_rate, self._max_chunks = sample_rate, max_chunks
        # There are no spans if a process died after its last batch and another one carries on.
        self._first = spans[0].first if spans else 0
        self._batch = _Batch(self._first, self._first)
        self._latest_seconds = float("-inf")

    def run(self) -> None:
        try:
            for chunk in self._audio.chunks(self._first):
                self._channel.heartbeat()
                for wanted in self._wanted_of(chunk):
                    self._add(wanted)
                if self._is_last(chunk):
                    break
            else:
                assert self._audio.info
                self._audio.file.check()
                info, samples = asdict(self._audio.info), self._audio.samples_read
                self._channel.queue(
                    opened={"info": info, "samples": samples, "why_incomplete": self._audio.why_incomplete}
                )
        except MediaError:
            self._send_batch()  # what came before the damage
            raise
        self._send_batch()

    def _wanted_of(self, chunk: AudioChunk) -> Iterator[AudioChunk]:
        """Yield the parts of a chunk that lie in the spans.

        This is all of it or nothing, unless the spans come from other library versions, with which chunks differed.
        """
        for span in self._spans:
            first = max(span.first, chunk.first)
            stop = chunk.stop if span.stop is None else min(span.stop, chunk.stop)
            if first < stop:
                yield chunk.trim(first, stop, self._sample_rate)

    def _is_last(self, chunk: AudioChunk) -> bool:
        """Return whether all spans end with this chunk or before it."""
        return not self._spans or (self._spans[-1].stop is not None and self._spans[-1].stop <= chunk.stop)

    def _add(self, chunk: AudioChunk) -> None:
        # The stretches of a batch are sorted by time later, so their times must ascend.
        if chunk.first != self._batch.stop or chunk.start_seconds < self._latest_seconds:
            self._send_batch(next_first=chunk.first)
        self._latest_seconds = chunk.start_seconds
        batch = self._batch
        stretch = Stretch(chunk.first, chunk.stop, chunk.start_seconds)
        if chunk.silent:
            batch.silent.append(stretch)
        else:
            self._write(chunk.samples)
            batch.audible.append(stretch)
        batch.stop = chunk.stop
        if len(batch.audible) == self._max_chunks or len(batch.silent) == MAX_SILENT_CHUNKS:
            self._send_batch()

    def _write(self, samples: SampleArray) -> None:
        batch = self._batch
        if batch.slot is None:
            batch.slot = self._channel.take_slot()
        begin = sum(stretch.stop - stretch.first for stretch in batch.audible)
        self._channel.array(batch.slot, (begin + len(samples),), np.int16)[begin:] = samples

    def _send_batch(self, next_first: int | None = None) -> None:
        """Send the batch unless it is empty, and begin the next one, by default where this one ends.

        Raises SourceChanged if the batch may be of other bytes.
        """
        self._audio.file.check()
        batch = self._batch
        if len(batch.audible) == self._max_chunks:
            self._channel.send(batch=vars(batch))
        elif batch.stop > batch.first:
            self._channel.queue(batch=vars(batch))
        first = batch.stop if next_first is None else next_first
        self._batch = _Batch(first, first)
