"""What decode processes are measured against: a pool without processes, which decodes in the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.source import Source, Span
from reelscribe.decode.audio import Audio, AudioChunk
from reelscribe.decode.source_file import digest_file
from reelscribe.decode_pool.audio_feed import AudioReading, DecodedAudioBatch, OpenedAudio
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import NoSound
from reelscribe.run.options import SpeechOptions, chunk_samples


class LoopPool(DecodePool):
    """Reads one file after the other; between two chunks the loop may do something else.

    For runs that begin anew: it reads all of a file.
    """

    def __init__(self, slot_bytes: int, batches_held: int) -> None:
        super().__init__(1, slot_bytes, batches_held)
        self._busy_seconds = 0.0
        self._decoded = 0.0

    @property
    def busy_seconds(self) -> float:
        """That the loop decoded."""
        return self._busy_seconds

    @property
    def decoded(self) -> float:
        """Seconds of sound."""
        return self._decoded

    async def digest_file(self, path: str) -> Source:
        """In a thread, as reading and hashing leave the loop alone there."""
        return await asyncio.to_thread(digest_file, path)

    async def read(self, reading: Any, spans: Sequence[Span]) -> AsyncGenerator[Any, None]:
        """What the source is, and its parts, as a decode process makes them."""
        assert isinstance(reading, AudioReading)
        assert list(spans) == [Span()]
        async with self._seats:
            began = time.monotonic()
            with Audio(reading.task) as audio:
                if audio.info is None:
                    raise NoSound("it has no sound")
                yield OpenedAudio(audio.info, None, None)
                chunks: list[AudioChunk] = []
                for chunk in audio.chunks():
                    chunks.append(chunk)
                    self._busy_seconds += time.monotonic() - began
                    await asyncio.sleep(0)
                    if sum(not chunk.silent for chunk in chunks) == reading.chunks_per_batch:
                        yield await self._part(chunks)
                        chunks = []
                    began = time.monotonic()
                if chunks:
                    yield await self._part(chunks)
                self._decoded += audio.read_seconds
                yield OpenedAudio(audio.info, audio.samples, audio.cut)

    async def _part(self, chunks: Sequence[AudioChunk]) -> DecodedAudioBatch:
        heard = [chunk for chunk in chunks if not chunk.silent]
        ends = np.cumsum([len(chunk.samples) for chunk in heard]).tolist()
        slot = await self._slots.take() if heard else None
        samples = self._slots.array(slot or 0, (ends[-1] if ends else 0,), np.int16)
        if heard:
            np.concatenate([chunk.samples for chunk in heard], out=samples)
        return DecodedAudioBatch(
            first=chunks[0].first,
            stop=chunks[-1].stop,
            chunks=np.split(samples, ends[:-1]) if heard else [],
            heard=[(chunk.first, chunk.stop, chunk.start_seconds) for chunk in heard],
            silent=[(chunk.first, chunk.stop, chunk.start_seconds) for chunk in chunks if chunk.silent],
            slot=slot,
            slots=self._slots,
        )


@dataclass(frozen=True)
class InTheLoop(SpeechOptions):
    """Options of a run that decodes in the event loop."""

    def pool(self, description: SpeechDescription, requests_in_flight: int) -> DecodePool:
        """No processes."""
        return LoopPool(self.prebatch(description) * 2 * chunk_samples(description), requests_in_flight)
