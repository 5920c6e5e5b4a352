"""What a person, or a program, watches while a run goes on. All of it is on standard error."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from reelscribe.results.records import Record
from reelscribe.run.meter import Snapshot, TrackSnapshot

LINE_SECONDS = 10.0
"""Between two lines where there is no terminal: a log of days stays readable."""


class Progress(AbstractContextManager["Progress"]):
    """How a run is shown."""

    def show(self, snapshot: Snapshot) -> None:
        """The run now; called about once a second."""

    def finished(self, record: Record) -> None:
        """A source is done, for better or worse."""

    def say(self, text: str) -> None:
        """Something that whoever watches should know."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing more will come."""


class Silent(Progress):
    """Shows nothing."""


class Failures(Progress):
    """Shows what went wrong, and nothing else."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    def finished(self, record: Record) -> None:
        """Why a source failed."""
        if record.error:
            kind, message = record.error
            self.say(f"{kind}: {record.source.path}: {message}")

    def say(self, text: str) -> None:
        """A line of its own, also between bars."""
        self._console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


class Lines(Failures):
    """A line now and then."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._now = now
        self._last = now()

    def show(self, snapshot: Snapshot) -> None:
        """A line, if the last one was a while ago."""
        if self._now() - self._last >= LINE_SECONDS:
            self._last = self._now()
            text = f"{snapshot.sources_done} of {snapshot.sources} sources, {describe(snapshot)}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class TerminalBars(Failures):
    """A bar of sources, and under it how fast it goes and why not faster."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._bars = Bars(TextColumn("sources"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bars.add_task("", total=None)
        self._text = Text()
        self._live = Live(Group(self._bars, self._text), console=self._console)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        """The bar now."""
        self._bars.update(self._task, total=snapshot.sources, completed=snapshot.sources_done)
        self._text.plain = describe(snapshot)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class JsonLines(Progress):
    """One JSON object a line, for programs: {"event": "progress" | "source" | "message", ...}."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    def show(self, snapshot: Snapshot) -> None:
        """All figures."""
        self._event("progress", **asdict(snapshot))

    def finished(self, record: Record) -> None:
        """Which source, and what came of it."""
        self._event("source", path=record.source.path, status=record.status, error=record.error)

    def say(self, text: str) -> None:
        """The text."""
        self._event("message", text=text)

    def _event(self, event: str, **values: Any) -> None:
        self._console.out(json.dumps({"event": event, **values}), highlight=False)


def describe(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    left = snapshot.eta_seconds if snapshot.sources_done < snapshot.sources else None
    eta = "" if left is None else f", {_duration(left)} left"
    lanes = "; ".join(_lane(lane, snapshot.seconds) for lane in snapshot.lanes)
    return f"{snapshot.sources_failed} failed, {snapshot.media_hours_per_hour:.1f} hours of media an hour{eta}; {lanes}"


def _lane(lane: TrackSnapshot, seconds: float) -> str:
    return (
        f"{lane.done:.0f} {lane.counts} ({lane.done / seconds:.0f} a second): {lane.bottleneck} (requests: network"
        f" {lane.network_share:.0%}, queue {lane.queue_share:.0%}, device {lane.compute_share:.0%})"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
