"""The summary of a run, a short table at its end: figures, failed sources, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reelscribe.errors import printable
from reelscribe.reporting.formatting import describe_duration, times
from reelscribe.reporting.meter import Snapshot, TrackSnapshot
from reelscribe.reporting.units import UNITS
from reelscribe.results.annotations import FAILURES_NAME, NAME

Line = tuple[str, str]
"""A number with its unit, and what it counts."""


def summary_lines(snapshot: Snapshot, *, replaced_processes: int = 0) -> list[Line]:
    """Return the figures of a run: each a number, and what it counts.

    Args:
        snapshot: The figures at its end.
        replaced_processes: Number of decode processes that died, or were killed because they hung.
    """
    return [*_source_lines(snapshot), *_node_lines(snapshot), *_work_lines(snapshot, replaced_processes)]


def _source_lines(snapshot: Snapshot) -> Iterator[Line]:
    done = f"{snapshot.sources_done:,}"
    done += "" if snapshot.sources_done == snapshot.sources else f" of {snapshot.sources:,}"
    yield done, f"{'source' if snapshot.sources == 1 else 'sources'}, {snapshot.sources_failed:,} failed"
    skipped = [f"{snapshot.sources_before:,} done before"] if snapshot.sources_before else []
    skipped += [f"{snapshot.sources_copies:,} same as another"] if snapshot.sources_copies else []
    if skipped:
        yield f"{snapshot.sources_before + snapshot.sources_copies:,}", f"skipped: {', '.join(skipped)}"
    if snapshot.sources_gone:
        yield f"{snapshot.sources_gone:,}", "gone from the disk since a run read them; their records stay"


def _node_lines(snapshot: Snapshot) -> Iterator[Line]:
    if len(snapshot.nodes) > 1 or snapshot.nodes_lost:  # else the run is like one on this machine
        used, lost = sum(node.sources_done > 0 for node in snapshot.nodes), snapshot.nodes_lost
        again = f", lost {times(lost)}: what was in flight there was done again" if lost else ""
        yield f"{used:,}", f"{'node' if used == 1 else 'nodes'} used{again}"


def _work_lines(snapshot: Snapshot, replaced_processes: int) -> Iterator[Line]:
    tracks = [track for track in snapshot.tracks if track.done]
    for track in tracks:
        yield from _track_lines(track, snapshot.seconds)
    requests, retries = (sum(getattr(track, name) for track in snapshot.tracks) for name in ("requests", "retries"))
    if requests:
        yield f"{requests:,}", f"{'request' if requests == 1 else 'requests'}, {retries:,} sent again"
    if replaced_processes:
        processes = "process" if replaced_processes == 1 else "processes"
        yield f"{replaced_processes:,}", f"decode {processes} replaced"
    if not tracks:
        yield "0", "annotations made: nothing new"
    yield describe_duration(snapshot.seconds), f"of time, {snapshot.media_seconds_per_second:.1f} times real time"
    for track in tracks:
        if "the limit" in track.run_bottleneck:  # and not that it is starting, or waits for a server
            which = f"{UNITS[track.counts].made}: " if len(tracks) > 1 else ""
            yield "", f"{which}{track.run_bottleneck}"


def _track_lines(track: TrackSnapshot, seconds: float) -> Iterator[Line]:
    unit = UNITS[track.counts]
    yield unit.done(track.done, seconds)
    if track.unsent:
        yield unit.amount(track.unsent), unit.unsent
    if track.substituted:
        yield f"{track.substituted:,}", "of the sources read by PyAV in place of decord"
    if track.tokens:
        yield f"{track.tokens:,}", f"tokens written by the model, {track.tokens / seconds:,.0f} a second"


def number_table(lines: Sequence[Line]) -> Table:
    """Return a table of numbers, aligned on the right, and what they count."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for number, text in lines:
        table.add_row(number, text)
    return table


def failure_texts(failures: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a text for each failed source: its path, and why it failed."""
    return [f"{printable(path)}: {printable(message)}" for path, _, message in failures]


def summary_table(
    snapshot: Snapshot, out: Path, *, interrupted: bool, replaced_processes: int, exporting: bool = False
) -> RenderableType:
    """Return what to print at the end of a run.

    Args:
        snapshot: The figures at its end.
        out: The folder of the run.
        interrupted: Whether it was stopped before all sources were done.
        replaced_processes: Number of decode processes that died, or were killed because they hung.
        exporting: Whether subtitles or tables are exported next.
    """
    parts: list[RenderableType] = [number_table(summary_lines(snapshot, replaced_processes=replaced_processes))]
    if failures := failure_texts(snapshot.failures):
        hidden = snapshot.sources_failed - len(failures)
        parts.append(Text(f"Failed{f' (first {len(failures)})' if hidden > 0 else ''}:"))
        parts += [Padding(Text(text, overflow="fold"), (0, 0, 0, 2), expand=False) for text in failures]
        parts.append(Text(f"All failed sources: {out / FAILURES_NAME}", overflow="fold"))
        parts.append(Text("To try them again, add --retry-failed to the same command."))
    parts += [Text(text, overflow="fold") for text in _next_steps(snapshot, out, interrupted, exporting)]
    return Group(*parts)


def _next_steps(snapshot: Snapshot, out: Path, interrupted: bool, exporting: bool) -> Iterator[str]:
    if interrupted and not snapshot.sources_done:
        yield "No source of this run is finished. What was made of them is saved, and the same command continues there."
    yield f"Results{' so far' if interrupted else ''}: {out / NAME}"
    yield "To look at them:"
    yield f"  reelscribe browse {shlex.quote(str(out))}"
    if not exporting:
        yield "For subtitles and tables:"
        yield f"  reelscribe export {shlex.quote(str(out))} --format srt --format csv"


@dataclass(frozen=True)
class Summary:
    """The outcome of a run."""

    snapshot: Snapshot
    """The measurements of the run at its end."""
    interrupted: bool
    """True if it was stopped before all sources were done; to continue, run it again with the same folder."""
    replaced_processes: int
    """Number of decode processes that died, or were killed because they hung."""

    @property
    def failed(self) -> int:
        """Number of sources whose record has an error."""
        return self.snapshot.sources_failed

    def __str__(self) -> str:
        """Return the figures as one line."""
        lines = summary_lines(self.snapshot, replaced_processes=self.replaced_processes)
        return "; ".join(f"{number} {text}".lstrip() for number, text in lines)
