"""Pack the stretches of a recording in which somebody speaks into chunks, and put what is said back in its time.

A speech model takes the stretches of a chunk for one recording. They are longer than what is spoken, so that no word
touches the next stretch, and a pause is heard between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.speech import ChunkTranscript, SampleArray, SpeechSegment, Word

MOST_CHUNK_LENGTHS = 10
"""A chunk is packed from at most so many times its own longest length, so that a batch does not wait for hours."""

_SAME_TIME_SECONDS = 0.1
"""Largest difference between the presentation times of adjacent pieces of a stretch, in seconds."""


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

    def trim(self, first: int, stop: int, sample_rate: int) -> Stretch:
        """Return what of it lies from sample `first` to before `stop`; it is empty if nothing does."""
        first = max(first, self.first)
        seconds = round(self.start_seconds + (first - self.first) / sample_rate, 6)
        return self._replace(first=first, stop=max(first, min(stop, self.stop)), start_seconds=seconds)


class AudioChunk(NamedTuple):
    """Samples of one channel, or of the mix of all, that a model hears as one."""

    first: int
    """Number of the first sample, from 0 and at the sample rate of the task: that of all samples before it."""
    stop: int
    """Number of the first sample after the chunk."""
    start_seconds: float
    """Presentation time of the first sample, in seconds."""
    samples: SampleArray
    """(stop - first,) int16, mono, without a gap in their presentation times; if it is packed, those of `heard`."""
    silent: bool = False
    """True if the chunk is silent, as the task defines it."""
    speaker: str | None = None
    """Name of its channel, such as "channel 1"; None for the mix, and for a recording with one channel."""
    repeated: bool = False
    """True if a channel before has the same audio at the same time."""
    packed: tuple[Stretch, ...] = ()
    """The stretches that it is packed from, if nobody speaks between them; empty if it has all of its samples."""

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The stretches of its samples, in order."""
        return self.packed or (Stretch(self.first, self.stop, self.start_seconds, self.speaker),)

    @property
    def heard(self) -> tuple[Stretch, ...]:
        """The stretches of its samples, in order; none if it is silent or repeated, so that it is not sent."""
        return () if self.silent or self.repeated else self.stretches

    def unheard(self, sample_rate: int) -> tuple[Stretch, ...]:
        """Return the stretches that are silent, for a sample rate in Hz."""
        return (
            self.stretches
            if self.silent
            else tuple(
                Stretch(before.stop, after.first, before.times(sample_rate)[1], self.speaker)
                for before, after in pairwise(self.stretches)
            )
        )

    def trim(self, first: int, stop: int, sample_rate: int) -> AudioChunk:
        """Return a chunk with only the samples from number `first` to before `stop`, which lie in this one."""
        if (first, stop) == (self.first, self.stop):
            return self
        pieces, heard, at = [np.empty(0, np.int16)], [], 0
        for stretch in self.stretches:
            kept = stretch.trim(first, stop, sample_rate)
            if kept.first < kept.stop:
                heard.append(kept)
                pieces.append(self.samples[at + kept.first - stretch.first : at + kept.stop - stretch.first])
            at += stretch.stop - stretch.first
        seconds = Stretch(self.first, self.stop, self.start_seconds).trim(first, stop, sample_rate).start_seconds
        return self._replace(
            first=first,
            stop=stop,
            start_seconds=seconds,
            samples=pieces[-1] if len(heard) == 1 else np.concatenate(pieces),
            silent=self.silent or not heard,
            packed=tuple(heard) if self.packed else (),
        )


def numbered(chunks: Iterable[SampleArray], sample_rate: int) -> Iterator[AudioChunk]:
    """Yield the chunks of a recording with the numbers of their samples, and with their times from 0.

    Args:
        chunks: (N,) int16 each, in order.
        sample_rate: Sample rate in Hz.
    """
    first = 0
    for samples in chunks:
        yield AudioChunk(first, first + len(samples), round(first / sample_rate, 6), samples)
        first += len(samples)


def pack(pieces: Iterable[AudioChunk], limit: int, sample_rate: int) -> Iterator[AudioChunk]:
    """Pack the pieces of a recording in which somebody speaks into chunks.

    What comes after a chunk does not depend on what is before its end, so that reading may begin there.

    Args:
        pieces: The pieces, in order, which are together the recording or its end. In silent ones, nobody speaks. Those
            of a channel are chunks by themselves, as they come between those of others.
        limit: Largest number of samples in a chunk; no piece is longer.
        sample_rate: Sample rate in Hz.

    Yields:
        The chunks, each from the first to the last of its pieces with speech, and the silent pieces outside of them.
    """
    held: list[AudioChunk] = []  # begins with speech
    for piece in pieces:
        if held and not _fits(held, piece, limit, sample_rate):
            yield from _packed(held)
            held = []
        if held or not piece.silent:
            held.append(piece)
        else:
            yield piece
    if held:
        yield from _packed(held)


