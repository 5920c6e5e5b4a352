"""The output folder of a run, from the lock at its beginning to the files of results at its end."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reelscribe._files import FolderLock
from reelscribe.errors import OutputError, ReelscribeError
from reelscribe.export.bucket_copy import BucketCopy, work_folder
from reelscribe.reporting.meter import Meter, Snapshot
from reelscribe.reporting.progress import Progress
from reelscribe.results.annotations import check_folder, write_results
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.tracks.track import Stopped

SNAPSHOT_SECONDS = 1.0
"""Seconds between two reports of progress."""


class RunFolder:
    """The output folder of a run. Use it as an async context manager, which reserves the folder."""

    path: Path
    """The folder, on a disk of this machine."""
    ledger: Ledger
    """The open ledger. It and the reader exist inside the block."""
    reader: LedgerReader
    """An open reader of the ledger."""

    def __init__(self, out: str | os.PathLike[str], work_dir: str | os.PathLike[str] | None = None) -> None:
        """Describe the folder; it is created if it is missing.

        Args:
            out: The folder, or an address to which it is copied, and from which a new folder goes on.
            work_dir: The folder, if `out` is an address.

        Raises:
            UsageError: Only one of them may be a folder of this machine.
        """
        self.path, address = work_folder(out, work_dir)
        self._copy = BucketCopy(address, self.path) if address else None
        self._state = "running"
        """How the run is, as the ledger keeps it."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(FolderLock(self.path))
            check_folder(self.path)
            if self._copy:
                await asyncio.to_thread(stack.enter_context(self._copy).fetch)
            self.ledger = await stack.enter_async_context(Ledger(self.path))
            self.reader = stack.enter_context(LedgerReader(self.path))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._stack:
            if self._copy:
                await self._copy.finish(error)

    def begin(self, meter: Meter, progress: Progress, learned: Callable[[], dict[str, Any]] = dict) -> None:
        """Connect the folder to what is told of the run.

        Args:
            meter: Measures the run.
            progress: Shows it.
            learned: Returns what else is kept for `reelscribe status` and for the next run, as JSON.
        """
        self._meter, self._progress, self._learned = meter, progress, learned

    def stopping(self) -> None:
        """Note that the run was asked to stop."""
        self._state = "stopping"

    async def keep_sending(self) -> None:
        """Send what is new to the copy in a bucket, if there is one, until cancelled.

        Raises:
            OutputError: The copy cannot be written, or another machine has gone on from it.
        """
        if self._copy:
            await self._copy.keep_sending()

    async def report(self, has_tracks: asyncio.Event) -> None:
        """Show the progress of the run, and save it for `reelscribe status`, until cancelled.

        Args:
            has_tracks: Set when the first node is ready, whose tracks reports tell about. The first report waits for
                it, unless that takes longer than the time between two reports.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(has_tracks.wait(), SNAPSHOT_SECONDS)
        while True:
            await self._show_and_save()
            await asyncio.sleep(SNAPSHOT_SECONDS)

    async def complete(self, work: Awaitable[None]) -> bool:
        """Wait for the work of a run, and leave the folder as it shall be, however the work ends.

        Args:
            work: Annotates all sources. It raises Stopped if the run was stopped before.

        Returns:
            Whether the run was stopped before all sources were done.

        Raises:
            ReelscribeError: The error of the work, or that the results cannot be written.
        """
        try:
            state = "done"
            try:
                await work
            except Stopped:
                # Saved at once, because a second Ctrl-C may come while the results are written.
                state = self._state = "interrupted"
                await self._save_state()
            await self._write_results()
        except (ReelscribeError, asyncio.CancelledError) as error:
            self._state = f"ended: {error}" if isinstance(error, ReelscribeError) else "interrupted"
            with suppress(OutputError):  # the error that ended the run matters more
                await self._save_state()
                if isinstance(error, ReelscribeError):
                    await self._write_results()
            raise
        self._state = state
        await self._show_and_save()
        return state == "interrupted"

    async def _write_results(self) -> None:
        self._meter.gone = await self.ledger.mark_missing()
        records, failed = await asyncio.to_thread(write_results, self.path, self.reader.records())
        run = self._meter.snapshot()
        self._meter.others, self._meter.others_failed = records - run.sources_done, failed - run.sources_failed

    async def _show_and_save(self) -> None:
        snapshot = self._meter.snapshot()
        self._progress.show(snapshot)
        await self._save_state(snapshot)

    async def _save_state(self, snapshot: Snapshot | None = None) -> None:
        now = {"state": self._state, "pid": os.getpid(), "time": time.time(), "command": _command()}
        figures = asdict(snapshot or self._meter.snapshot())
        await self.ledger.save_run_state({**now, **self._learned(), **figures})


def _command() -> str:
    """Return the command line of this process, with which the run can be started again; empty if it is another one."""
    program, *words = sys.argv
    if Path(program).name != "reelscribe":
        return ""
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(['reelscribe', *words])}"
