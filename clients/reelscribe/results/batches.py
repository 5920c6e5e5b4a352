"""What came of a batch of frames or a stretch of audio, as the ledger saves it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from reelscribe.contract.annotations import Caption, Failure, Silence, SpeechFailure, Utterance
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word

UNDECODABLE = "it cannot be decoded"


@dataclass(frozen=True)
class SavedFrameBatch:
    """The chosen frames from ordinal `first` to before `stop`, each in one of three lists."""

    first: int
    stop: int
    anchor: int | None
    """Index of the last frame up to its end that was sent to be captioned."""
    captions: Sequence[tuple[int, float, str]] = ()
    """Frame index, presentation time, text."""
    reused: Sequence[tuple[int, float, int]] = ()
    """Frame index, presentation time, index of the frame that was sent in place of it."""
    failures: Sequence[tuple[int, float, str]] = field(default=())
    """Frame index, presentation time, why there is no caption."""

    def results_to_json(self) -> str:
        """The three lists."""
        # In ASCII: a model's text may hold half a surrogate pair, which SQLite does not take.
        return json.dumps([self.captions, self.reused, self.failures], separators=(",", ":"))

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedFrameBatch:
        """The other way round."""
        return cls(first, stop, anchor, *json.loads(results))


def unfold(parts: Iterable[SavedFrameBatch], after: Caption | None = None) -> Iterator[Caption | Failure]:
    """What came of each frame of successive parts, in order; `after` is the last caption before them."""
    index, text = (after.frame_index, after.text) if after else (-1, "")
    for part in parts:
        results: list[Caption | Failure | tuple[int, float, int]] = [
            *(Caption(*row) for row in part.captions),
            *(Failure(*row) for row in part.failures),
            *part.reused,
        ]
        for result in sorted(results, key=_frame_index):
            if isinstance(result, Caption):
                index, text = result.frame_index, result.text
                yield result
            elif isinstance(result, Failure):
                yield result
            elif result[2] == index:
                yield Caption(result[0], result[1], text, index)
            else:
                yield Failure(result[0], result[1], f"nearly equal to frame {result[2]}, which has no caption")


def _frame_index(result: Caption | Failure | Sequence[float]) -> int:
    return result.frame_index if isinstance(result, (Caption, Failure)) else int(result[0])


TOUCHING_SECONDS = 1e-5
"""Times are rounded to the microsecond, so a chunk may seem to begin a little before or after the last one's end."""


@dataclass(frozen=True)
class SavedAudioBatch:
    """The samples from `first` to before `stop`, in three lists; start and end are seconds of presentation time."""

    first: int
    stop: int
    heard: Sequence[tuple[float, float, ChunkTranscript]] = ()
    """Start, end, what was heard."""
    silent: Sequence[tuple[float, float]] = ()
    """Start, end."""
    failures: Sequence[tuple[float, float, str]] = ()
    """Start, end, why nothing was heard."""

    anchor = None

    def results_to_json(self) -> str:
        """The three lists."""
        heard = [(start, end, transcript.to_json()) for start, end, transcript in self.heard]
        # In ASCII: a model's text may hold half a surrogate pair, which SQLite does not take.
        return json.dumps([heard, self.silent, self.failures], separators=(",", ":"))

    @classmethod
    def from_json(cls, first: int, stop: int, _: int | None, results: str) -> SavedAudioBatch:
        """The other way round."""
        heard, silent, failures = json.loads(results)
        heard = [(start, end, ChunkTranscript.from_json(transcript)) for start, end, transcript in heard]
        return cls(first, stop, heard, silent, failures)


def timeline(parts: Iterable[SavedAudioBatch]) -> Iterator[Utterance | Silence | SpeechFailure]:
    """What came of the sound of successive parts, in order; silence that goes on is one."""
    silence: Silence | None = None
    for part in parts:
        stretches: list[tuple[Any, ...]] = [*part.heard, *part.silent, *part.failures]
        for start, end, *what in sorted(stretches, key=itemgetter(0, 1)):
            if not what and silence and abs(start - silence.end) < TOUCHING_SECONDS:
                silence = Silence(silence.start, end)
                continue
            if silence:
                yield silence
            silence = None if what else Silence(start, end)
            if what and isinstance(what[0], ChunkTranscript):
                yield from (_utterance(start, end, what[0], segment) for segment in what[0].segments if segment.text)
            elif what:
                yield SpeechFailure(start, end, what[0])
    if silence:
        yield silence


def _utterance(start: float, end: float, transcript: ChunkTranscript, segment: SpeechSegment) -> Utterance:
    """A segment of a chunk that lies from `start` to `end`, beyond which no model's times go."""

    def on_timeline(seconds: float) -> float:
        return round(min(start + max(0.0, seconds), end), 3)

    words = segment.words
    return Utterance(
        on_timeline(segment.start),
        on_timeline(max(segment.start, segment.end)),
        segment.text,
        transcript.language,
        transcript.no_speech_prob,
        None if words is None else tuple(Word(on_timeline(w.start), on_timeline(w.end), w.text) for w in words),
    )
