"""What a run says of itself."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.client.endpoint import Answer
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting import meter, node_meter, track_meter
from reelscribe.reporting.bottleneck import Load, Resources
from reelscribe.reporting.forecast import SourceSize
from reelscribe.reporting.meter import Meter, NodeFigures, Snapshot
from reelscribe.reporting.node_meter import NodeMeter
from reelscribe.reporting.track_meter import Readings, TrackMeter, TrackSnapshot
from support.snapshots import FRAMES, ON_NODES, SNAPSHOT, SOUND


class Run:
    """A meter whose clock stands at 100 s when it is asked, with one decode process and 4 workers
    for frames.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.decode_seconds = SimpleNamespace(now=0.0), 0.0
        self.outage: Outage | None = None
        self.workers = 4
        for module in (meter, node_meter, track_meter):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.clock.now))
        self.meter, self.node = Meter(), NodeMeter()
        self.meter.all_listed = True
        self.meter.add_track("frames")
        self.frames = self.node.track(
            lambda: Resources("frames", 1, server_workers=self.workers, requests_in_flight=32, full_call=512),
            Readings(load=self.load, outage=lambda: self.outage),
        )
        figures = NodeFigures("here", "ready", workers=[1, 1], read_report=self.node.report, is_local=True)
        self.meter.nodes["here"] = figures
        self.clock.now = 100.0

    def load(self) -> Load:
        return Load(with_file=self.decode_seconds, busy=self.decode_seconds)

    def with_sound(self) -> TrackMeter:
        """One more track, with one decode process and two workers."""
        resources = Resources("seconds of audio", decode_workers=1, server_workers=2, requests_in_flight=32)
        self.meter.add_track("seconds of audio")
        return self.node.track(lambda: resources, Readings(decoded=lambda: 77.5))

    def expect(self, path: str, size: SourceSize, share: float = 0.0, amount: float = 0.0) -> None:
        """Expect a source, as driver and node do."""
        self.meter.expect(path, size, [share], [amount])
        self.node.expect(path, size)

    def finish(self, path: str, error: SourceError | None = None) -> None:
        """Finish a source, as node and driver do."""
        self.meter.finished(Source(path), error, self.node.close(path))

    @property
    def now(self) -> Snapshot:
        return self.meter.snapshot()

    def track(self) -> TrackSnapshot:
        """The only one."""
        (track,) = self.now.tracks
        return track


@pytest.fixture
def run(monkeypatch) -> Run:
    return Run(monkeypatch)


def test_at_the_very_start_nothing_is_known(run):
    for path in "abcd":
        run.expect(path, SourceSize("video", 1))
    run.clock.now = 0.0
    now, track = run.now, run.track()
    assert (now.sources, now.sources_done, now.sources_failed, now.frames, now.audio_seconds) == (4, 0, 0, 0, 0)
    assert (now.media_seconds_per_second, now.eta_seconds, track.decode_share, track.compute_share) == (0, None, 0, 0)
    assert now.bottleneck == "starting"


def test_sources_frames_and_hours_are_counted(run):
    run.frames.opened("a", 0.0)
    run.frames.saved("a", 300, 0.5, 3600.0)
    run.frames.saved("a", 200, 0.5, 3600.0)
    run.finish("a")
    run.finish("b", SourceError("MediaError", "empty"))
    now = run.now
    assert (now.sources_done, now.sources_failed, now.frames, now.seconds) == (2, 1, 500, 100.0)
    assert now.media_seconds_per_second == 72.0


def test_seconds_of_sound_are_counted_beside_frames(run):
    sound = run.with_sound()
    for track, count in ((run.frames, 40), (sound, 2.5)):
        track.opened("a", 0.0)
        track.saved("a", count, 0.5, 3600.0)
    now = run.now
    assert (now.frames, now.audio_seconds, now.media_seconds_per_second) == (40, 2.5, 36.0)
    assert [(track.counts, track.done, track.decoded) for track in now.tracks] == [
        ("frames", 40, 0),
        ("seconds of audio", 2.5, 77.5),
    ]


def test_a_snapshot_is_the_same_after_it_was_json(run):
    run.with_sound().opened("a", 0.5)
    run.outage = Outage("gone", since=1.5, until=901.5)
    run.finish("b", SourceError("MediaError", "empty"))
    assert Snapshot.from_json(json.loads(json.dumps(asdict(run.now)))) == run.now


def test_the_time_of_requests_is_shared_out(run):
    run.frames.answered(Answer([], "", 1.0, 2.0, 3.0, tokens=7))
    run.frames.answered(Answer([], "", 0.0, 0.0, 4.0))
    run.with_sound().answered(Answer([], "", 9.0, 9.0, 9.0))  # which is another server
    track, _ = run.now.tracks
    assert (track.requests, track.tokens) == (2, 7)
    assert (track.network_share, track.queue_share, track.compute_share) == pytest.approx((0.1, 0.2, 0.7))
    assert track.server_share == pytest.approx(7 / (100 * 4))


