"""Captions, descriptions and transcripts of a single file, for programs. Nothing is saved.

A file is annotated as in a run, by a track; but the store is in memory, and passes the results on as they come. The
work goes on while the caller handles a result.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from reelscribe import errors
from reelscribe._files import file_stat
from reelscribe._tasks import cancel_all
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.contract.outcomes import AudioResult, Caption, ClipFailure, DescribedClip, Failure, source_error
from reelscribe.contract.source import Source
from reelscribe.errors import MediaError, SourceChanged
from reelscribe.reporting.node_meter import NodeMeter
from reelscribe.results.batches import AudioTimeline, FrameTimeline, SavedBatch, clip_results
from reelscribe.run.node import enter_tracks
from reelscribe.run.store import MemoryStore
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.clips import ClipOptions, ClipTrack
from reelscribe.run.tracks.track import Track
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from reelscribe.storage.address import check_address, is_address, is_stored
from reelscribe.storage.spool import Spool, SpoolOptions

Result = TypeVar("Result")


def caption_file(
    client: CaptionClient, path: str, options: CaptionOptions | None = None
) -> AsyncGenerator[Caption | Failure, None]:
    """Caption the chosen frames of one video file.

    Args:
        client: The open client of the captioner.
        path: The video file, or its address in a store.
        options: Which frames to caption, and how; by default one frame a second. `decode_workers` is always 1.

    Yields:
        The result of each chosen frame, in the order of the frames, as soon as it is known.

    Raises:
        MediaError: The file cannot be read, is damaged or cut short, or none of its frames is chosen. It is raised
            after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options.
    """
    track = CaptionTrack(client, replace(options or CaptionOptions(), decode_workers=1))
    return _annotate_file(track, path, FrameTimeline().add)


def transcribe_file(
    client: SpeechClient, path: str, options: SpeechOptions | None = None
) -> AsyncGenerator[AudioResult, None]:
    """Transcribe the audio of one media file.

    Args:
        client: The open client of the speech model.
        path: The video or audio file, or its address in a store.
        options: Language, task, and where audio is cut; by default the language is detected. `audio_workers` is
            always 1.

    Yields:
        The results in the order of time, as soon as they are known. Times are presentation times in seconds.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options.
    """
    track = TranscriptTrack(client, replace(options or SpeechOptions(), audio_workers=1))
    timeline = AudioTimeline()
    return _annotate_file(track, path, timeline.add, timeline.end)


def describe_file(
    client: ClipClient, path: str, options: ClipOptions | None = None
) -> AsyncGenerator[DescribedClip | ClipFailure, None]:
    """Describe the clips of one video file.

    Args:
        client: The open client of the clip model.
        path: The video file, or its address in a store.
        options: Where the clips are, and what the model is asked; by default a clip for each shot. `decode_workers` is
            always 1.

    Yields:
        The result of each clip, in the order of the clips, as soon as it is known.

    Raises:
        MediaError: The file cannot be read, or is damaged or cut short. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options, or the prompt has `{transcript}`, which needs a run.
    """
    track = ClipTrack(client, replace(options or ClipOptions(), decode_workers=1))
    return _annotate_file(track, path, lambda batch: clip_results([batch]))


async def _annotate_file(
    track: Track,
    path: str,
    results: Callable[[Any], Iterable[Result]],
    last_results: Callable[[], Iterable[Result]] = lambda: (),
) -> AsyncGenerator[Result, None]:
    """Annotate one file as a run does.

    Args:
        track: The track that does it. It is not entered yet.
        path: The file.
        results: Returns the results of each batch. It is called in the order of the batches.
        last_results: Returns the results that are known only after the last batch.

    Yields:
        The results in order, as soon as they are known.

    Raises:
        MediaError: The file cannot be read, or not to its end. It is raised after the last result.
        ServerError: No server can be used.
        UsageError: The model does not support the options of the track.
    """
    track.options.check_needs(())  # there is no other track
    answered: asyncio.Queue[SavedBatch | None] = asyncio.Queue()
    waiting: list[SavedBatch] = []  # for batches before them that are not answered yet
    stop = 0
    async with _opened(path) as source, AsyncExitStack() as stack:
        await enter_tracks([track], stack)
        track.count_in(NodeMeter())
        await track.begin(MemoryStore(answered.put_nowait))
        assigned = await track.assign(source, track.planned)
        working = asyncio.create_task(track.work(assigned, await track.job(assigned)))
        working.add_done_callback(lambda _: answered.put_nowait(None))
        try:
            while batch := await answered.get():
                insort(waiting, batch, key=attrgetter("first", "stop"))
                while waiting and waiting[0].first == stop:
                    batch = waiting.pop(0)
                    stop = batch.stop
                    for result in results(batch):
                        yield result
            error = (await working).error
        except SourceChanged as changed:
            error = source_error(changed, path)
        finally:
            await cancel_all([working])
    for batch in waiting:  # after a part of which nothing is known, which is an error of the file
        for result in results(batch):
            yield result
    for result in last_results():
        yield result
    # The results themselves say which requests were refused.
    if error and issubclass(kind := getattr(errors, error.type), MediaError):
        raise kind(f"{path}: {error.message}")


@asynccontextmanager
async def _opened(path: str) -> AsyncIterator[Source]:
    """Yield a source, with a copy of one that is no file of this machine. It has no digest, which nobody needs."""
    if not is_stored(path):
        yield Source(path, stat=await asyncio.to_thread(file_stat, path))
        return
    if is_address(path):
        check_address(path)
    async with Spool(SpoolOptions()) as spool, AsyncExitStack() as stack:
        try:
            stored = await spool.info(path)
            copy = await stack.enter_async_context(spool.fetch(stored))
        except MediaError as error:
            raise type(error)(f"{path}: {error}") from None
        yield Source(path, stored.size, stat=stored.stat, copy=copy.path)
