"""A decode pool that decodes in the event loop, which speech_delivery.py compares with one of processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.source import Source, Span
from reelscribe.decode.audio import Audio, AudioChunk
from reelscribe.decode_pool.audio import DecodedAudioBatch, OpenedAudio, ReadAudio, Stretch
from reelscribe.decode_pool.child_main import digest_file
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import NoAudio
from reelscribe.run.tracks.audio import chunk_samples
from reelscribe.run.tracks.transcripts import SpeechOptions


class LoopPool(DecodePool):
    """Reads one file after the other, and lets the event loop do something else between two chunks.

    It always reads the whole file, so it is only for runs that do not resume.
    """

    def __init__(self, slot_bytes: int, batches_held: int) -> None:
        super().__init__(1, slot_bytes, batches_held)
        self._busy_seconds = 0.0
        self._decoded = 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds that the event loop spent decoding."""
        return self._busy_seconds

    @property
    def decoded(self) -> float:
        """Seconds of audio that were decoded."""
        return self._decoded

    async def digest_file(self, path: str, size: int) -> Source:  # noqa: ARG002 - as DecodePool has it
        """Return the digest of a file; a thread reads and hashes it, so that the loop goes on."""
        return await asyncio.to_thread(digest_file, path)

    async def read(
        self, reading: Any, spans: Sequence[Span], begun: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Any, None]:
        """Yield the description of a source and its batches, as a decode process does."""
        assert isinstance(reading, ReadAudio)
        assert list(spans) == [Span()]
        async with self._permits:
            begun()
            began = time.monotonic()
            with Audio(reading.task) as audio:
                if audio.info is None:
                    raise NoAudio("it has no audio")
                yield OpenedAudio(audio.info, None, None, reading.task.sample_rate)
                chunks: list[AudioChunk] = []
                for chunk in audio.chunks():
                    chunks.append(chunk)
                    self._busy_seconds += time.monotonic() - began
                    await asyncio.sleep(0)
                    if sum(not chunk.silent for chunk in chunks) == reading.chunks_per_batch:
                        yield await self._batch(chunks, reading.task.sample_rate)
                        chunks = []
                    began = time.monotonic()
                if chunks:
                    yield await self._batch(chunks, reading.task.sample_rate)
                self._decoded += audio.read_seconds
                yield OpenedAudio(audio.info, audio.samples_read, audio.why_incomplete, reading.task.sample_rate)

    async def _batch(self, chunks: Sequence[AudioChunk], sample_rate: int) -> DecodedAudioBatch:
        audible = [chunk for chunk in chunks if not chunk.silent]
        ends = np.cumsum([len(chunk.samples) for chunk in audible]).tolist()
        slot = await self._slots.take() if audible else None
        samples = self._slots.array(slot or 0, (ends[-1] if ends else 0,), np.int16)
        if audible:
            np.concatenate([chunk.samples for chunk in audible], out=samples)
        return DecodedAudioBatch(
            first=chunks[0].first,
            stop=chunks[-1].stop,
            chunks=np.split(samples, ends[:-1]) if audible else [],
            audible=[Stretch(chunk.first, chunk.stop, chunk.start_seconds) for chunk in audible],
            silent=[Stretch(chunk.first, chunk.stop, chunk.start_seconds) for chunk in chunks if chunk.silent],
            slot=slot,
            slots=self._slots,
            sample_rate=sample_rate,
        )


@dataclass(frozen=True)
class LoopOptions(SpeechOptions):
    """Options of a run that decodes in the event loop."""

    def pool(self, workers: int, description: SpeechDescription, requests_in_flight: int) -> DecodePool:  # noqa: ARG002
        """Return the pool without processes."""
        return LoopPool(self.batch_size(description) * 2 * chunk_samples(description), requests_in_flight)
