"""One source: from its file to a finished job in the ledger, and to its record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from reelscribe.client import CaptionClient
from reelscribe.decode_pool import DecodePool
from reelscribe.decoder import DecodedPart, OpenedVideo
from reelscribe.errors import MediaError, RequestRefused
from reelscribe.ledger import Job, JobVideo, Ledger, LedgerReader, file_stat
from reelscribe.media import Caption, Failure, ModelDescription, Source
from reelscribe.meter import Meter
from reelscribe.options import CaptionOptions
from reelscribe.parts import UNDECODABLE, Part
from reelscribe.records import Model, Record
from reelscribe.video import VideoTask

UNDECODABLE_SHARE = 0.02
"""Encoders leave out a frame now and then; a file with more frames missing than that, and one, is damaged."""


class Stopped(Exception):
    """The run is to end, and a source is not done."""


class Captioner:
    """Captions sources with one model, many at once."""

    def __init__(
        self,
        client: CaptionClient,
        description: ModelDescription,
        options: CaptionOptions,
        *,
        ledger: Ledger,
        out: Path,
        pool: DecodePool,
        meter: Meter,
    ) -> None:
        self._client, self._description, self._options = client, description, options
        self._ledger, self._out, self._pool, self._meter = ledger, out, pool, meter
        self._model = Model(description.name, description.revision)
        self._settings = options.settings(description)
        self._contents: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reopened: set[int] = set()
        # Few, or all that is open would be read for its digest before the first frame is decoded.
        self._identifying = asyncio.Semaphore(max(1, pool.workers // 2))
        self._stopping = False

    def stop(self) -> None:
        """Decode no more; what has been sent is still saved. Sources that are not done raise Stopped."""
        self._stopping = True
        self._pool.stop()

    async def caption(self, path: str) -> Record:
        """The record of a source, when all of it is done.

        A source that cannot be read or answered is done as well. Raises Stopped, OutputError, and ServerError if no
        server can be used.
        """
        self._raise_if_stopping()
        try:
            stat = await asyncio.to_thread(_stat, path)
            source = await self._identify(path, stat)
            lock = self._contents.setdefault(source.sha256, asyncio.Lock())
            async with lock:  # copies of a file are captioned once
                job = await self._job(source, stat)
        except MediaError as error:
            self._raise_if_stopping()
            record = Record(Source(path), self._model, self._settings, error=_told(error))
        else:
            record = self._record(source, job)
        self._meter.finished(path, failed=record.status == "error")
        return record

    async def _identify(self, path: str, stat: str | None) -> Source:
        """Size and digest, from the ledger if the file has not been touched since it was read for them."""
        if stat and (sha256 := await self._ledger.recall(path, stat)):
            return Source(path, int(stat.split()[0]), sha256)
        async with self._identifying:
            self._raise_if_stopping()
            source = await self._pool.identify(path)
        if stat:
            await self._ledger.remember(path, stat, source)
        return source

    async def _job(self, source: Source, stat: str | None) -> Job:
        """The job of a source, done."""
        job = await self._ledger.job(source.sha256)
        if job.done and job.error and self._options.retry_failed and job.id not in self._reopened:
            self._reopened.add(job.id)  # once in a run, however many copies there are
            await self._ledger.reopen(job.id)
            job = await self._ledger.job(source.sha256)
        if job.done:
            return job
        error: tuple[str, str] | None
        try:
            if job.missing:
                await self._decode_and_send(source.path, job)
        except MediaError as failure:
            self._raise_if_stopping()
            error = _told(failure)
        else:
            job = await self._ledger.job(source.sha256)
            error = _verdict(job, await self._ledger.failures(job.id))
        await self._check_unchanged(source, job, stat)
        await self._ledger.finish(job.id, error)
        return await self._ledger.job(source.sha256)

    async def _check_unchanged(self, source: Source, job: Job, stat: str | None) -> None:
        """What was captioned is what was identified. Raises MediaError."""
        now = await asyncio.to_thread(_stat, source.path)
        if now == stat:
            return
        if now is None:
            raise MediaError("it is not there any more; what was captioned is kept for when it is")
        if (await self._identify(source.path, now)).sha256 != source.sha256:
            await self._ledger.forget(job.id)
            raise MediaError("it was changed while it was being read; run the same command again")

    async def _decode_and_send(self, path: str, job: Job) -> None:
        task = VideoTask(path, self._description.frame, self._options.sampling, self._options.resize)
        parts = self._pool.decode(
            task, job.missing, self._options.prebatch(self._description), reuse=self._options.reuse
        )
        held: list[DecodedPart] = []
        most = 1 if self._options.stream else self._options.held_parts(self._description)
        sending: dict[asyncio.Task[None], asyncio.Task[list[str | RequestRefused]]] = {}
        video: OpenedVideo | None = None
        died: MediaError | None = None
        try:
            try:
                async with aclosing(parts):
                    async for part in parts:
                        if isinstance(part, OpenedVideo):
                            video = part
                            await self._opened(path, job, video)
                            continue
                        held.append(part)
                        if len(held) >= most:
                            await self._send_all(path, job, video, held, sending)
                        _raise_first_error(sending)
            except MediaError as error:
                died = error  # what came before it is captioned all the same
            await self._send_all(path, job, video, held, sending)
            await asyncio.gather(*sending)
            if died:
                raise died
        except asyncio.CancelledError:
            for request in (*sending, *sending.values()):
                request.cancel()
            raise
        finally:
            for part in held:
                part.release()
            # What has been sent is not lost, whatever else went wrong with the source.
            await asyncio.gather(*sending, *sending.values(), return_exceptions=True)

    async def _opened(self, path: str, job: Job, video: OpenedVideo) -> None:
        if job.video is None:
            await self._ledger.opened(job.id, JobVideo(video.info, video.chosen, video.end_seconds, video.cut))
        missing = sum((video.chosen if span.stop is None else span.stop) - span.first for span in job.missing)
        self._meter.opened(path, 1 - missing / max(1, video.chosen))

    async def _send_all(
        self,
        path: str,
        job: Job,
        video: OpenedVideo | None,
        parts: list[DecodedPart],
        sending: dict[asyncio.Task[None], Any],
    ) -> None:
        """Send parts, as soon as each may be; `parts` is empty then."""
        while parts:
            assert video is not None
            await self._client.in_flight.acquire()
            self._release_and_raise_if_stopping()
            part = parts.pop(0)
            request = asyncio.create_task(self._client.caption(part.frames) if part.frame_indices else _nothing())
            # Also if it is cancelled before it starts.
            request.add_done_callback(partial(self._answered, part))
            sending[asyncio.create_task(self._save(path, job, video, part, request))] = request

    def _answered(self, part: DecodedPart, _: asyncio.Task[list[str | RequestRefused]]) -> None:
        part.release()
        self._client.in_flight.release()

    async def _save(
        self,
        path: str,
        job: Job,
        video: OpenedVideo,
        part: DecodedPart,
        request: asyncio.Task[list[str | RequestRefused]],
    ) -> None:
        done = captioned(part, await request)
        await self._ledger.add(job.id, done)
        share = (part.stop - part.first) / max(1, video.chosen)
        shown = max(0.0, video.end_seconds - video.info.start_seconds)
        self._meter.saved(path, len(done.captions) + len(done.reused), share, share * shown)

    def _record(self, source: Source, job: Job) -> Record:
        return Record(
            source,
            self._model,
            self._settings,
            media=job.video.info if job.video else None,
            end_seconds=job.video.end_seconds if job.video else 0.0,
            error=job.error,
            frames=partial(_frames, self._out, job.id),
        )

    def _raise_if_stopping(self) -> None:
        if self._stopping:
            raise Stopped

    def _release_and_raise_if_stopping(self) -> None:
        if self._stopping:
            self._client.in_flight.release()
            raise Stopped


def captioned(part: DecodedPart, texts: Sequence[str | RequestRefused]) -> Part:
    """What came of each frame of a part; `texts` are the answers for those that were sent."""
    rows = list(zip(part.frame_indices, part.pts_seconds, texts, strict=True))
    failures = [(index, seconds, str(text)) for index, seconds, text in rows if not isinstance(text, str)]
    failures += [(index, seconds, UNDECODABLE) for index, seconds in part.undecodable]
    captions = [(index, seconds, text) for index, seconds, text in rows if isinstance(text, str)]
    return Part(part.first, part.stop, part.anchor, captions, part.reused, sorted(failures))


def _frames(out: Path, job: int) -> Iterator[Caption | Failure]:
    with LedgerReader(out) as ledger:
        yield from ledger.frames(job)


async def _nothing() -> list[str | RequestRefused]:
    return []


def _stat(path: str) -> str | None:
    """None for what cannot be looked at; whoever identifies it says why."""
    try:
        return file_stat(path)
    except (OSError, ValueError):
        return None


def damage(cut: str | None, undecodable: int, chosen: int) -> str | None:
    """Why a file is not whole, if it is not; `undecodable` of its `chosen` frames cannot be decoded."""
    if cut:
        return cut
    if undecodable > 1 + UNDECODABLE_SHARE * chosen or undecodable == chosen > 0:
        return f"damaged: {undecodable} of {chosen} chosen frames cannot be decoded"
    return None


def _told(error: MediaError) -> tuple[str, str]:
    return type(error).__name__, str(error)


def _verdict(job: Job, failures: dict[str, int]) -> tuple[str, str] | None:
    """Whether a job that is done went well: every chosen frame is accounted for, and has a caption."""
    if job.video is None or job.missing:
        left = ", ".join(f"{span.first} to {span.stop}" for span in job.missing)
        return "MediaError", f"incomplete: nothing is known of the frames {left}; try again with --retry-failed"
    if job.video.chosen == 0:
        return "MediaError", "no frame lies between --start and --end"
    if reason := damage(job.video.cut, failures.pop(UNDECODABLE, 0), job.video.chosen):
        return "MediaError", reason
    if failures:
        reason, _ = next(iter(failures.items()))
        return "RequestRefused", f"{sum(failures.values())} frames have no caption: {reason}"
    return None


def _raise_first_error(sending: dict[asyncio.Task[None], Any]) -> None:
    """Stop decoding a source whose parts cannot be saved; forget those that were."""
    for task in [task for task in sending if task.done()]:
        del sending[task]
        task.result()
