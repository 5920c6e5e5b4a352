"""The figures of a run are the sums of its nodes, those included that were lost."""

from dataclasses import replace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.forecast import OpenCost, SourceCost, SourceSize
from reelscribe.reporting.meter import Meter, NodeFigures
from reelscribe.reporting.node_meter import NodeReport
from support.snapshots import FRAMES, SOUND

REPORT = NodeReport(60.0, 150.0, (FRAMES, SOUND), ({}, {}), replaced_processes=2)


def meter_of(**nodes: NodeFigures) -> Meter:
    meter = Meter()
    meter.add_track("frames")
    meter.add_track("seconds of audio")
    meter.nodes.update(nodes)
    return meter


def test_before_a_node_has_reported_there_is_nothing_but_its_state():
    now = meter_of(a=NodeFigures("a")).snapshot()
    assert (now.tracks, now.sources, now.media_seconds_per_second, now.bottleneck) == ((), 0, 0.0, "starting")
    assert [(node.name, node.state, node.is_ready) for node in now.nodes] == [("a", "starting", False)]
    assert now.nodes_ready == 0
    assert not now.all_listed


def test_what_nodes_have_done_is_added_up():
    meter = meter_of(a=NodeFigures("a", "ready", report=REPORT), b=NodeFigures("b", "ready", report=REPORT))
    frames, sound = meter.snapshot().tracks
    assert (frames.done, frames.unsent, frames.requests, frames.retries) == (2400, 200, 80, 4)
    assert (sound.counts, sound.done) == ("seconds of audio", 2 * 5400.4)


def test_the_speed_is_what_all_nodes_have_done_in_the_time_of_the_run(monkeypatch):
    clock = iter([100.0, 220.0])
    monkeypatch.setattr("reelscribe.reporting.meter.time.monotonic", lambda: next(clock))
    meter = meter_of(a=NodeFigures("a", report=REPORT), b=NodeFigures("b", report=REPORT))
    now = meter.snapshot()  # each node has done 60 s at 2.5 times real time
    assert (now.seconds, now.media_seconds_per_second) == (120.0, pytest.approx(2.5))
    assert [node.media_seconds_per_second for node in now.nodes] == [2.5, 2.5]


def test_what_a_lost_node_has_done_stays_counted_and_is_not_counted_twice():
    node = NodeFigures("a", "ready", sources_open=7, sources_done=3, report=REPORT)
    meter = meter_of(a=node)
    meter.ended(node)
    meter.ended(node)
    assert (meter.snapshot().tracks[0].done, meter.replaced_processes) == (1200, 2)
    node.report = REPORT._replace(replaced_processes=1)  # it was started again
    now = meter.snapshot()
    assert (now.tracks[0].done, now.tracks[0].requests, meter.replaced_processes) == (2400, 80, 3)
    assert (now.nodes[0].sources_done, now.nodes[0].sources_open) == (3, 0)


def test_how_busy_nodes_are_is_their_mean_without_those_that_are_lost():
    busy, lost = NodeFigures("a", report=REPORT), NodeFigures("c", report=REPORT)
    idle = replace(FRAMES, decode_share=0.1, server_share=0.3, bottleneck="the server is the limit: add GPUs")
    meter = meter_of(a=busy, b=NodeFigures("b", report=REPORT._replace(tracks=(idle, SOUND))), c=lost)
    meter.ended(lost)
    frames = meter.snapshot().tracks[0]
    assert (frames.decode_share, frames.server_share) == (pytest.approx(0.3), pytest.approx(0.6))


def test_the_bottleneck_is_that_of_most_nodes():
    other = REPORT._replace(tracks=(replace(FRAMES, bottleneck="the server is the limit: add GPUs"), SOUND))
    meter = meter_of(a=NodeFigures("a", report=other), b=NodeFigures("b", report=other))
    assert meter.snapshot().bottleneck == "the server is the limit: add GPUs"
    meter.nodes["c"] = NodeFigures("c", report=REPORT)
    assert meter.snapshot().tracks[0].bottleneck == "the server is the limit: add GPUs on 2 of 3 nodes"


def test_an_outage_of_one_node_is_told():
    outage = Outage("refused", since=1.0, until=2.0)
    meter = meter_of(a=NodeFigures("a", report=REPORT), b=NodeFigures("b", report=REPORT._replace(outage=outage)))
    assert meter.snapshot().outage == outage


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


SIZE = SourceSize("video", 10**6, 100.0)


def test_the_time_left_is_forecast_from_what_all_nodes_tell_once_all_sources_are_listed():
    meter = Meter()
    meter.add_track("frames")
    for name in "ab":
        begun = {f"{name}.mp4": OpenCost(SIZE, left=0.5, now=0.5, seconds=5.0)}
        report = NodeReport(60.0, 0.0, (FRAMES,), (begun,))
        meter.nodes[name] = NodeFigures(name, "ready", workers=[1], report=report)
    for name in "abcdef":
        meter.expect(f"{name}.mp4", SIZE, [0.0])
    meter.finished(Source("c.mp4"), None, [SourceCost(SIZE, 1.0, 10.0)])
    assert meter.time_left() is None
    meter.all_listed = True
    assert meter.time_left().seconds == pytest.approx(25.0)  # d, e and f after the halves of a and b, on two processes


def test_the_sources_of_a_lost_node_wait_again():
    meter = Meter()
    meter.add_track("frames")
    meter.all_listed = True
    meter.expect("a.mp4", SIZE, [0.0])
    meter.finished(Source("b.mp4"), None, [SourceCost(SIZE, 1.0, 10.0)])
    begun = {"a.mp4": OpenCost(SIZE, left=0.5, now=0.5, seconds=5.0)}
    node = meter.nodes["a"] = NodeFigures("a", workers=[1], report=NodeReport(60.0, 0.0, (FRAMES,), (begun,)))
    assert meter.time_left().seconds == pytest.approx(5.0)
    meter.ended(node)
    meter.expect_again("a.mp4", SIZE, [0.0])
    assert meter.time_left().seconds == pytest.approx(10.0)
