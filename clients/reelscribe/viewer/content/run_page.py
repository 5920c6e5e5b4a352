"""The page of the run: the figures of `reelscribe status`, the speed over time, and the failures."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from threading import Lock

from reelscribe import errors
from reelscribe._files import writer_of
from reelscribe.errors import MALFORMED, OutputError, ReelscribeError
from reelscribe.reporting.formatting import describe_clock
from reelscribe.reporting.progress import limit_in_words, time_left_in_words
from reelscribe.reporting.status import MOST_NODES, RunStatus
from reelscribe.results.ledger_reader import earlier_run_state
from reelscribe.viewer.content.library_page import LibraryPage, card_of
from reelscribe.viewer.index.queries import common_folder_of, find_sources, rows_in_order
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.pages.parameters import LibraryQuery
from reelscribe.viewer.pages.views import FailureExample, FailureGroup, Figure, NodeRow, Rate, RunView, Share, Site

MOST_RATES = 600
"""Largest number of points of the speed over time; of more, every second one is dropped."""

_EXAMPLES = 5
_MOST_REASONS = 20
_UPDATE_SECONDS = 1.0
_RATE_SECONDS = 5.0
_NO_RUN = "No run has saved anything in this folder."
_RETRY = "Run the same command again with --retry-failed."


class RunFollower:
    """Follows the run that writes to a folder. One thread calls `update`; any thread may read meanwhile."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._rates: list[Rate] = []
        self._apart = _RATE_SECONDS
        self._last: tuple[int, float, float] | None = None
        self._updated = 0.0
        self._lock = Lock()
        self.status: RunStatus | None = None
        """The state of the run, or of the last one; None if there is none, or the ledger cannot be read. Each update
        replaces it, so a reader that needs it twice keeps it."""
        self.problem = ""
        """The reason why the ledger cannot be read, in whole sentences; empty if it can, or if there is none."""

    @property
    def sentence(self) -> str:
        """A sentence about the run that is going on; empty if there is none."""
        status = self.status
        if status is None or not status.goes_on:
            return ""
        now = status.snapshot
        return f"A run is going on: {now.sources_done:,} of {now.sources:,} sources are done."

    @property
    def retry(self) -> str:
        """The command that tries again the sources that failed, or how to get it."""
        status = self.status
        return status.retry if status else _RETRY

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The speed over time, as far as it was seen."""
        with self._lock:
            return tuple(self._rates)

    def update(self) -> None:
        """Read the state of the run, unless that was done less than a second ago."""
        now = time.monotonic()
        if now - self._updated < _UPDATE_SECONDS:
            return
        self._updated = now
        try:
            saved = earlier_run_state(self._out)
            status = RunStatus.from_run_state(saved, locked=writer_of(self._out) == "run") if saved else None
            problem = ""
        except OutputError as error:
            status, problem = None, f"The state of the run cannot be read: {error}."
        except MALFORMED as error:
            status, problem = None, f"The state of the run is not one that this version knows: {error!r}."
        self.status, self.problem = status, problem
        if status and status.goes_on:
            with self._lock:
                self._sample(status)

    def _sample(self, status: RunStatus) -> None:
        """Add a point to the speed over time: the hours of media that were done since the last point."""
        now = status.snapshot
        hours = now.media_seconds_per_second * now.seconds / 3600
        if self._last is None or self._last[0] != status.pid or now.seconds < self._last[1]:
            self._rates, self._apart = [], _RATE_SECONDS
            self._last = status.pid, now.seconds, hours
            return
        _, seconds, before = self._last
        if now.seconds - seconds >= self._apart:
            self._rates.append(Rate(now.seconds, max(0.0, hours - before) / (now.seconds - seconds) * 3600))
            self._last = status.pid, now.seconds, hours
        if len(self._rates) > MOST_RATES:
            del self._rates[::2]
            self._apart *= 2


class RunPage:
    """Makes the page of the run. Any thread may use it."""

    def __init__(self, follower: RunFollower, index: SourceIndex, library: LibraryPage) -> None:
        self._follower, self._index, self._library = follower, index, library

    def view(self, site: Site) -> RunView:
        """Return what the page of the run shows.

        Args:
            site: What all pages have in common.
        """
        failures = tuple(self._failures())
        status = self._follower.status
        if status is None:
            state, retry = self._follower.problem or _NO_RUN, _RETRY if failures else ""
            return RunView(site, state, goes_on=False, done=0, sources=0, failures=failures, retry=retry)
        now, goes_on = status.snapshot, status.goes_on
        nodes = sorted(now.nodes, key=lambda node: node.is_ready)
        slowest = now.slowest
        shares = [Share("Decoding", slowest.decode_share), Share("Inference", slowest.server_share)] if slowest else []
        return RunView(
            site,
            str(status),
            goes_on=goes_on,
            done=status.records,
            sources=status.sources,
            failed=status.failed,
            share=now.done_share if goes_on else status.records / max(1, status.sources),
            speed=f"{now.media_seconds_per_second:.1f} times real time",
            time_left=time_left_in_words(now) if goes_on else "",
            bottleneck=str(limit_in_words(now)) if goes_on else "",
            as_of=describe_clock(status.time) if status.time else "",
            figures=tuple(Figure(label.strip(), this, whole) for label, this, whole in status.figures()),
            shares=tuple(shares) if goes_on and slowest and slowest.requests else (),
            rates=self._follower.rates,
            failures=failures,
            retry=status.retry if failures else "",
            nodes=tuple(
                NodeRow(
                    node.name,
                    f"{node.state}; {node.bottleneck}" if node.is_ready and node.bottleneck else node.state,
                    node.is_ready,
                    node.sources_done,
                    node.sources_open,
                    f"{node.media_seconds_per_second:.1f}x",
                )
                for node in nodes[:MOST_NODES]
            ),
            nodes_hidden=max(0, len(nodes) - MOST_NODES),
        )

    def _failures(self) -> list[FailureGroup]:
        groups = []
        with self._index.reader() as reader:
            common = common_folder_of(reader)
            for reason, number in self._library.errors().most_common(_MOST_REASONS):
                if number:
                    rows = rows_in_order(reader, find_sources(reader, LibraryQuery(error=reason), _EXAMPLES))
                    cards = [card_of(row, None, common) for row in rows]
                    examples = tuple(FailureExample(card.id, card.path, card.error) for card in cards)
                    groups.append(FailureGroup(reason, number, meaning_of(reason), examples))
        return groups


def meaning_of(reason: str) -> str:
    """Return what the type of an error means, in a sentence; empty for one that this version does not know.

    Args:
        reason: The name of a class of `reelscribe.errors`.
    """
    known = getattr(errors, reason, None) if reason.isidentifier() else None
    if not (isinstance(known, type) and issubclass(known, ReelscribeError)):
        return ""
    return (inspect.getdoc(known) or "").partition("\n")[0]