def test_how_full_calls_are_follows_from_what_answers_say_of_theirs(run):
    for items in (32, 32, 19):  # of one call of 83
        run.frames.answered(Answer([], "", 0.0, 0.0, 1.0, items=items, call_items=83))
    run.frames.answered(Answer([], "", 0.0, 0.0, 1.0, items=32, call_items=64))  # with one of another client
    run.frames.answered(Answer([], "", 0.0, 0.0, 1.0, items=32))  # of a server that does not say it
    assert run.track().call_items == pytest.approx((83 + 32) / 1.5)
    assert run.track().full_call == 512


def test_workers_that_come_and_go_count_from_then_on(run):
    run.frames.answered(Answer([], "", 0.0, 0.0, 100.0))
    shares = []
    for run.workers in (4, 1, 0):
        shares.append((run.track().server_workers, run.track().server_share))
    assert shares == [(4, 0.25), (1, 1.0), (0, 1.0)]


def test_decode_processes_are_busy_as_long_as_they_are_waited_for(run):
    run.decode_seconds = 50.0
    assert run.track().decode_share == 0.5
    run.decode_seconds = 300.0  # more than there is: it is read a little later than the clock
    assert run.track().decode_share == 1.0


def test_hours_of_media_are_those_of_this_run_whatever_earlier_runs_have_done(run):
    run.frames.opened("a", 0.8)
    run.frames.saved("a", 1, 0.1, 3600.0)
    assert run.now.media_seconds_per_second == 36.0


def test_videos_without_sound_count_in_full_though_one_model_alone_works_on_them(run):
    run.with_sound()
    for path in ("a", "b"):
        run.frames.opened(path, 0.0)
        run.frames.saved(path, 10, 1.0, 3600.0)
        run.finish(path)
    assert run.now.media_seconds_per_second == 72.0


def test_sources_of_earlier_runs_count_at_once_and_copies_are_told():
    meter = Meter()
    for _ in range(2):
        meter.done_before()
    assert (meter.snapshot().sources_done, meter.snapshot().sources_before) == (2, 2)
    for path, digest in (("a", "1"), ("b", "2"), ("c", "3"), ("copy of c", "3")):
        meter.finished(Source(path, 1, digest), None, before=path in "ab")
    assert (meter.snapshot().sources_done, meter.snapshot().sources_copies) == (4, 1)


def test_the_first_failures_are_named():
    meter = Meter()
    for number in range(7):
        meter.finished(Source(f"{number}.mp4"), SourceError("MediaError", "empty"))
    now = meter.snapshot()
    assert now.sources_failed == 7
    assert now.failures == tuple((f"{number}.mp4", "MediaError", "empty") for number in range(5))


def test_frames_and_seconds_of_the_whole_job_are_kept_apart_from_those_of_this_run(run):
    run.expect("a", SourceSize("video", 100), 0.5, 40.0)
    run.frames.opened("a", 0.5)
    run.frames.saved("a", 30, 0.5, 1.0, unsent=10)
    assert (run.track().done, run.track().done_before, run.track().unsent) == (30, 40, 10)


def test_a_wait_for_a_server_does_not_count_as_the_cost_of_a_source(run):
    run.clock.now = 0.0
    run.meter.snapshot()
    for path in ("a", "b"):
        run.expect(path, SourceSize("video", 10**6, 10.0))
    run.frames.begun("a")
    run.clock.now = 20.0
    run.meter.snapshot()
    run.outage = Outage("gone", since=0.0, until=900.0)
    run.clock.now = 500.0
    assert run.now.outage == run.outage
    run.outage = None
    run.clock.now = 520.0
    run.frames.ended("a")
    run.finish("a")
    assert run.now.eta_seconds == pytest.approx(40.0)


def test_recordings_cost_a_captioner_nothing(run):
    run.expect("a.mp3", SourceSize("audio", 10**6, 1000.0))
    assert run.now.eta_seconds == 0.0


def test_the_bottleneck_is_that_of_the_track_that_needs_longest():
    slow, fast = replace(FRAMES, eta_seconds=100.0), replace(SOUND, eta_seconds=90.0)
    assert replace(SNAPSHOT, tracks=(fast, slow)).bottleneck == FRAMES.bottleneck


def test_other_keys_of_a_saved_state_are_left_out():
    assert Snapshot.from_json({**asdict(SNAPSHOT), "costs": {}, "pid": 1}) == SNAPSHOT


def test_nodes_are_the_same_after_they_were_json():
    assert Snapshot.from_json(json.loads(json.dumps(asdict(ON_NODES)))) == ON_NODES


def test_a_source_is_open_until_it_is_finished(run):
    assert not run.frames.is_open("a")
    run.frames.opened("a", 0.0)
    assert run.frames.is_open("a")
    run.finish("a")
    assert not run.frames.is_open("a")
