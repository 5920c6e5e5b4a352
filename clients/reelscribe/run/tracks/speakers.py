"""Speakers: a speaker model makes embeddings of the voices in a source, which tell who speaks when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from reelscribe.client.operations import Operation, finding_voices
from reelscribe.contract.descriptions import SpeakerModelDescription
from reelscribe.contract.outcomes import Silence, SpeechFailure, Turn
from reelscribe.contract.speech import SampleArray
from reelscribe.contract.voices import ChunkVoices, SpeakerBounds
from reelscribe.decode_pool.audio import DecodedAudioBatch
from reelscribe.errors import RequestRefused, UsageError, missing_package
from reelscribe.reporting.units import Counts
from reelscribe.results.jobs import Job, SavedAudio, SavedSource
from reelscribe.results.records import Kind
from reelscribe.results.speakers import SavedVoiceBatch, TimedVoices
from reelscribe.run.store import Store
from reelscribe.run.tracks.audio import AudioMedium, AudioOptions
from reelscribe.run.tracks.clustering import VERSION, speakers_of
from reelscribe.run.tracks.medium import Medium

PAUSE_SECONDS = 0.5
"""Longest pause of a speaker within a turn, in seconds."""

MOST_VOICES = 40
"""The most parts with an embedding in each second of a chunk. Our models have 2.5 for each speaker, and those of a
server that sends millions would be compared for hours."""

_ROUNDING_SECONDS = 0.001  # by which a voice may end after its chunk

_DECIMALS = 3  # of the times of turns, in seconds, as of those of segments


class SpeakerMedium(AudioMedium):
    """Who speaks when in sources."""

    kind: ClassVar[Kind] = "speakers"
    counts: ClassVar[Counts] = "seconds of voices"
    lacks: ClassVar[str] = "voices"
    description_type = SpeakerModelDescription

    options: SpeakerOptions
    description: SpeakerModelDescription

    @property
    def choice(self) -> str:
        """Name of what is sent."""
        return "audio to the speaker model"

    def operation(self) -> Operation[Sequence[SampleArray], ChunkVoices]:
        """Return the operation that finds voices in chunks."""
        return finding_voices(self.description)

    def results(self, batch: DecodedAudioBatch, answers: Sequence[ChunkVoices | RequestRefused]) -> SavedVoiceBatch:
        """Return the voices of a batch, its silences, and the failures of its other chunks."""
        chunks, failures = [], []
        for stretch, answer in zip(batch.audible, answers, strict=True):
            start, end = stretch.times(batch.sample_rate)
            if isinstance(answer, RequestRefused):
                failures.append(SpeechFailure(start, end, str(answer)))
            elif answer.end - (end - start) > _ROUNDING_SECONDS:
                why = f"speaker model: expected times within the {end - start:g} s of the chunk, got {answer.end:g}"
                failures.append(SpeechFailure(start, end, why))
            elif len(answer.times) > (most := math.ceil(MOST_VOICES * (end - start))):
                why = f"speaker model: expected at most {most} parts in the chunk, got {len(answer.times)}"
                failures.append(SpeechFailure(start, end, why))
            else:
                chunks.append(TimedVoices(start, end, answer))
        silences = [Silence(*stretch.times(batch.sample_rate)) for stretch in batch.silent]
        return SavedVoiceBatch(batch.first, batch.stop, chunks=chunks, silences=silences, failures=failures)

    async def concluded(self, job: Job, store: Store) -> SavedSource | None:
        """Return the facts about the source with its turns, which follow from all of its voices."""
        if not isinstance(job.opened, SavedAudio):
            return None
        chunks = await store.voices(job.id)
        return replace(job.opened, turns=await asyncio.to_thread(turns_of, chunks, self.options.speakers))


@dataclass(frozen=True)
class SpeakerOptions(AudioOptions):
    """How many speakers there may be, and how to cut, decode and send audio."""

    medium: ClassVar[type[Medium]] = SpeakerMedium

    speakers: SpeakerBounds = field(default_factory=SpeakerBounds)
    """The number of speakers of a source; by default any."""

    def settings(self, description: SpeakerModelDescription) -> dict[str, Any]:
        """Return everything except the weights that decides the turns, as JSON. It is part of the key of a job.

        Raises:
            UsageError: An option is out of range, or the library that tells speakers apart is missing.
        """
        if find_spec("scipy") is None:
            raise UsageError(f"speakers: leave them out, or {missing_package('scipy', 'speakers')}")
        self.check_cutting(description)
        return {
            "speakers": str(self.speakers),
            "clustering": VERSION,
            **self.cutting_settings(),
            "sample_rate": description.sample_rate,
            "chunk_seconds": description.chunk_seconds,
            **description.numerics(),
            "generation": dict(description.generation),
        }


def turns_of(chunks: Sequence[TimedVoices], bounds: SpeakerBounds) -> list[Turn]:
    """Return who speaks when in a source.

    Args:
        chunks: The voices of all of its chunks, in the order of time.
        bounds: How many speakers there may be.

    Returns:
        The turns in the order of time. Speakers are numbered in the order in which they first speak.
    """
    chunks = [chunk for chunk in chunks if chunk.voices.times]
    if not chunks:
        return []
    times = np.array(
        [(chunk.start + start, chunk.start + end) for chunk in chunks for start, end in chunk.voices.times]
    )
    embeddings = np.concatenate([chunk.voices.vectors() for chunk in chunks])
    told = [np.unique(each, return_inverse=True)[1] for chunk in chunks if (each := chunk.voices.speakers)]
    numbers = speakers_of(embeddings, np.diff(times)[:, 0], bounds, told if len(told) == len(chunks) else None)
    turns: list[Turn] = []
    last: dict[int, int] = {}
    for (start, end), number in zip(times.tolist(), numbers, strict=True):
        turn = Turn(round(start, _DECIMALS), round(end, _DECIMALS), f"speaker {number + 1}")
        k = last.get(number)
        if k is not None and _goes_on(turns, k, turn):
            turns[k] = replace(turns[k], end=max(turns[k].end, turn.end))
        else:
            last[number] = len(turns)
            turns.append(turn)
    return turns


def _goes_on(turns: Sequence[Turn], k: int, turn: Turn) -> bool:
    """Return whether the speaker of turn `k` goes on in another: the pause is short, and nobody begins in it."""
    alone = k == len(turns) - 1 or turns[-1].start < turns[k].end
    return alone and turn.start - turns[k].end <= PAUSE_SECONDS
