"""How many nodes and sources can one driver serve, and which limit comes first?

    scripts/bench driver [--nodes 100] [--sources 1000000] [--seconds-per-source 0.1] [--runs RUN ...] [--json FILE]

The driver, its list of sources, its leases and its ledger are real. The nodes only sleep: they are all in one other
process, and make for each source the calls of the ledger that a captioner makes for a video of one frame. What driver
and nodes tell each other is pickled, and goes through a socket. What Ray would add for each call of a node is not in
the figures, but the number of calls is. The sources are a single file, found by a glob through links to its own folder,
as often as there are pairs of links; so their number is rounded up to a square.

The nodes of the run "idle" do nothing and save nothing. Those of "new" do all sources. The run "done", into the same
folder, finds all of them done. Each has a driver process of its own. Sources are counted between the first one that is
done and the last one; "end" is the time from there until the run returns, in which missing files are marked and the
files of results are written.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import re
import sqlite3
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

from fakes.sleeping_nodes import SleepingNodes
from lib.command import add_json_option, command_parser, run_command
from lib.delays import Stalls
from lib.report import Report, publish
from reelscribe._track_specs import ShotSpec
from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.outcomes import SourceError
from reelscribe.reporting.progress import Progress
from reelscribe.reporting.summary import Summary
from reelscribe.results.schema import NAME
from reelscribe.run.driver import Run
from reelscribe.run.tracks.shots import ShotOptions

MEGABYTE = 1e6

RUNS = ("idle", "new", "done")


class Moment(NamedTuple):
    """The resources that the driver has used until a moment."""

    seconds: float
    cpu_seconds: float
    loop_seconds: float
    """CPU seconds of the thread of the event loop."""
    ledger_seconds: float
    """CPU seconds of the thread of the ledger."""


class Figures(NamedTuple):
    """The figures of a run."""

    sources: int
    first: Moment
    """When the first source was done."""
    last: Moment
    """When the last source was done."""
    end: Moment
    peak_bytes: int
    stall_p99_ms: int
    stall_longest_ms: int
    calls: int
    bytes_sent: int
    largest_message: int


class Watch(Progress):
    """Notes when the first source is done, and when the last one."""

    def __init__(self, sources: int) -> None:
        """Expect so many sources."""
        self._left = sources
        self.first: Moment | None = None

    def finished(self, path: str, error: SourceError | None) -> None:  # noqa: ARG002 - see Progress
        """Count a source."""
        self._left -= 1
        if self.first is None:
            self.first = _moment()
        if not self._left:
            self.last = _moment()


def _moment() -> Moment:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used = {names.get(each.id): each.user_time + each.system_time for each in psutil.Process().threads()}
    return Moment(time.perf_counter(), time.process_time(), used["MainThread"], used.get("ledger_0", 0.0))


def make_sources(folder: Path, count: int) -> tuple[str, int]:
    """Make at least so many paths of sources.

    Returns:
        A glob that finds them, and how many there are.
    """
    links = math.isqrt(count - 1) + 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "video.mp4").touch()
    for number in range(links):
        link = folder / f"{number:04}"
        if not link.is_symlink():
            link.symlink_to(".")
    return str(folder / "*" / "*" / "video.mp4"), links**2


def drive(sources: str, count: int, out: Path, nodes: int, seconds_per_source: float | None) -> Figures:
    """Run the driver over all sources, and measure this process."""
    watch, cluster = Watch(count), SleepingNodes(nodes, seconds_per_source)
    run = Run(RemoteNodes([ShotSpec(ShotOptions())], cluster), out, progress=watch, thumbnails=0)

    async def measured() -> tuple[Summary, Stalls]:
        async with Stalls.measured() as stalls:
            return await run.run([sources]), stalls

    summary, stalls = asyncio.run(measured())
    assert watch.first
    assert summary.snapshot.sources_done == count
    peak = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return Figures(
        count,
        watch.first,
        watch.last,
        _moment(),
        int(peak[0]) * 1024,
        stalls.p99_ms,
        stalls.longest_ms,
        cluster.calls,
        cluster.bytes_sent,
        cluster.largest,
    )


def count_rows(ledger: Path) -> int:
    """Return the number of rows in all tables of a ledger."""
    with closing(sqlite3.connect(ledger)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sum(database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in names)  # noqa: S608


def measure(name: str, report: Report, sources: str, count: int, out: Path, arguments: argparse.Namespace) -> None:
    """Add a row about a run to the table."""
    ledger = out / NAME
    before = count_rows(ledger) if ledger.exists() else 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        seconds = None if name == "idle" else arguments.seconds_per_source
        figures = process.submit(drive, sources, count, out, arguments.nodes, seconds).result()
    first, last = figures.first, figures.last
    seconds = last.seconds - first.seconds
    report.add(
        name,
        f"{(count - 1) / seconds:.0f}",
        f"{(last.cpu_seconds - first.cpu_seconds) / count * 1e6:.0f}",
        f"{(last.loop_seconds - first.loop_seconds) / count * 1e6:.0f}",
        f"{(last.ledger_seconds - first.ledger_seconds) / count * 1e6:.0f}",
        f"{figures.peak_bytes / MEGABYTE:.0f}",
        f"{(count_rows(ledger) - before) / seconds:.0f}",
        f"{ledger.stat().st_size / MEGABYTE:.1f}",
        f"{figures.stall_p99_ms} / {figures.stall_longest_ms}",
        f"{figures.calls / (figures.end.seconds - first.seconds):.0f}",
        f"{figures.largest_message / 1000:.0f}",
        f"{figures.end.seconds - last.seconds:.1f}",
    )


def table(sources: int, nodes: int) -> Report:
    """Return the empty table."""
    columns = ("run", "sources/s", "driver us", "loop us", "ledger us", "peak MB", "rows/s", "ledger MB")
    return Report(
        f"A driver of {nodes} nodes that sleep, {sources} sources",
        (*columns, "stall ms, p99 / longest", "calls/s", "largest kB", "end s"),
        notes=["us: CPU time for a source, of the driver and of two of its threads, in microseconds"],
    )


def main() -> None:
    """Run all runs."""
    parser = command_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--sources", type=int, default=1_000_000)
    parser.add_argument("--seconds-per-source", type=float, default=0.1)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, help="by default all, in this order")
    add_json_option(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources, count = make_sources(folder / "library", arguments.sources)
        report = table(count, arguments.nodes)
        for name in arguments.runs:
            out = folder / ("idle" if name == "idle" else "out")
            measure(name, report, sources, count, out, arguments)
        publish([report], arguments.json)


if __name__ == "__main__":
    run_command(main)
