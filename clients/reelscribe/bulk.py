"""The main path: sources -> frames -> captions -> records, many at once, each record in its source's place."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reelscribe.client import CaptionClient
from reelscribe.decode_pool import DecodedFrames, DecodePool
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.media import Caption, ModelDescription, Source, VideoInfo
from reelscribe.prebatch import frames_per_request
from reelscribe.progress import RunProgress
from reelscribe.records import Model, Record
from reelscribe.sources import find_sources
from reelscribe.video import VideoTask
from reelscribe.writers import write_annotations

OPEN_SOURCES = 64
"""Sources that are being decoded or wait, for a decoder or for an earlier one to be written; bounds memory."""


@dataclass(frozen=True)
class CaptionOptions:
    """What is captioned, and how many things are done at once."""

    every: int = 1
    """N: frames 0, N, 2N, ... are captioned."""
    frames_per_request: int = 32
    """At most; fewer if they would exceed 8 MB."""
    requests_in_flight: int = 4
    decode_workers: int = 2


class CaptionRun:
    """One run over many sources with one model."""

    def __init__(
        self, client: CaptionClient, description: ModelDescription, options: CaptionOptions, progress: RunProgress
    ) -> None:
        self._client, self._options, self._progress = client, options, progress
        self._frame = description.frame
        self._model = Model(description.name, description.revision)
        most = min(options.frames_per_request, description.max_frames)
        self._frames_per_request = frames_per_request(description.frame.nbytes, most)
        self._settings: dict[str, Any] = {
            "every": options.every,
            "resize": "exact",
            "dtype": description.dtype,
            "width": description.frame.width,
            "height": description.frame.height,
            "prompt": description.prompt,
            "generation": dict(description.generation),
        }
        self._in_flight = asyncio.Semaphore(options.requests_in_flight)

    async def records(self, paths: Sequence[str]) -> AsyncGenerator[Record, None]:
        """One record for each path, in that order.

        A source that cannot be read becomes a record that says why. Raises ServerError if the server is gone.
        """
        waiting = iter(paths)
        open_sources: deque[asyncio.Task[Record]] = deque()
        pool = DecodePool(self._options.decode_workers, self._frames_per_request * self._frame.nbytes)
        async with pool:
            try:
                while True:
                    while len(open_sources) < OPEN_SOURCES and (path := next(waiting, None)) is not None:
                        open_sources.append(asyncio.create_task(self._record(path, pool)))
                    if not open_sources:
                        return
                    yield await open_sources.popleft()
            finally:
                await _cancel(open_sources)

    async def _record(self, path: str, pool: DecodePool) -> Record:
        record = Record(Source(path), self._model, self._settings)
        try:
            await self._caption(path, pool, record)
        except (MediaError, RequestRefused) as error:
            record.fail(error)
        record.captions.sort(key=lambda caption: caption.frame_index)
        self._progress.finished(record)
        return record

    async def _caption(self, path: str, pool: DecodePool, record: Record) -> None:
        requests: set[asyncio.Task[None]] = set()
        try:
            damage = await self._decode(path, pool, record, requests)
            await asyncio.gather(*requests)
        finally:
            await _cancel(requests)
        if damage:
            raise damage

    async def _decode(
        self, path: str, pool: DecodePool, record: Record, requests: set[asyncio.Task[None]]
    ) -> MediaError | None:
        """Add a request for every part that is decoded. Damage is returned: what came before it is still captioned."""
        try:
            async with pool.decoder() as decoder:
                async for part in decoder.decode(VideoTask(path, self._frame, self._options.every)):
                    if isinstance(part, Source):
                        record.source = part
                        continue
                    if isinstance(part, VideoInfo):
                        record.media = part
                        self._progress.expect(len(range(0, part.frames, self._options.every)))
                        continue
                    await self._in_flight.acquire()
                    request = asyncio.create_task(self._send(part, record))
                    request.add_done_callback(partial(self._sent, part))
                    requests.add(request)
                    _raise_first_error(requests)
        except MediaError as error:
            return error
        return None

    async def _send(self, part: DecodedFrames, record: Record) -> None:
        texts = await self._client.caption(part.frames)
        record.captions += [Caption(*row) for row in zip(part.frame_indices, part.pts_seconds, texts, strict=True)]
        self._progress.captioned(len(texts))

    def _sent(self, part: DecodedFrames, _: asyncio.Task[None]) -> None:
        """Runs after every request, also one that is cancelled before it starts."""
        part.release()
        self._in_flight.release()


def _raise_first_error(requests: set[asyncio.Task[None]]) -> None:
    """Stop decoding a source whose requests fail; forget those that went well."""
    for request in [request for request in requests if request.done()]:
        requests.discard(request)
        request.result()


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End all of them; what they raise on the way has been raised before."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Summary:
    """What came of a run."""

    sources: int
    failed: int
    captions: int
    seconds: float

    def __str__(self) -> str:
        rate = self.captions / self.seconds
        return (
            f"{self.sources} sources, {self.failed} failed; {self.captions} captions in {self.seconds:.1f} s"
            f" ({rate:.0f} frames/s)"
        )


async def caption_sources(client: CaptionClient, names: Sequence[str], out: Path, options: CaptionOptions) -> Summary:
    """Caption what `names` stand for into `out`/annotations.jsonl. Raises UsageError and ServerError."""
    start = time.monotonic()
    paths = find_sources(names)
    description = await client.describe()
    failed = captions = 0
    with write_annotations(out / "annotations.jsonl") as write, RunProgress(len(paths)) as progress:
        async with aclosing(CaptionRun(client, description, options, progress).records(paths)) as records:
            async for record in records:
                write(record)
                failed += record.status == "error"
                captions += len(record.captions)
    return Summary(len(paths), failed, captions, time.monotonic() - start)
