"""Displays for the progress of a run: two lines that stay, lines of a log, JSON, errors only, or a notebook cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from reelscribe.contract.outcomes import SourceError
from reelscribe.errors import printable
from reelscribe.reporting.formatting import count, describe_clock, describe_time_left, json_event
from reelscribe.reporting.meter import Snapshot, TrackSnapshot
from reelscribe.reporting.plan import Plan

LINE_SECONDS = 10.0
"""Seconds between two lines without a terminal. The log of a run that takes days stays readable."""

LEAST_BAR = 6
"""Width of the shortest bar, in columns. Where there is no room for it, there is none."""


class Progress(AbstractContextManager["Progress"]):
    """A display of a run, shown while its block runs. This base class shows nothing."""

    def announce(self, plan: Plan) -> None:
        """Show what the run has before it. It is called once, as soon as that is known."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the figures of the run. It is called about once a second."""

    def finished(self, path: str, error: SourceError | None) -> None:
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

    def finished(self, path: str, error: SourceError | None) -> None:
        """Show why a source failed."""
        if error:
            self.message(f"{error.type}: {path}: {error.message}")

    def message(self, text: str) -> None:
        """Show a message on a line of its own, also above a bar."""
        # A style for `print` would also colour the lines that stay below.
        self._console.print(Text(printable(text), style="red"), soft_wrap=True)


