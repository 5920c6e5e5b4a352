"""The captions of one file as they come, for programs: nothing is saved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from reelscribe.client.models import CaptionClient
from reelscribe.contract.annotations import Caption, Failure
from reelscribe.contract.model import CaptionerDescription
from reelscribe.contract.source import Span
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, OpenedVideo
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import MediaError
from reelscribe.results.batches import SavedFrameBatch, frame_results
from reelscribe.run.captioning import captioned, damage, frame_reading
from reelscribe.run.options import CaptionOptions


async def caption_file(
    client: CaptionClient, path: str, options: CaptionOptions | None = None
) -> AsyncGenerator[Caption | Failure, None]:
    """What came of each chosen frame of a file, in order, as soon as it is known.

    Raises MediaError if the file cannot be read, or, after all that could be captioned, if it is damaged or cut short;
    ServerError if no server can be used.
    """
    options = replace(options or CaptionOptions(), decode_workers=1)
    description = await client.describe()
    async with options.pool(description, client.most_in_flight) as pool:
        last: Caption | None = None
        try:
            async with aclosing(_parts(client, path, options, description, pool)) as parts:
                async for part in parts:
                    for result in frame_results([part], last):
                        if isinstance(result, Caption) and result.reused_from is None:
                            last = result
                        yield result
        except MediaError as error:
            raise type(error)(f"{path}: {error}") from None


async def _parts(
    client: CaptionClient, path: str, options: CaptionOptions, description: CaptionerDescription, pool: DecodePool
) -> AsyncGenerator[SavedFrameBatch, None]:
    """What came of each part, in order; several are at the server at once."""
    decoded = pool.read(frame_reading(path, description, options), [Span()])
    sent: deque[asyncio.Task[SavedFrameBatch]] = deque()
    video: OpenedVideo | None = None
    undecodable = 0
    died: MediaError | None = None
    try:
        try:
            async with aclosing(decoded):
                async for part in decoded:
                    if isinstance(part, OpenedVideo):
                        video = part
                        continue
                    undecodable += len(part.undecodable)
                    await client.in_flight.acquire()
                    request = asyncio.create_task(_caption(client, part))
                    request.add_done_callback(partial(_release, client, part))
                    sent.append(request)
                    while sent and sent[0].done():
                        yield await sent.popleft()
        except MediaError as error:
            died = error  # what came before it is captioned all the same
        while sent:
            yield await sent.popleft()
        if died:
            raise died
    finally:
        for request in sent:
            request.cancel()
        await asyncio.gather(*sent, return_exceptions=True)
    if video and (reason := damage(video.cut, undecodable, video.chosen)):
        raise MediaError(reason)


async def _caption(client: CaptionClient, part: DecodedFrameBatch) -> SavedFrameBatch:
    return captioned(part, await client.caption(part.frames) if part.frame_indices else [])


def _release(client: CaptionClient, part: DecodedFrameBatch, _: asyncio.Task[SavedFrameBatch]) -> None:
    """Runs after every request, also one that is cancelled before it starts."""
    part.release()
    client.in_flight.release()
