"""The audio of a source, on its way from a decode process to its parent.

The parent sends a `ReadAudio` command with the spans that are missing, and the process runs `feed`, which replies::

    {"opened": {"info", "samples", "cut"}}                    again at the end, when `samples` is known
    {"batch": {"first", "stop", "slot", "audible", "silent"}}
    ...

The replies become `OpenedAudio` and `DecodedAudioBatch`es. A batch accounts for every sample, at the sample rate of the
task, from number `first` to before `stop`: it lies in a chunk in the slot, or in a silent one that is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from reelscribe.contract.source import AudioInfo, Span
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import MediaError, NoSound

ATTEMPTS = 2
"""How often a file is tried. A process that died or hung is retried, as the file need not be the reason."""

MOST_SILENT = 1024
"""Largest number of silent chunks in a batch, so that hours of silence are saved step by step."""


class Stretch(NamedTuple):
    """A range of samples with its presentation time."""

    first: int
    stop: int
    start_seconds: float
    """Presentation time of the first sample."""


@dataclass(frozen=True)
class OpenedAudio:
    """What is known of a source's audio."""

    info: AudioInfo
    samples: int | None
    """Number of samples of the whole source; None until its end was read."""
    cut: str | None
    """Why the file is incomplete; None if it is whole, as far as it was read."""


@dataclass(frozen=True, kw_only=True)
class DecodedAudioBatch(DecodedBatch):
    """The audio of a source from sample `first` to before `stop`."""

    chunks: list[SampleArray]
    """The chunks to transcribe, (samples,) int16 each, valid until `release`; there may be none."""
    audible: list[Stretch]
    """Where each of these chunks lies in the source."""
    silent: list[Stretch]
    """Where the silent chunks lie, which are not sent."""


@dataclass(frozen=True)
class ReadAudio:
    """The command to read a source's audio, and how its replies are parsed."""

    task: AudioTask
    chunks_per_batch: int
    """Largest number of chunks to transcribe in a batch."""

    def attempts(self) -> Sequence[Self]:
        """Return the commands to try in turn while processes die or hang."""
        return [self] * ATTEMPTS

    def to_json(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the command for these spans of the samples."""
        spans_json = [asdict(span) for span in spans]
        return {"read_audio": {**vars(self), "task": self.task.to_json(), "spans": spans_json}}

    def parse_opened(self, reply: dict[str, Any]) -> OpenedAudio:
        """Read an "opened" reply."""
        return OpenedAudio(**{**reply, "info": AudioInfo(**reply["info"])})

    def parse_batch(self, reply: dict[str, Any], _: OpenedAudio, slots: Slots) -> DecodedAudioBatch:
        """Read a "batch" reply; its chunks are views on their slot, where they lie one after the other."""
        rows = {name: [Stretch(*row) for row in reply[name]] for name in ("audible", "silent")}
        ends = list(accumulate(chunk.stop - chunk.first for chunk in rows["audible"]))
        samples = slots.array(reply["slot"] or 0, (ends[-1] if ends else 0,), np.int16)
        chunks = np.split(samples, ends[:-1]) if ends else []
        return DecodedAudioBatch(**{**reply, **rows}, chunks=chunks, slots=slots)


def feed(channel: WorkerChannel, task: Any, spans: list[Any], chunks_per_batch: int) -> float:
    """Carry out the command in the decode process; the arguments are its fields.

    Returns:
        Seconds of audio that were decoded, including what only lay before a span.

    Raises:
        NoSound: The file has video but no audio.
        MediaError: The file cannot be read, or not to its end. Everything before is sent.
    """
    audio_task = AudioTask.from_json(task)
    with Audio(audio_task, channel.heartbeat) as audio:
        if audio.info is None and not audio.has_video:
            raise MediaError("expected sound, or at least pictures, got neither")
        if audio.info is None:
            raise NoSound("it has no sound")
        channel.send(opened={"info": asdict(audio.info), "samples": None, "cut": None})
        wanted = [Span(**span) for span in spans]
        _AudioFeed(channel, audio, audio.info, wanted, audio_task.sample_rate, chunks_per_batch).run()
        return audio.read_seconds


@dataclass
class _Batch:
    """The batch under construction, with the fields of its reply."""

    first: int
    stop: int
    slot: int | None = None
    audible: list[Stretch] = field(default_factory=list)
    silent: list[Stretch] = field(default_factory=list)


class _AudioFeed:
    """Sends the spans of a source's audio in batches of up to `most` chunks to transcribe."""

    def __init__(
        self,
        channel: WorkerChannel,
        audio: Audio,
        info: AudioInfo,
        spans: Sequence[Span],
        sample_rate: int,
        most: int,
    ) -> None:
        self._channel, self._audio, self._info, self._spans = channel, audio, info, spans
        self._sample_rate, self._most = sample_rate, most
        self._first = spans[0].first if spans else 0  # none are left if a process died when it was done
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
                samples, cut = self._audio.samples_read, self._audio.why_incomplete
                self._channel.send(opened={"info": asdict(self._info), "samples": samples, "cut": cut})
        except MediaError:
            self._send_batch()  # what came before the damage
            raise
        self._send_batch()

    def _wanted_of(self, chunk: AudioChunk) -> Iterator[AudioChunk]:
        """Cut out of a chunk what lies in the spans: all or nothing, unless other codec versions made other cuts."""
        for span in self._spans:
            first = max(span.first, chunk.first)
            stop = chunk.stop if span.stop is None else min(span.stop, chunk.stop)
            if first < stop:
                seconds = round(chunk.start_seconds + (first - chunk.first) / self._sample_rate, 6)
                samples = chunk.samples[first - chunk.first : stop - chunk.first]
                yield AudioChunk(first, stop, seconds, samples, chunk.silent)

    def _is_last(self, chunk: AudioChunk) -> bool:
        """Whether no span goes on after the chunk."""
        return not self._spans or (self._spans[-1].stop is not None and self._spans[-1].stop <= chunk.stop)

    def _add(self, chunk: AudioChunk) -> None:
        # The stretches of a batch are sorted by time later, so time must not go back within one.
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
        if len(batch.audible) == self._most or len(batch.silent) == MOST_SILENT:
            self._send_batch()

    def _write(self, samples: SampleArray) -> None:
        batch = self._batch
        if batch.slot is None:
            batch.slot = self._channel.take_slot()
        begin = sum(stretch.stop - stretch.first for stretch in batch.audible)
        self._channel.array(batch.slot, (begin + len(samples),), np.int16)[begin:] = samples

    def _send_batch(self, next_first: int | None = None) -> None:
        """Send the batch, unless it is empty, and begin the next one, by default where this one ends."""
        batch = self._batch
        if batch.stop > batch.first:
            self._channel.send(batch=vars(batch))
        first = batch.stop if next_first is None else next_first
        self._batch = _Batch(first, first)