class Lines(ErrorLines):
    """Shows a line with the figures of the run every ten seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = time.monotonic()

    def announce(self, plan: Plan) -> None:
        """Show what the run has before it, in one line."""
        self._print(str(plan))

    def show(self, snapshot: Snapshot) -> None:
        """Show a line if the last one is older than LINE_SECONDS."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            self._print(describe(snapshot))

    def _print(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


class TerminalLines(ErrorLines):
    """Shows two lines that stay below everything else: how far the run is, and what limits its speed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._figures = _Figures()
        # It is drawn when there is something new. A thread that draws it too would draw between the two steps of
        # `_clear_wrapped_lines`.
        self._live = Live(self._figures, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def announce(self, plan: Plan) -> None:
        """Show what the run has before it, above the two lines."""
        self._clear_wrapped_lines()
        self._console.print(printable(str(plan)), markup=False, highlight=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Draw the two lines."""
        self._figures.snapshot = snapshot
        self._clear_wrapped_lines()
        self._live.refresh()

    def message(self, text: str) -> None:
        """Show a message on a line of its own, above the two lines."""
        self._clear_wrapped_lines()
        super().message(text)

    def _clear_wrapped_lines(self) -> None:
        """Erase what a narrower terminal has made of the two lines: it wraps them, and rich erases two rows only."""
        width = self._console.width
        rows = sum(-(-length // width) or 1 for length in self._figures.drawn_lengths)
        if wrapped := rows - len(self._figures.drawn_lengths):
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up * wrapped))
        self._figures.drawn_lengths = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear_wrapped_lines()
        self._live.stop()


class _Figures:
    """The two lines about a run, in any width."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.drawn_lengths: list[int] = []
        """The lengths of the lines that were drawn last, in columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the lines; nothing before the first snapshot."""
        if self.snapshot is None:
            return
        width = options.max_width
        limit = limit_in_words(self.snapshot, width)
        limit.truncate(width, overflow="ellipsis")
        yield self._first_line(self.snapshot, width)
        yield limit
        self.drawn_lengths = [width, limit.cell_len]

    def _first_line(self, snapshot: Snapshot, width: int) -> Table:
        """Return the sources, a bar, the nodes, the speed and the time left, with as many words as fit."""
        sources = f"{snapshot.sources_done:,}/{snapshot.sources:,}{'' if snapshot.all_listed else '+'}"
        speed, left = f"{snapshot.media_seconds_per_second:.1f}x", time_left_in_words(snapshot)
        nodes = [f"{snapshot.nodes_ready:,}/{len(snapshot.nodes):,} nodes"] if snapshot.nodes else []
        long = [f"sources {sources}", *nodes, f"{speed} real time", f"{left} left" if left else ""]
        short = [sources, *nodes, speed, left]
        fitting = (words for words in (long, short) if sum(map(cell_len, words)) + len(words) + LEAST_BAR <= width)
        words = next(fitting, [sources, speed, left])
        room = width - sum(map(cell_len, words)) - len(words)
        line = Table.grid(padding=(0, 1, 0, 0), pad_edge=False, expand=room >= LEAST_BAR)
        # rich's own colours look like nothing in a terminal of eight colours.
        bar = ProgressBar(
            total=1.0,
            completed=snapshot.done_share,
            style="bright_black",
            complete_style="green",
            finished_style="green",
        )
        cells = [words[0], bar, *words[1:]] if room >= LEAST_BAR else words
        for cell in cells:
            line.add_column(ratio=1 if cell is bar else None, no_wrap=True, overflow="ellipsis")
        line.add_row(*cells)
        return line


def display_for(console: Console) -> Progress:
    """Return the display that a console can show: a dumb terminal, as in an editor, cannot move its cursor."""
    can_redraw = console.file.isatty() and not console.is_dumb_terminal
    return TerminalLines(console) if can_redraw else Lines(console)


class NotebookLines(ErrorLines):
    """Shows one line with the figures of the run, which stays in one place of the output of a notebook's cell."""

    def __init__(self) -> None:
        super().__init__(Console(force_jupyter=True))
        self._handle: Any = None

    def announce(self, plan: Plan) -> None:
        """Show what the run has before it."""
        self._console.print(printable(str(plan)), markup=False, highlight=False)

    def show(self, snapshot: Snapshot) -> None:
        """Show the figures in place of earlier ones."""
        from IPython import display

        show: Any = display.display  # it has no type hints
        # A table of rich knows how to show itself in a notebook.
        figures = Table.grid()
        figures.add_row(Text(printable(describe(snapshot))))
        if self._handle is None:
            self._handle = show(figures, display_id=True)
        else:
            self._handle.update(figures)


class JsonLines(Progress):
    """Shows one JSON object a line, for programs: {"event": "progress" | "source" | ..., "time": ..., ...}."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def announce(self, plan: Plan) -> None:
        """Show what the run has before it."""
        self.event("plan", **asdict(plan), text=str(plan))

    def show(self, snapshot: Snapshot) -> None:
        """Show all figures."""
        self.event("progress", **asdict(snapshot))

    def finished(self, path: str, error: SourceError | None) -> None:
        """Show which source is done, and its error."""
        self.event("source", path=path, status="error" if error else "ok", error=error)

    def message(self, text: str) -> None:
        """Show a message."""
        self.event("message", text=text)

    def event(self, event: str, **values: Any) -> None:
        """Show that something happened."""
        self._console.out(json_event(event, **values), highlight=False)


def usual_progress() -> Progress:
    """Return how a run that a program starts shows its progress: as a notebook does in its kernel, else not at all."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookLines() if hasattr(ipython, "kernel") else Silent()


def describe(snapshot: Snapshot) -> str:
    """Describe a snapshot in one line."""
    left = time_left_in_words(snapshot)
    return (
        f"{snapshot.sources_done:,} of {snapshot.sources:,} sources{'' if snapshot.all_listed else ' found so far'},"
        f" {snapshot.sources_failed:,} failed,"
        f"{f' {nodes_in_words(snapshot)},' if snapshot.nodes else ''}"
        f" {snapshot.media_seconds_per_second:.1f} times real time{f', {left} left' if left else ''};"
        f" {limit_in_words(snapshot)}"
    )


def nodes_in_words(snapshot: Snapshot) -> str:
    """Return how many nodes are ready, such as "3 of 4 nodes ready"."""
    return f"{snapshot.nodes_ready:,} of {count(len(snapshot.nodes), 'node')} ready"


def time_left_in_words(snapshot: Snapshot) -> str:
    """Return the time left with its uncertainty, such as "25 ± 4 min"; "" if it is not known, or nothing is left."""
    if snapshot.eta_seconds is None or snapshot.sources_done >= snapshot.sources:
        return ""
    return describe_time_left(snapshot.eta_seconds, snapshot.eta_plus_minus or 0.0)


def limit_in_words(snapshot: Snapshot, width: int | None = None) -> Text:
    """Return what limits the speed and how busy both sides are, or since when and until when a run waits for a server.

    Args:
        snapshot: The figures of the run.
        width: Number of columns; in few of them, fewer words say it. None if there is no limit.
    """
    if outage := snapshot.outage:
        since, until = describe_clock(outage.since), describe_clock(outage.until)
        texts = [f"no server since {since}: waiting until {until}", f"no server {since}, waiting to {until}"]
    elif snapshot.all_listed and snapshot.sources_done >= snapshot.sources:
        texts = ["all sources are done"]
    else:
        text = snapshot.bottleneck
        texts = [text, text.replace(" is the limit", "").replace(" are the limit", "")]
        if (track := snapshot.slowest) and track.requests:
            shares = f"decode {track.decode_share:.0%} busy, inference {track.server_share:.0%}"
            texts = [f"{text} ({', '.join([shares, *_figures_of_calls(track)])})", f"{text} ({shares})", *texts]
    fitting = (text for text in texts if width is None or cell_len(text) <= width)
    return Text(next(fitting, texts[-1]))


def _figures_of_calls(track: TrackSnapshot) -> Iterator[str]:
    """Yield how full calls are, and what keeps requests from filling them, where something does."""
    if track.call_items and track.full_call > 1:
        yield f"calls have {track.call_items:,.0f} of {track.full_call:,} items"
    if track.requests_in_flight < track.requests_wanted:
        yield f"{track.requests_in_flight:,} of {track.requests_wanted:,} requests in flight"
    if track.retries:
        yield f"{track.retries:,} sent again"
