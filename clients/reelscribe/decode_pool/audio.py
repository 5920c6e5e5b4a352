"""The audio of a source: the command to read it, the opened audio, its batches, and how it is read.

A parent sends `ReadAudio` and parses the replies; the decode process executes the command with `feed`. A batch covers
every sample, at the sample rate of the task, from number `first` to before `stop`: in a chunk in the slot, or in one
that is not sent, because it is silent or repeats another channel. The replies are those of `child_channel.py`, with::

    {"opened": {"info", "samples", "why_incomplete"}}       again at the end of the file, when `samples` is known
    {"batch": {..., "audible": [[first, stop, presentation time, speaker], ...], "silent": [...]}}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from reelscribe.contract.source import AudioInfo, Span
from reelscribe.contract.speech import SampleArray, transcribed_channels
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask
from reelscribe.decode_pool.child_channel import ChildChannel, Feed, queue_opened
from reelscribe.decode_pool.commands import DecodedBatch, Opened, ReadCommand, Slots
from reelscribe.errors import MediaError, NoAudio
from reelscribe.results.jobs import SavedAudio


class Stretch(NamedTuple):
    """A range of samples with its presentation time."""

    first: int
    """Number of the first sample."""
    stop: int
    """Number of the first sample after the range."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""
    speaker: str | None = None
    """Name of its channel; None if it is of the audio of all."""

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
    channels: int = 1
    """Number of channels that are read, each by itself; 1 for the mix."""

    @property
    def total(self) -> int | None:
        """Number of samples; None until the end of the source was read."""
        return self.samples

    def share(self, first: int, stop: int | None) -> tuple[float, float]:
        """Return the part of the samples from `first` to before `stop`; see `Opened.share`."""
        # The number of samples is known once all audio has been decoded. Until then, use the container's duration.
        samples_a_second = self.sample_rate * self.channels
        samples = self.samples or max(1.0, self.info.duration_seconds * samples_a_second)
        seconds = 0.0 if stop is None else (stop - first) / samples_a_second
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
        info = AudioInfo(**reply["info"])
        channels = transcribed_channels(self.task.channels, info.channels)
        return OpenedAudio(**{**reply, "info": info}, sample_rate=self.task.sample_rate, channels=channels)

    def parse_batch(self, reply: dict[str, Any], opened: OpenedAudio, slots: Slots) -> DecodedAudioBatch:
        """Parse the content of a "batch" reply. The chunks are views of the slot, where each follows the one before."""
        rows = {name: [Stretch(*row) for row in reply[name]] for name in ("audible", "silent")}
        ends = list(accumulate(chunk.stop - chunk.first for chunk in rows["audible"]))
        # A batch without a slot has no chunks, and any slot has room for 0 samples.
        samples = slots.array(reply["slot"] or 0, (ends[-1] if ends else 0,), np.int16)
        chunks = np.split(samples, ends[:-1]) if ends else []
        fields = {**reply, **rows, "sample_rate": opened.sample_rate}
        return DecodedAudioBatch(**fields, chunks=chunks, slots=slots)


MAX_SILENT_CHUNKS = 1024
"""Largest number of silent chunks in a batch. Without it, nothing would be saved in hours of silence."""


def feed(channel: ChildChannel, task: Any, spans: list[Any], chunks_per_batch: int) -> float:
    """Execute a `ReadAudio` command.

    Args:
        channel: Connection to the parent.
        task: JSON of the AudioTask.
        spans: JSON of the spans of samples to read, in ascending order.
        chunks_per_batch: Largest number of chunks to transcribe in a batch.

    Returns:
        Seconds of audio that were decoded, including audio before the spans.

    Raises:
        NoAudio: The file has video but no audio.
        MediaError: The file cannot be read, or not to its end. Batches with everything before were sent.
        SourceChanged: The file is not the one with the `file_stat` of the task, or was written to.
    """
    audio_task = AudioTask.from_json(task)
    with Audio(audio_task, channel.heartbeat) as audio:
        if audio.info is None and not audio.has_video:
            raise MediaError("expected audio, or at least pictures, got neither")
        if audio.info is None:
            raise NoAudio("it has no audio")
        queue_opened(channel, audio.file, info=asdict(audio.info), samples=None, why_incomplete=None)
        chunks = _AudioFeed(channel, audio, [Span(**span) for span in spans], audio_task.sample_rate, chunks_per_batch)
        chunks.send_all(chunks.wanted(), chunks.add)
        return audio.read_seconds


class _AudioFeed(Feed):
    """Sends the spans of a source's audio in batches of up to `max_chunks` chunks to transcribe."""

    def __init__(
        self, channel: ChildChannel, audio: Audio, spans: Sequence[Span], sample_rate: int, max_chunks: int
    ) -> None:
        # There are no spans if a process died after its last batch and another one carries on.
        super().__init__(channel, audio.file, ("audible", "silent"), spans[0].first if spans else 0)
        self._audio, self._spans = audio, spans
        self._sample_rate, self._max_chunks = sample_rate, max_chunks
        self._latest_seconds = float("-inf")

    def wanted(self) -> Iterator[AudioChunk]:
        """Yield the parts of chunks that lie in the spans, and queue at the end of the file how long it is.

        Such a part is all of a chunk, unless the spans come from other library versions, with which chunks differed.
        """
        for chunk in self._audio.chunks(self.first):
            for span in self._spans:
                first = max(span.first, chunk.first)
                stop = chunk.stop if span.stop is None else min(span.stop, chunk.stop)
                if first < stop:
                    yield chunk.trim(first, stop, self._sample_rate)
            if self._is_last(chunk):
                return
        assert self._audio.info
        info, samples, incomplete = asdict(self._audio.info), self._audio.samples_read, self._audio.why_incomplete
        queue_opened(self._channel, self._audio.file, info=info, samples=samples, why_incomplete=incomplete)

    def _is_last(self, chunk: AudioChunk) -> bool:
        """Return whether all spans end with this chunk or before it."""
        return not self._spans or (self._spans[-1].stop is not None and self._spans[-1].stop <= chunk.stop)

    def add(self, chunk: AudioChunk) -> None:
        # The stretches of a batch are sorted by time later, so their times must ascend.
        if chunk.first != self.stop or chunk.start_seconds < self._latest_seconds:
            self.end(next_first=chunk.first)
        self._latest_seconds = chunk.start_seconds
        stretch = chunk.first, chunk.stop, chunk.start_seconds, chunk.speaker
        if chunk.silent:
            self.lists["silent"].append(stretch)
        elif not chunk.repeated:
            self.write(chunk.samples)
            self.lists["audible"].append(stretch)
        self.stop = chunk.stop
        is_full = len(self.lists["audible"]) == self._max_chunks
        if is_full or len(self.lists["silent"]) == MAX_SILENT_CHUNKS:
            self.end(is_full=is_full)
