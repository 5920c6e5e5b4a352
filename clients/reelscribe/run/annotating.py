"""The annotation of one source: it gets a digest, all tracks work on it at the same time, and it ends as a record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reelscribe._files import file_stat, size_in
from reelscribe._tasks import CallBatcher, cancel_all
from reelscribe.contract.outcomes import SourceError, Utterance
from reelscribe.contract.source import Source
from reelscribe.errors import MediaError, SourceChanged
from reelscribe.results.jobs import Job
from reelscribe.results.records import Kind, error_of
from reelscribe.run.store import Store
from reelscribe.run.tracks.track import Stopped, Track, source_error


@dataclass(frozen=True)
class Annotated:
    """A source that is done."""

    source: Source
    jobs: Mapping[Kind, Job] = field(default_factory=dict)
    """The job of each kind of annotations of the run; none if the source could not be read."""
    unreadable: SourceError | None = None
    """Why the source could not be read; None if it could."""

    @property
    def error(self) -> SourceError | None:
        """Return the error of its record, as far as this run knows it."""
        return self.unreadable or error_of({kind: job.error for kind, job in self.jobs.items()})


class Annotator:
    """Annotates sources with the models of a run, many sources at once."""

    def __init__(self, tracks: Sequence[Track], store: Store) -> None:
        """Create an annotator.

        Args:
            tracks: One for each model. Their `begin` has been called.
            store: Where digests, jobs and finished sources are saved.
        """
        self._tracks, self._store = tracks, store
        # A source needs only one digest, so it is computed in the pool of the first track. This track also tells
        # whether the run is stopping, because `stop` stops all tracks together.
        self._first_track = tracks[0]
        self._stats = CallBatcher(_file_stats)

    def stop(self) -> None:
        """Stop decoding. Requests in flight are still answered and saved; `annotate` raises Stopped for other work."""
        for track in self._tracks:
            track.stop()

    async def annotate(self, path: str) -> Annotated:
        """Caption and transcribe a source, except for what the store already holds, and save that it is done.

        If the source cannot be read, or a model refuses its content, that is its error.

        Args:
            path: The source file.

        Raises:
            Stopped: The run was stopped before the source was done.
            OutputError: The results cannot be saved.
            ServerError: No server can be used.
        """
        self._first_track.raise_if_stopping()
        try:
            source = await self._digest(path)
            async with self._store.hold(source.sha256):  # copies of a file are annotated once
                jobs = dict(zip(self._kinds, await self._complete_jobs(source), strict=True))
                await self._store.save_source(source, jobs)
            return Annotated(source, jobs)
        except MediaError as error:
            self._first_track.raise_if_stopping()
            await self._store.save_unreadable(path, source_error(error))
            return Annotated(Source(path), unreadable=source_error(error))

    @property
    def _kinds(self) -> list[Kind]:
        return [track.kind for track in self._tracks]

    async def _digest(self, path: str) -> Source:
        """Return the source with its size and digest, from the store if the file has not changed since."""
        if (stat := await self._stats.ask(path)) and (sha256 := await self._store.find_digest(path, stat)):
            return Source(path, size_in(stat), sha256, stat)
        source = await self._first_track.pool.digest_file(path, size_in(stat) if stat else 0)
        self._store.save_digest(path, source.stat, source)  # its error, if any, is that of what is asked next, too
        return source

    async def _complete_jobs(self, source: Source) -> list[Job]:
        """Do the jobs of a source that are not done yet, and return all of them, one for each track.

        The store does not know yet that they are done.

        Raises:
            MediaError: The file was removed or changed meanwhile. What came of a file that was changed is forgotten.
        """
        jobs = [await track.job_to_do(source) for track in self._tracks]
        todo = [(track, job) for track, job in zip(self._tracks, jobs, strict=True) if not job.done]
        if not todo:
            return jobs
        siblings = _Siblings(self._store, dict(zip(self._kinds, jobs, strict=True)))
        siblings.tasks = {track.kind: asyncio.create_task(track.work(source, job, siblings)) for track, job in todo}
        changed: SourceChanged | None = None
        worked: Sequence[Job] = ()
        try:
            worked = await _gather([*siblings.tasks.values()])
        except SourceChanged as error:
            changed = error
        if not await self._stats.ask(source.path):
            raise MediaError("it is not there any more; what was done of it is kept for when it is")
        if changed:
            for _, job in todo:
                await self._store.forget(job.id)
            raise MediaError(str(changed))
        done = {job.id: job for job in worked}
        return [done.get(job.id, job) for job in jobs]


class _Siblings:
    """The jobs and results of the tracks of a run for one source."""

    def __init__(self, store: Store, jobs: Mapping[Kind, Job]) -> None:
        self._store, self._jobs = store, jobs
        self.tasks: Mapping[Kind, asyncio.Task[Job]] = {}
        """Those that are being done."""

    async def utterances(self) -> list[Utterance]:
        """Wait until the source has been transcribed, and return what is said in it, in the order of time."""
        task = self.tasks.get("transcript")
        # Shielded, so that a track that is cancelled while it waits does not cancel the other one.
        job = await asyncio.shield(task) if task else self._jobs["transcript"]
        return await self._store.utterances(job.id)


async def _gather(tasks: Sequence[asyncio.Task[Job]]) -> list[Job]:
    """Return the results of all tasks. If one raises an error, the others are cancelled.

    If it raises Stopped, the others are not cancelled: they stop by themselves once their requests in flight are saved.
    """
    if len(tasks) == 1:
        return [await tasks[0]]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(isinstance(task.exception(), Stopped) for task in done):
            done, _ = await asyncio.wait(tasks)
        errors = [error for task in done if (error := task.exception())]
        if errors:
            # An error that prevents the run from going on matters more than that the run was stopped.
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
        return [task.result() for task in tasks]
    finally:
        await cancel_all(tasks)


async def _file_stats(paths: list[str]) -> list[str]:
    """Return the `file_stat` of files. A disk that does not answer stops it, as it would soon stop many threads."""
    return await asyncio.to_thread(lambda: [file_stat(path) for path in paths])
