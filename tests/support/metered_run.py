"""A meter of a run with one node, whose clock a test sets, and a library that such a run works through."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Header, Source
from reelscribe.reporting import meter, node_meter
from reelscribe.reporting.counters import Counters, Resources
from reelscribe.reporting.meter import Meter, NodeFigures, Snapshot, TrackSnapshot
from reelscribe.reporting.node_meter import NodeMeter, TrackMeter
from reelscribe.reporting.time_left import SourceSize
from reelscribe.reporting.units import Counts


class MeteredRun:
    """A meter with one decode process and four workers for frames, whose clock stands at 0 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counts: Counts = "frames") -> None:
        self.clock, self.counters, self.workers = SimpleNamespace(now=0.0), Counters(), 4
        self.outage: Outage | None = None
        for module in (meter, node_meter):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.clock.now))
        self.meter, self.node = Meter(), NodeMeter()
        self.meter.all_listed = self.meter.all_leased = True
        self.sizes: dict[str, SourceSize] = {}
        self.track = self.add_track(counts)
        self.meter.nodes["here"] = NodeFigures("here", "ready", read_report=self.node.report, is_local=True)

    def add_track(self, counts: Counts) -> TrackMeter:
        """Add a track; the first one counts what `counters` has."""
        counters = Counters() if self.node.tracks else None
        self.meter.add_track(counts)
        return self.node.track(
            lambda: Resources(counts, 1, self.workers, requests_in_flight=32, full_call=512, outage=self.outage),
            lambda: counters or self.counters,
        )

    def expect(self, path: str, size: SourceSize | None = None, share: float = 0.0, amount: float = 0.0) -> None:
        """Expect a source, as driver and node do; one of 100 s if nothing is said of it."""
        size = self.sizes[path] = size or SourceSize("video", 10**7, 100.0)
        self.meter.expect(size, [share] * len(self.node.tracks), [amount] * len(self.node.tracks))
        self.node.expect(path, size)

    def learn(self, path: str, seconds: float) -> None:
        """Open a source, as node and driver do."""
        old, new = self.sizes[path], SourceSize(self.sizes[path].kind, self.sizes[path].bytes, seconds)
        self.node.learn_header(path, Header(seconds, 25.0))
        self.meter.learn(old, new, [0.0])
        self.sizes[path] = new

    def finish(self, path: str, error: SourceError | None = None) -> None:
        """Finish a source, as node and driver do."""
        self.node.close(path)
        self.meter.finished(Source(path), error, self.sizes.get(path), [0.0] * len(self.node.tracks))

    @property
    def now(self) -> Snapshot:
        """The figures at this moment."""
        return self.meter.snapshot()

    @property
    def figures(self) -> TrackSnapshot:
        """Those of the only track."""
        (track,) = self.now.tracks
        return track


@dataclass
class Told:
    """What a run told at a moment."""

    over: float
    """Fraction of the time of the run that was over."""
    left: float
    """The time that was left."""
    told: float | None
    plus_minus: float | None
    share: float
    """Fraction of the work that it said was done."""


@dataclass
class Library:
    """Sources of all lengths in an order that chance decides; some are damaged, and their length is never known."""

    seed: int
    knows_durations: bool = True
    sources: dict[str, tuple[SourceSize, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        for number in range(200):
            kind = chance.choice(("clip", "clip", "clip", "film", "long", "damaged"))
            lengths = {"clip": (1.0, 5.0), "film": (20.0, 120.0), "long": (200.0, 1200.0), "damaged": (1.0, 120.0)}
            seconds = chance.uniform(*lengths[kind])
            size = int(seconds * chance.uniform(1e5, 4e5))
            known = seconds if self.knows_durations and kind != "damaged" else None
            self.sources[str(number)] = SourceSize("video", size, known), None if kind == "damaged" else seconds

    def work(self, run: MeteredRun, *, speed: float = 20.0, request: float = 8.0) -> Sequence[Told]:
        """Work through all sources, and return what was told each second.

        Everything is decoded at once, and the server answers a request of so many seconds of media after the other.

        Args:
            run: A fresh one.
            speed: Seconds of media that the server takes in a second, after the first five.
            request: Seconds of media in a request; the last one of a source may have less.
        """
        snapshots: list[tuple[float, Snapshot]] = []

        def wait(seconds: float) -> None:
            end = run.clock.now + seconds
            while int(run.clock.now) < int(end):
                run.clock.now = float(int(run.clock.now) + 1)
                snapshots.append((run.clock.now, run.now))
            run.clock.now = end

        for path, (size, _) in self.sources.items():
            run.expect(path, size)
        for path in self.sources:
            run.track.begun(path)
        wait(5.0)
        for path, (_, seconds) in self.sources.items():
            if seconds is None:
                wait(0.1)
                run.finish(path, SourceError("MediaError", "damaged"))
                continue
            run.learn(path, seconds)
            run.track.opened(path, 0.0)
            done = 0.0
            while done < seconds:
                part = min(request, seconds - done)
                wait(part / speed)
                run.track.saved(path, 2 * part, part / seconds, part)
                done += part
            run.finish(path)
        end = run.clock.now
        return [Told(at / end, end - at, now.eta_seconds, now.eta_plus_minus, now.done_share) for at, now in snapshots]
