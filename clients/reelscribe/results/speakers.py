"""Who speaks when: what the ledger keeps of a speaker model's answers, and the speakers of what is said.

The ledger keeps the embeddings of all voices. When a source is done, its track makes turns of them, which the ledger
keeps with the facts about the source. The speakers of segments and words follow from the turns when a record is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from reelscribe.contract.fields import read_number, read_text
from reelscribe.contract.outcomes import Silence, SpeechFailure, Translation, Turn, Utterance
from reelscribe.contract.speech import Word
from reelscribe.contract.voices import ChunkVoices
from reelscribe.results.batches import SavedBatch

Spoken = TypeVar("Spoken", Utterance, Translation)

NEAR_SECONDS = 0.5
"""Largest distance in seconds of what is said from the turn of its speaker, if no turn overlaps it."""


class TimedVoices(NamedTuple):
    """The voices of a chunk that lies from `start` to `end`, in seconds of presentation time."""

    start: float
    end: float
    voices: ChunkVoices


@dataclass(frozen=True)
class SavedVoiceBatch(SavedBatch):
    """The results of the samples from `first` to before `stop`; each chunk is in one of three lists."""

    chunks: Sequence[TimedVoices] = ()
    silences: Sequence[Silence] = ()
    failures: Sequence[SpeechFailure] = ()

    @property
    def amount(self) -> float:
        """Number of seconds in which voices were looked for, or that are silent."""
        return self.unsent + sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def unsent(self) -> float:
        """Number of seconds that are silent."""
        return sum(silence.end - silence.start for silence in self.silences)

    def _lists(self) -> tuple[Sequence[object], Sequence[object], Sequence[tuple[float, float, str]]]:
        chunks = [(chunk.start, chunk.end, chunk.voices.to_json()) for chunk in self.chunks]
        silences = [(silence.start, silence.end) for silence in self.silences]
        failures = [(failure.start, failure.end, failure.error) for failure in self.failures]
        return chunks, silences, failures

    @classmethod
    def from_json(cls, first: int, stop: int, anchor: int | None, results: str) -> SavedVoiceBatch:
        """Restore a batch from a row of the ledger.

        Args:
            first: Number of the first sample of the batch.
            stop: The number after that of the last sample.
            anchor: None.
            results: What `results_to_json` returned.
        """
        chunks, silences, failures = json.loads(results)
        return cls(
            first,
            stop,
            anchor,
            chunks=[TimedVoices(*_times(*times), ChunkVoices.from_json(value)) for *times, value in chunks],
            silences=[Silence(*_times(*times)) for times in silences],
            failures=[SpeechFailure(*_times(*times), read_text("error", error)) for *times, error in failures],
        )


def _times(start: float, end: float) -> tuple[float, float]:
    return read_number("start", start), read_number("end", end)


class SpeakerTimes:
    """Tells who speaks in a stretch of time."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        """Take the turns of a source, in the order of time."""
        self._names = [*dict.fromkeys(turn.speaker for turn in turns)]
        self._speakers = np.array([self._names.index(turn.speaker) for turn in turns], np.intp)
        self._starts = np.array([turn.start for turn in turns])
        self._ends = np.array([turn.end for turn in turns])

    def speaker(self, start: float, end: float) -> str | None:
        """Return who speaks most of a stretch, in seconds, or else who is near; None if nobody is.

        Of two who both speak all of it, it is who began first.
        """
        if not self._names:
            return None
        together = np.minimum(self._ends, end) - np.maximum(self._starts, start)
        if (together > 0).any():
            most = np.bincount(self._speakers, together.clip(0))[self._speakers]  # of the speaker of each turn
            return self._names[int(self._speakers[np.where(together > 0, most, 0).argmax()])]
        nearest = int(together.argmax())
        return self._names[self._speakers[nearest]] if together[nearest] >= -NEAR_SECONDS else None


def with_speakers(utterances: Iterable[Spoken], turns: Sequence[Turn]) -> Iterator[Spoken]:
    """Yield what is said, or its translation, with its speakers.

    A segment with words is cut where the speaker changes. One without words has the speaker of most of it. One whose
    speaker is known already, as that of a channel that was transcribed by itself, stays as it is.

    Args:
        utterances: The segments, in the order of time.
        turns: Who speaks when, in the order of time.
    """
    times = SpeakerTimes(turns)
    for utterance in utterances:
        if utterance.speaker is not None:
            yield utterance
        elif utterance.words:
            yield from _cut(utterance, _with_words(utterance, times))
        else:
            yield replace(utterance, speaker=times.speaker(utterance.start, utterance.end))


def _with_words(utterance: Spoken, times: SpeakerTimes) -> list[Word]:
    """Return the words with their speakers; one of whom nobody knows it has that of a word beside it."""
    speakers = [times.speaker(word.start, word.end) for word in utterance.words or ()]
    known = next((speaker for speaker in speakers if speaker), None)
    words = []
    for word, speaker in zip(utterance.words or (), speakers, strict=True):
        known = speaker or known
        words.append(replace(word, speaker=known))
    return words


def _cut(utterance: Spoken, words: Sequence[Word]) -> Iterator[Spoken]:
    parts = [tuple(part) for _, part in groupby(words, key=attrgetter("speaker"))]
    texts = _texts(utterance.text, parts)
    for k, (part, text) in enumerate(zip(parts, texts, strict=True)):
        yield replace(
            utterance,
            start=part[0].start if k else utterance.start,
            end=part[-1].end if k + 1 < len(parts) else utterance.end,
            text=text,
            words=part,
            speaker=part[0].speaker,
        )


def _texts(text: str, parts: Sequence[Sequence[Word]]) -> list[str]:
    """Return the text of each part: what is between its first word and that of the next part."""
    if len(parts) == 1:
        return [text]
    edges, at = [], 0
    for part in parts:
        edges.append(at)
        for k, word in enumerate(part):
            found = text.find(word.text, at)
            if found < 0:  # the words are not those of the text
                return [" ".join(word.text.strip() for word in part) for part in parts]
            if not k:
                edges[-1] = found
            at = found + len(word.text)
    edges[0] = 0
    return [text[start:stop].strip() for start, stop in zip(edges, [*edges[1:], len(text)], strict=True)]
