"""Measures ways to do the same work: each is a client in a process of its own, with the server that it needs, if any.

The programs of the clients are in bench/peers; each prints an outcome (peers/outcome.py).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from lib.command import killed_at_end
from lib.report import Spread, take_turns
from peers.outcome import Outcome
from peers.services import Service, environment

Servers = Mapping[str, Callable[[Path], AbstractContextManager[Service]]]
"""Servers by name; each needs a directory of its own."""


@dataclass(frozen=True)
class Way:
    """A client, and the server that it needs, if any."""

    server: str | None
    module: str
    options: tuple[str, ...] = ()
    python: str = sys.executable
    """The Python that runs the client."""


@dataclass(frozen=True)
class Work:
    """The work that all ways do."""

    sources: Sequence[Path]
    items: int
    """Number of texts that every way returns."""
    per: int = 1000
    """CPU and bytes are for so many items."""


@dataclass(frozen=True)
class Figures:
    """Figures of one run of one way; CPU and bytes are for `Work.per` items."""

    per_second: float
    """Items per second from the start of the client to the last answer."""
    steady_per_second: float
    """Items per second from when a quarter of the items was answered."""
    client_cpu_seconds: float
    server_cpu_seconds: float
    sent_mb: float


def columns(unit: str) -> dict[str, str]:
    """Headings of the attributes of `Figures`, for items that are called `unit`."""
    return {
        "per_second": f"{unit}/s",
        "steady_per_second": "steady",
        "client_cpu_seconds": "client CPU s",
        "server_cpu_seconds": "server CPU s",
        "sent_mb": "sent MB",
    }


@dataclass
class Peak:
    """Peak memory of all processes of a client, and of all of its server, in MB."""

    client: float = 0.0
    server: float = 0.0

    def watch(self, client: subprocess.Popen[str], server: Sequence[psutil.Process]) -> None:
        """Measure until the client ends."""
        while client.poll() is None:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(client.pid)
                self.client = max(self.client, _memory_mb([process, *process.children(recursive=True)]))
            self.server = max(self.server, _memory_mb(server))
            time.sleep(0.1)


@dataclass
class Measured:
    """One way: the figures of its rounds, and memory and texts of the warm-up run."""

    figures: list[Figures] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)
    texts: list[str] = field(default_factory=list)
    stalls_ms: list[int] = field(default_factory=list)
    """The longest stall of the event loop in each round, for clients that measure it."""

    def spread(self, name: str) -> Spread:
        """One attribute of Figures in all rounds."""
        return Spread(tuple(getattr(each, name) for each in self.figures))

    def same_texts(self, texts: Sequence[str]) -> str:
        """Percentage of texts that are equal to others."""
        same = sum(a == b for a, b in zip(self.texts, texts, strict=True))
        return f"{100 * same / len(self.texts):.1f}"


def run(way: Way, service: Service | None, work: Work, peak: Peak | None = None) -> tuple[Figures, Outcome]:
    """Run a client, and return the figures and its outcome.

    Args:
        way: The client.
        service: Its server.
        work: What it does.
        peak: Measures memory meanwhile, which takes some CPU time; None to leave that out.
    """
    command = [way.python, "-m", way.module, *way.options, *(service.options if service else ())]
    command += map(str, work.sources)
    server = service.processes if service else ()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as log:
        before = sum(map(_cpu_seconds, server))
        with killed_at_end(
            subprocess.Popen(command, env=environment(), stdout=output, stderr=log, text=True)
        ) as client:
            if peak:
                peak.watch(client, server)
            client.wait()
        server_cpu_seconds = sum(map(_cpu_seconds, server)) - before
        output.seek(0)
        log.seek(0)
        assert client.returncode == 0, log.read()
        outcome = Outcome.from_output(output.read())
    assert outcome.items == work.items, f"{way}: expected {work.items} texts, got {outcome.items}"
    share = work.per / work.items
    figures = Figures(
        outcome.per_second,
        outcome.steady_per_second,
        outcome.cpu_seconds * share,
        server_cpu_seconds * share,
        outcome.sent_bytes * share / 1e6,
    )
    return figures, outcome


def measure(directory: Path, ways: Mapping[str, Way], servers: Servers, work: Work, rounds: int) -> dict[str, Measured]:
    """Start the servers, run each way once to warm up, and then all of them in turns. Only the server of a way runs.

    Args:
        directory: A folder in which each server gets one of its own.
        ways: What to measure, by name.
        servers: How the servers are started that the ways name.
        work: What each of them does.
        rounds: How often each way runs.
    """
    measured = {name: Measured() for name in ways}
    with ExitStack() as stack:
        names = {way.server for way in ways.values() if way.server}
        services = dict[str, Service]()
        for name in sorted(names):
            services[name] = stack.enter_context(servers[name](directory / name))
            stack.callback(services[name].resume)
            services[name].suspend()

        def once(name: str, peak: Peak | None = None) -> tuple[Figures, Outcome]:
            server = ways[name].server
            if server is None:
                return run(ways[name], None, work, peak)
            with services[server].running() as service:
                return run(ways[name], service, work, peak)

        def one_round(name: str) -> float:
            figures, outcome = once(name)
            measured[name].figures.append(figures)
            if outcome.longest_stall_ms is not None:
                measured[name].stalls_ms.append(outcome.longest_stall_ms)
            return figures.per_second

        for name in ways:
            measured[name].texts = once(name, measured[name].peak)[1].texts
        take_turns(rounds, {name: partial(one_round, name) for name in ways})
    return measured


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory_mb(processes: Sequence[psutil.Process]) -> float:
    """PSS of the processes that still run; it divides shared pages among the processes that share them."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6