def _fits(held: Sequence[AudioChunk], piece: AudioChunk, limit: int, sample_rate: int) -> bool:
    last = held[-1]
    expected = last.start_seconds + (last.stop - last.first) / sample_rate
    return (
        piece.speaker is None
        and abs(piece.start_seconds - expected) <= _SAME_TIME_SECONDS
        and piece.stop - held[0].first <= MOST_CHUNK_LENGTHS * limit
        and (piece.silent or sum(len(each.samples) for each in [*held, piece] if not each.silent) <= limit)
    )


def _packed(held: Sequence[AudioChunk]) -> Iterator[AudioChunk]:
    """Yield the chunk of pieces, of which the first has speech, and the silent ones after it."""
    spoken = [piece for piece in held if not piece.silent]
    stretches: list[Stretch] = []
    for piece in spoken:
        if stretches and stretches[-1].stop == piece.first:
            stretches[-1] = stretches[-1]._replace(stop=piece.stop)
        else:
            stretches += piece.stretches
    yield spoken[0]._replace(
        stop=spoken[-1].stop,
        samples=np.concatenate([piece.samples for piece in spoken]),
        packed=tuple(stretches) if len(stretches) > 1 else (),
    )
    yield from (piece for piece in held if piece.first >= spoken[-1].stop)


def unpack(
    heard: Sequence[Stretch], transcript: ChunkTranscript, sample_rate: int
) -> Iterator[tuple[Stretch, ChunkTranscript]]:
    """Yield each stretch of a chunk with the transcript of it, whose times count from its start.

    A segment that begins in one stretch and ends in another is split between words, if their times are known.
    Otherwise it belongs to the stretch that has most of it.

    Args:
        heard: The stretches, in order.
        transcript: The transcript of the chunk.
        sample_rate: Sample rate in Hz.
    """
    if len(heard) == 1:
        yield heard[0], transcript
        return
    start = 0.0
    ends = np.cumsum([(stretch.stop - stretch.first) / sample_rate for stretch in heard])
    parts: list[list[SpeechSegment]] = [[] for _ in heard]
    for segment in transcript.segments:
        for k, part in _parts(segment, ends):
            parts[k].append(part)
    for stretch, end, segments in zip(heard, ends.tolist(), parts, strict=True):
        moved = tuple(_moved(segment, start, end) for segment in segments)
        yield stretch, replace(transcript, text=" ".join(each.text for each in moved), segments=moved)
        start = end


def _parts(segment: SpeechSegment, ends: NDArray[np.float64]) -> Iterator[tuple[int, SpeechSegment]]:
    """Yield the parts of a segment, each with the number of its stretch."""
    if not segment.words:
        starts = np.concatenate([[0.0], ends[:-1]])
        shared = np.minimum(ends, segment.end) - np.maximum(starts, segment.start)
        yield int(shared.argmax()), segment
        return
    middles = [(word.start + word.end) / 2 for word in segment.words]
    of_words = np.minimum(np.searchsorted(ends, middles, side="right"), len(ends) - 1).tolist()
    rows = groupby(zip(of_words, segment.words, strict=True), key=itemgetter(0))
    groups = [(k, tuple(word for _, word in row)) for k, row in rows]
    at = 0
    for number, (k, words) in enumerate(groups):
        is_first, is_last = number == 0, number == len(groups) - 1
        stop = len(segment.text) if is_last else _end_of(words, segment.text, at)
        yield (
            k,
            replace(
                segment,
                start=segment.start if is_first else words[0].start,
                end=segment.end if is_last else words[-1].end,
                text=segment.text[at:stop].strip(),
                words=words,
            ),
        )
        at = stop


def _end_of(words: Iterable[Word], text: str, at: int) -> int:
    """Return where words end in a text that has them from a position on."""
    for word in words:
        spelled = word.text.strip()
        found = text.find(spelled, at)
        at = found + len(spelled) if found >= 0 else at
    return at


def _moved(segment: SpeechSegment, start: float, end: float) -> SpeechSegment:
    """Return a segment with times that count from `start`, and that lie before `end`."""

    def moved(seconds: float) -> float:
        return round(min(max(seconds, start), end) - start, 3)

    words = segment.words and tuple(
        replace(word, start=moved(word.start), end=moved(word.end)) for word in segment.words
    )
    return replace(segment, start=moved(segment.start), end=moved(segment.end), words=words)
