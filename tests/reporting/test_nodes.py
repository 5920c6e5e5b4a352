"""The figures of a run are the sums of its nodes, those included that were lost."""

from dataclasses import replace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.counters import Counters, NodeReport, Resources
from reelscribe.reporting.meter import Meter, NodeFigures
from reelscribe.reporting.node_meter import NodeMeter
from reelscribe.reporting.time_left import SourceSize

SUMS = Counters(
    seconds=60.0,
    done=1200,
    unsent=100,
    requests=40,
    retries=2,
    with_file=120,
    busy=60,
    compute=216,
    in_flight=250,
    replaced=2,
)
HAS = Resources("frames", decode_workers=2, server_workers=4, requests_in_flight=32, cores=8)
SOUND = Counters(seconds=60.0, done=5400.4), replace(HAS, counts="seconds of audio")
REPORT = NodeReport(150.0, [(SUMS, HAS), SOUND])


def figures(name: str, report: NodeReport = REPORT, state: str = "ready") -> NodeFigures:
    node = NodeFigures(name, state)
    node.keep(report)
    return node


def meter_of(*nodes: NodeFigures) -> Meter:
    meter = Meter()
    meter.add_track("frames")
    meter.add_track("seconds of audio")
    meter.nodes.update({node.name: node for node in nodes})
    return meter


@pytest.mark.parametrize(
    "node", [NodeFigures("a"), figures("a", NodeMeter().report(), "starting")], ids=["silent", "bare"]
)
def test_before_a_node_has_reported_there_is_nothing_but_its_state(node):
    now = meter_of(node).snapshot()
    assert (now.tracks, now.sources, now.media_seconds_per_second, now.bottleneck) == ((), 0, 0.0, "starting")
    assert [(each.name, each.state, each.is_ready) for each in now.nodes] == [("a", "starting", False)]
    assert now.nodes_ready == 0
    assert not now.all_listed


def test_what_nodes_have_done_is_added_up():
    frames, sound = meter_of(figures("a"), figures("b")).snapshot().tracks
    assert (frames.done, frames.unsent, frames.requests, frames.retries) == (2400, 200, 80, 4)
    assert (sound.counts, sound.done) == ("seconds of audio", 2 * 5400.4)


def test_the_speed_is_what_all_nodes_have_done_in_the_time_of_the_run(monkeypatch):
    clock = iter([100.0, 220.0])
    monkeypatch.setattr("reelscribe.reporting.meter.time.monotonic", lambda: next(clock))
    now = meter_of(figures("a"), figures("b")).snapshot()  # each node has done 60 s at 2.5 times real time
    assert (now.seconds, now.media_seconds_per_second) == (120.0, pytest.approx(2.5))
    assert [node.media_seconds_per_second for node in now.nodes] == [2.5, 2.5]


def test_what_a_lost_node_has_done_stays_counted_and_is_not_counted_twice():
    node = figures("a")
    node.sources_open, node.sources_done = 7, 3
    meter = meter_of(node)
    meter.ended(node)
    meter.ended(node)
    assert (meter.snapshot().tracks[0].done, meter.replaced_processes) == (1200, 2)
    node.keep(REPORT._replace(tracks=[(replace(SUMS, replaced=1), HAS), SOUND]))  # it was started again
    now = meter.snapshot()
    assert (now.tracks[0].done, now.tracks[0].requests, meter.replaced_processes) == (2400, 80, 3)
    assert (now.nodes[0].sources_done, now.nodes[0].sources_open) == (3, 0)


def test_how_busy_nodes_are_follows_from_their_sums_without_those_that_are_lost():
    idle, lost = replace(SUMS, busy=12.0, compute=72.0), figures("c")
    meter = meter_of(figures("a"), figures("b", REPORT._replace(tracks=[(idle, HAS), SOUND])), lost)
    meter.ended(lost)
    frames = meter.snapshot().tracks[0]
    assert (frames.decode_share, frames.server_share) == (pytest.approx(0.3), pytest.approx(0.6))


def test_the_bottleneck_is_that_of_the_sums_and_each_node_has_its_own():
    decoding = REPORT._replace(tracks=[(replace(SUMS, busy=119.0, compute=50.0), HAS), SOUND])
    now = meter_of(figures("a"), figures("b", decoding), figures("c")).snapshot()
    server, option = "the server is the limit: add GPUs", "decoding is the limit: add --decode-workers"
    assert now.tracks[0].bottleneck == server
    assert [node.bottleneck for node in now.nodes] == [server, option, server]


def test_an_outage_of_one_node_is_told_until_it_ends():
    outage = Outage("refused", since=1.0, until=2.0)
    waiting = figures("b", REPORT._replace(tracks=[(SUMS, replace(HAS, outage=outage)), SOUND]))
    meter = meter_of(figures("a"), waiting)
    assert meter.snapshot().outage == outage
    meter.ended(waiting)
    assert meter.snapshot().outage is None


def test_sources_are_counted_as_they_are_finished():
    meter = Meter()
    meter.done_before()
    meter.finished(Source("a", 1, "ab" * 32), None, before=True)
    meter.finished(Source("b", 1, "cd" * 32), None)
    meter.finished(Source("c", 1, "cd" * 32), None)
    for number in range(7):
        meter.finished(Source(f"{number}"), SourceError("MediaError", "empty"))
    now = meter.snapshot()
    assert (now.sources_done, now.sources_before, now.sources_copies, now.sources_failed) == (10, 1, 1, 7)
    assert now.failures == tuple((f"{number}", "MediaError", "empty") for number in range(5))


def test_the_time_left_follows_from_what_all_nodes_have_done_and_what_a_lost_one_had_open_is_left_again(monkeypatch):
    clock = iter([0.0, 10.0, 10.0])
    monkeypatch.setattr("reelscribe.reporting.meter.time.monotonic", lambda: next(clock))
    size, worked = SourceSize("video", 10**6, 99.0), replace(SUMS, worked=50.0)
    one, other = (figures(name, REPORT._replace(tracks=[(worked, replace(HAS, open_seconds=50.0))])) for name in "ab")
    meter = Meter()
    meter.add_track("frames")
    meter.nodes.update(a=one, b=other)
    meter.all_listed = True
    for _ in range(5):
        meter.expect(size, [0.0])
    assert meter.snapshot().eta_seconds == pytest.approx(40.0)  # at 10 times real time, 400 s are left
    meter.ended(other)
    assert meter.snapshot().done_share == pytest.approx(0.1)
