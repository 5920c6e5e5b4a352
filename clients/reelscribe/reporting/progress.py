"""Displays for the progress of a run on a console: a bar, lines, JSON, or errors only."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from reelscribe.results.annotations import Record
from reelscribe.reporting.meter import Snapshot, TrackSnapshot

LINE_SECONDS = 10.0
"""Seconds between two lines without a terminal. The log of a run that takes days stays readable."""


class Progress(AbstractContextManager["Progress"]):
    """A display of a run, shown while its block runs. This base class shows nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the figures of the run. It is called about once a second."""

    def finished(self, record: Record) -> None:
        """Show that a source is done, with or without an error."""

    def message(self, text: str) -> None:
        """Show a message."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display."""


class Silent(Progress):
    """Shows nothing."""


class ErrorLines(Progress):
    """Shows a line for each source that failed and for each message."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def finished(self, record: Record) -> None:
        """Show why a source failed."""
        if record.error:
            kind, message = record.error
            self.message(f"{kind}: {record.source.path}: {message}")

    def message(self, text: str) -> None:
        """Show a message on a line of its own, also above a bar."""
        self._console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


class Lines(ErrorLines):
    """Shows a line with the figures of the run every ten seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = time.monotonic()

    def show(self, snapshot: Snapshot) -> None:
        """Show a line if the last one is older than LINE_SECONDS."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            text = f"{snapshot.sources_done} of {snapshot.sources} sources, {describe(snapshot)}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class TerminalBars(ErrorLines):
    """Shows a bar of sources and, under it, the speed and the bottleneck."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._bars = Bars(TextColumn("sources"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bars.add_task("", total=None)
        self._text = Text()
        self._live = Live(Group(self._bars, self._text), console=self._console)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def show(self, snapshot: Snapshot) -> None:
        """Update the bar."""
        self._bars.update(self._task, total=snapshot.sources, completed=snapshot.sources_done)
        self._text.plain = describe(snapshot)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class JsonLines(Progress):
    """Shows one JSON object a line, for programs: {"event": "progress" | "source" | "message", ...}."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, snapshot: Snapshot) -> None:
        """Show all figures."""
        self._event("progress", **asdict(snapshot))

    def finished(self, record: Record) -> None:
        """Show which source is done, and its error."""
        self._event("source", path=record.source.path, status=record.status, error=record.error)

    def message(self, text: str) -> None:
        """Show a message."""
        self._event("message", text=text)

    def _event(self, event: str, **values: Any) -> None:
        self._console.out(json.dumps({"event": event, **values}), highlight=False)


def describe(snapshot: Snapshot) -> str:
    """Describe a snapshot in one line."""
    left = snapshot.eta_seconds if snapshot.sources_done < snapshot.sources else None
    eta = "" if left is None else f", {_duration(left)} left"
    tracks = "; ".join(_track(track, snapshot.seconds) for track in snapshot.lanes)
    return (
        f"{snapshot.sources_failed} failed, {snapshot.media_hours_per_hour:.1f} hours of media an hour{eta}; {tracks}"
    )


def _track(track: TrackSnapshot, seconds: float) -> str:
    return (
        f"{track.done:.0f} {track.counts} ({track.done / seconds:.0f} a second): {track.bottleneck} (requests: network"
        f" {track.network_share:.0%}, queue {track.queue_share:.0%}, device {track.compute_share:.0%})"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
