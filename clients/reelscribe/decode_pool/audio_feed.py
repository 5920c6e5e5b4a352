"""The sound of a source, from a decode process to its parent, part by part.

After the order `{"sound": {"task", "spans", "chunks_per_batch"}}` the process says::

    {"opened": {"info", "samples", "cut"}}      if there is sound; and again at its end
    {"part": {"first", "stop", "slot", "heard", "silent"}}

All counts are samples at the rate that was asked for. `samples` is null until all of them were read. A part accounts
for the samples from `first` to before `stop`: chunks that lie in its slot one after the other, and silent ones (for
each: first, stop, presentation time of its first sample).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from reelscribe.contract.source import AudioInfo, Span
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask
from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import MediaError, NoSound

ATTEMPTS = 2
"""While processes die or hang over a file: perhaps it was not the file."""

MOST_SILENT = 1024
"""Chunks of one part: silence of hours is saved, and told of, in pieces."""

Stretch = tuple[int, int, float]
"""First sample, the one after the last, presentation time of the first in seconds."""


@dataclass(frozen=True)
class OpenedAudio:
    """What is known of the sound of a source."""

    info: AudioInfo
    samples: int | None
    """All of them; None until they were read."""
    cut: str | None
    """Why the file is not whole, as far as is known."""


@dataclass(frozen=True, kw_only=True)
class DecodedAudioBatch(DecodedBatch):
    """The samples from `first` to before `stop`."""

    chunks: list[SampleArray]
    """Those to be heard, (N,) int16 each; they are gone after `release`. There may be none."""
    heard: list[Stretch]
    """Where they are."""
    silent: list[Stretch]


@dataclass(frozen=True)
class AudioReading:
    """What a decode process is asked for of a source's sound, and what its answers mean."""

    task: AudioTask
    chunks_per_batch: int

    def attempts(self) -> Sequence[AudioReading]:
        """How it is tried while processes die or hang over it."""
        return [self] * ATTEMPTS

    def order(self, spans: Sequence[Span]) -> dict[str, Any]:
        """For these of the samples."""
        spans_json = [asdict(span) for span in spans]
        return {"sound": {"task": self.task.to_json(), "spans": spans_json, "chunks_per_batch": self.chunks_per_batch}}

    def opened(self, answer: dict[str, Any]) -> OpenedAudio:
        """What is known of the sound."""
        return OpenedAudio(**{**answer, "info": AudioInfo(**answer["info"])})

    def part(self, answer: dict[str, Any], _: OpenedAudio, slots: Slots) -> DecodedAudioBatch:
        """One of its parts."""
        rows = {name: [tuple(row) for row in answer[name]] for name in ("heard", "silent")}
        ends = list(accumulate(stop - first for first, stop, _ in rows["heard"]))
        samples = slots.array(answer["slot"] or 0, (ends[-1] if ends else 0,), np.int16)
        chunks = np.split(samples, ends[:-1]) if ends else []
        return DecodedAudioBatch(**{**answer, **rows}, chunks=chunks, slots=slots)


def feed(orders: WorkerChannel, task: Any, spans: list[Any], chunks_per_batch: int) -> float:
    """Follow the order; returns how many seconds of sound were decoded. Raises MediaError."""
    wanted_sound = AudioTask.from_json(task)
    with Audio(wanted_sound, orders.heartbeat) as audio:
        if audio.info is None and not audio.has_video:
            raise MediaError("expected sound, or at least pictures, got neither")
        if audio.info is None:
            raise NoSound("it has no sound")
        info = asdict(audio.info)
        orders.say(opened={"info": info, "samples": None, "cut": None})
        wanted = [Span(**span) for span in spans]
        first = wanted[0].first if wanted else 0  # none are left where a process died as it was done
        part, latest = _Part(first, first), float("-inf")
        try:
            for chunk in audio.chunks(first):
                orders.heartbeat()
                for piece in _wanted(chunk, wanted, wanted_sound.sample_rate):
                    # What is told of a part is put in order by time, so time does not go back in one.
                    if piece.first != part.stop or piece.start_seconds < latest:
                        part = _hand_over(orders, part, piece.first)
                    latest = piece.start_seconds
                    _put(orders, part, piece)
                    if len(part.heard) == chunks_per_batch or len(part.silent) == MOST_SILENT:
                        part = _hand_over(orders, part, piece.stop)
                if not wanted or (wanted[-1].stop is not None and wanted[-1].stop <= chunk.stop):
                    break
            else:
                orders.say(opened={"info": info, "samples": audio.samples_read, "cut": audio.why_incomplete})
        except MediaError:
            _hand_over(orders, part, part.stop)  # what came before it
            raise
        _hand_over(orders, part, part.stop)
        return audio.read_seconds


def _wanted(chunk: AudioChunk, spans: Sequence[Span], sample_rate: int) -> Iterator[AudioChunk]:
    """What of a chunk lies in the spans: all or nothing, unless another version of the decoders made other cuts."""
    for span in spans:
        first = max(span.first, chunk.first)
        stop = chunk.stop if span.stop is None else min(span.stop, chunk.stop)
        if first < stop:
            seconds = round(chunk.start_seconds + (first - chunk.first) / sample_rate, 6)
            samples = chunk.samples[first - chunk.first : stop - chunk.first]
            yield AudioChunk(first, stop, seconds, samples, chunk.silent)


@dataclass
class _Part:
    """A part that is being made; its fields are those of the answer."""

    first: int
    stop: int
    slot: int | None = None
    heard: list[Stretch] = field(default_factory=list)
    silent: list[Stretch] = field(default_factory=list)


def _put(orders: WorkerChannel, part: _Part, chunk: AudioChunk) -> None:
    where = (chunk.first, chunk.stop, chunk.start_seconds)
    if chunk.silent:
        part.silent.append(where)
    else:
        if part.slot is None:
            part.slot = orders.take_slot()
        begin = sum(stop - first for first, stop, _ in part.heard)
        orders.array(part.slot, (begin + len(chunk.samples),), np.int16)[begin:] = chunk.samples
        part.heard.append(where)
    part.stop = chunk.stop  # last, for what is handed over is done


def _hand_over(orders: WorkerChannel, part: _Part, at: int) -> _Part:
    if part.stop > part.first:
        orders.say(part=vars(part))
    return _Part(at, at)
