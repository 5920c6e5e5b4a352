"""Processes that decode.

A process of its own for each file being read keeps the event loop free, uses every core, and lets a decoder crash or
hang without hurting the run. Frames and samples are not copied: the process writes them into shared memory and what is
sent over HTTP is a view on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from types import TracebackType

from reelscribe.contract.source import Source, Span
from reelscribe.decode_pool.process import Batch, Decoder, Opened, Reading
from reelscribe.decode_pool.slots import DecodedBatch, Slots
from reelscribe.errors import DecoderDied, DecoderStalled

STALL_SECONDS = 60.0
"""A process that shows no progress for so long is ended. Network storage may take half of that to wake up."""

READY_BATCHES = 4
"""Besides those that are being filled, so many are nearly always in use; more where more requests are in flight."""

DIGEST_ATTEMPTS = 2
"""As for decoding: perhaps it was not the file."""


class DecodePool:
    """Up to `workers` decode processes, started when first needed and replaced when one dies, hangs or is worn out."""

    def __init__(
        self, workers: int, slot_bytes: int, batches_held: int, *, stall_seconds: float = STALL_SECONDS
    ) -> None:
        """As many as `batches_held` parts can be kept before decoding has to wait."""
        self.workers = workers
        self.failures = 0
        """Processes that died or were ended because they hung."""
        # Each process fills one slot, and holds out one that it has filled.
        self._slots = Slots(2 * workers + batches_held, slot_bytes, ready=2 * workers + READY_BATCHES)
        self._stall_seconds = stall_seconds
        self._seats = asyncio.Semaphore(workers)
        self._idle: list[Decoder] = []
        self._all: set[Decoder] = set()
        self._past_seconds = self._past_decoded = 0.0
        self._stopped = False

    async def __aenter__(self) -> DecodePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(decoder.kill() for decoder in self._all))
        self._slots.close()

    @property
    def busy_seconds(self) -> float:
        """That its processes were waited for, all of them together."""
        return self._past_seconds + sum(decoder.busy_seconds for decoder in self._all)

    @property
    def decoded(self) -> float:
        """Frames or seconds of sound that its processes decoded, of files that they read to the end."""
        return self._past_decoded + sum(decoder.decoded for decoder in self._all)

    def stop(self) -> None:
        """End all processes at once; what is being decoded raises DecoderDied."""
        self._stopped = True
        for decoder in self._all:
            decoder.end()

    async def digest_file(self, path: str) -> Source:
        """Size and digest of a file. Raises MediaError."""
        for _ in range(DIGEST_ATTEMPTS - 1):
            with suppress(DecoderDied, DecoderStalled):
                return await self._digest_file_once(path)
        return await self._digest_file_once(path)

    async def _digest_file_once(self, path: str) -> Source:
        async with self._decoder() as decoder:
            return await decoder.digest_file(path)

    async def read(
        self, reading: Reading[Opened, Batch], spans: Sequence[Span]
    ) -> AsyncGenerator[Opened | Batch, None]:
        """What the source is, perhaps more than once, and the parts of `spans`, each to be released.

        If the process dies or hangs, another one tries what is missing. Raises MediaError.
        """
        attempts = reading.attempts()
        for count, attempt in enumerate(attempts, 1):
            try:
                async with self._decoder() as decoder:
                    parts = decoder.read(attempt, spans)
                    async with aclosing(parts):
                        async for part in parts:
                            if isinstance(part, DecodedBatch):
                                spans = _after(spans, part)
                            yield part
            except (DecoderDied, DecoderStalled) as error:
                if self._stopped:
                    raise
                if count == len(attempts):
                    raise type(error)(f"{error}; like {count - 1} before it") from None
            else:
                return

    @asynccontextmanager
    async def _decoder(self) -> AsyncGenerator[Decoder, None]:
        """A decoder of one's own for one file."""
        async with self._seats:
            decoder = await self._next()
            try:
                yield decoder
            except (DecoderDied, DecoderStalled):
                self.failures += not self._stopped
                raise
            finally:
                if decoder.ready:
                    self._idle.append(decoder)
                else:  # dead, worn out, or in the middle of a file that nobody wants any more
                    await self._discard(decoder)

    async def _next(self) -> Decoder:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.ready:
                return decoder
            await self._discard(decoder)  # it died while nobody looked
        if self._stopped:
            raise DecoderDied("decoding was stopped")
        decoder = await Decoder.start(self._slots, self._stall_seconds)
        self._all.add(decoder)
        if self._stopped:  # while it was starting
            decoder.end()
        return decoder

    async def _discard(self, decoder: Decoder) -> None:
        self._all.discard(decoder)
        self._past_seconds += decoder.busy_seconds
        self._past_decoded += decoder.decoded
        await decoder.kill()


def _after(spans: Sequence[Span], part: DecodedBatch) -> list[Span]:
    """What is left of `spans` when `part` is done; parts come in the order of the spans."""
    left = [span for span in spans if span.stop is None or span.stop > part.stop]
    if left and left[0].first < part.stop:
        left[0] = Span(part.stop, left[0].stop, part.anchor)
    return left
