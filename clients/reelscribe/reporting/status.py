"""How the run that writes to a folder is doing, or how the last one ended, as a table and as an exit status."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reelscribe.errors import printable
from reelscribe.reporting.formatting import count, describe_clock, describe_duration, times
from reelscribe.reporting.meter import NodeSnapshot, Snapshot, TrackSnapshot
from reelscribe.reporting.progress import limit_in_words, nodes_in_words, time_left_in_words
from reelscribe.reporting.summary import failure_texts
from reelscribe.reporting.units import UNITS
from reelscribe.results.annotations import FAILURES_NAME

RunState = Literal["running", "stopping", "done", "failed sources", "interrupted", "ended early", "killed"]

EXIT_STATUS: Mapping[RunState, int] = {
    "running": 0,
    "stopping": 0,
    "done": 0,
    "failed sources": 3,
    "interrupted": 130,
    "ended early": 1,
    "killed": 1,
}
"""The exit status of `reelscribe status`; failed sources are those of the folder."""

MOST_NODES = 20
"""Largest number of nodes that are shown, each in a row."""

_RUN_COMMANDS = ("caption", "transcribe", "annotate", "shots")
_CONTINUE = "to continue, run the same command again"


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, as its folder tells it."""

    state: RunState
    reason: str
    """Why it ended early; otherwise empty."""
    pid: int
    """Its process."""
    time: float
    """When the figures were saved, in seconds since the epoch."""
    snapshot: Snapshot
    """Its figures."""
    command: str = ""
    """The command line that started it, with the working folder; empty for a run that was started from Python."""

    @classmethod
    def from_run_state(cls, saved: Mapping[str, Any], *, locked: bool) -> RunStatus:
        """Find out how a run is.

        Args:
            saved: The state that the run saved last in its ledger.
            locked: Whether a process holds the lock of the folder.
        """
        snapshot, text = Snapshot.from_json(saved), str(saved["state"])
        state: RunState
        if locked:
            state = "running" if text == "running" else "stopping"
        elif text in ("running", "stopping"):
            state = "killed"  # it had no time to save how it ended
        elif text == "done":
            state = "done"
        else:
            state = "interrupted" if text == "interrupted" else "ended early"
        reason = text.removeprefix("ended: ") if state == "ended early" else ""
        command = str(saved.get("command") or "")
        run = cls(state, reason, int(saved["pid"]), float(saved["time"]), snapshot, command)
        return replace(run, state="failed sources") if state == "done" and run.failed else run

    @property
    def goes_on(self) -> bool:
        """True if the run is writing to the folder."""
        return self.state in ("running", "stopping")

    @property
    def exit_status(self) -> int:
        """The exit status of `reelscribe status`."""
        return EXIT_STATUS[self.state]

    @property
    def retry(self) -> str:
        """How to try failed sources again: the command, or what to do where the run came from Python."""
        if not self.command:
            return "Call the same function with retry_failed=True in its options, or add --retry-failed to the command."
        return retry_command(self.command) or "Run the same command again with --retry-failed."

    def __str__(self) -> str:
        """Return the state as a sentence."""
        sources, failed = self.sources, self.failed
        return {
            "running": f"running, process {self.pid}",
            "stopping": f"stopping, process {self.pid}: it saves what is in progress",
            "done": "done: all sources succeeded",
            "failed sources": f"done: {failed:,} of {sources:,} sources failed",
            "interrupted": f"interrupted: {_CONTINUE}",
            "ended early": f"ended early: {printable(self.reason)}",
            "killed": f"ended without notice, killed or by a crash: {_CONTINUE}",
        }[self.state]

    @property
    def sources(self) -> int:
        """Number of sources of the whole job, which are all of the folder."""
        return self.snapshot.sources + self.snapshot.others

    @property
    def records(self) -> int:
        """Number of these that have a record."""
        return self.snapshot.sources_done + self.snapshot.others

    @property
    def failed(self) -> int:
        """Number of records with an error."""
        return self.snapshot.sources_failed + self.snapshot.others_failed

    def table(self, out: Path) -> RenderableType:
        """Return what to print.

        Args:
            out: The folder of the run.
        """
        now = self.snapshot
        parts: list[RenderableType] = [Text(str(self), overflow="fold"), self._figures()]
        if self.goes_on:
            left = time_left_in_words(now)
            parts.append(Text(f"{left} left; {limit_in_words(now)}" if left else str(limit_in_words(now))))
            parts.append(Text(f"as of {describe_clock(self.time)}"))
        if now.nodes:
            lost = f", lost {times(now.nodes_lost)}" if now.nodes_lost else ""
            title = nodes_in_words(now) if self.goes_on else count(len(now.nodes), "node")
            parts += [Text(f"{title}{lost}:"), Padding(_nodes(now.nodes), (0, 0, 0, 2), expand=False)]
        if self.failed:
            texts = failure_texts(now.failures)
            parts += [Padding(Text(text, overflow="fold"), (0, 0, 0, 2), expand=False) for text in texts]
            if self.exit_status:
                # A run that was killed has not written the file, which is that of an earlier one, if it is there.
                is_written = self.state != "killed" and (out / FAILURES_NAME).exists()
                where = f"all of them: {out / FAILURES_NAME}; " if is_written else ""
                parts.append(Text(f"{where}again: --retry-failed", overflow="fold"))
        return Group(*parts)

    def figures(self) -> list[tuple[str, str, str]]:
        """Return rows of figures: what is counted, and its number in this run and in the whole job.

        The whole job is all sources of the folder. What earlier runs have made of those that this run does not name is
        not added up.
        """
        now = self.snapshot
        new = now.sources_done - now.sources_before
        copies = [("  copies", "", f"{now.sources_copies:,}")] if now.sources_copies else []
        return [
            ("sources", f"{new:,}", f"{self.records:,} of {self.sources:,}"),
            ("  failed", "", f"{self.failed:,}"),
            *copies,
            *(_track_row(track, of_all=not now.others) for track in now.tracks),
            ("time", describe_duration(now.seconds), ""),
        ]

    def _figures(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column()
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_row("", "this run", "whole job")
        for row in self.figures():
            table.add_row(*row)
        return table


def retry_command(command: str) -> str:
    """Return the command line that does what another one did, and tries again what failed.

    Users copy it, and a folder of results may come from anybody, so only a command line that a run has saved so is
    changed: any other one may do anything.

    Args:
        command: A saved command line: the working folder, and `reelscribe` with its words, each quoted where needed.

    Returns:
        The command line; empty if this is none, or if it has characters that would not be copied as they are.
    """
    try:
        words = shlex.split(command)
    except ValueError:  # a quote is open
        return ""
    if len(words) < 5 or words[:1] + words[2:4] != ["cd", "&&", "reelscribe"] or words[4] not in _RUN_COMMANDS:
        return ""
    folder, options = words[1], words[5:]
    if command != _command_line(folder, words[4:]) or command != printable(command):
        return ""
    before_sources = options[: options.index("--")] if "--" in options else options
    added = [] if "--retry-failed" in before_sources else ["--retry-failed"]
    return _command_line(folder, [words[4], *added, *options])


def _command_line(folder: str, words: Sequence[str]) -> str:
    return f"cd {shlex.quote(folder)} && {shlex.join(['reelscribe', *words])}"


def _nodes(nodes: Sequence[NodeSnapshot]) -> RenderableType:
    """Return a table of the nodes, those first that are not ready."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("node", "done", "open", "speed", "state")
    for node in sorted(nodes, key=lambda node: node.is_ready)[:MOST_NODES]:
        state = f"{node.state}; {node.bottleneck}" if node.is_ready and node.bottleneck else node.state
        figures = f"{node.sources_done:,}", f"{node.sources_open:,}", f"{node.media_seconds_per_second:.1f}x"
        table.add_row(Text(printable(node.name)), *figures, Text(printable(state)))
    hidden = len(nodes) - MOST_NODES
    return Group(table, Text(f"and {hidden:,} more")) if hidden > 0 else table


def _track_row(track: TrackSnapshot, *, of_all: bool) -> tuple[str, str, str]:
    unit, before = UNITS[track.counts], track.done_before
    whole = "" if before is None or not of_all else unit.amount(track.done + before)
    return unit.made, unit.amount(track.done), whole
