"""What a run says of itself."""

import json
from dataclasses import asdict, replace

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.client.endpoint import Answer
from reelscribe.contract.outcomes import SourceError
from reelscribe.contract.source import Source
from reelscribe.reporting.counters import Counters
from reelscribe.reporting.meter import Meter, Snapshot
from support.metered_run import MeteredRun
from support.snapshots import FRAMES, ON_NODES, SNAPSHOT, SOUND


@pytest.fixture
def run(monkeypatch) -> MeteredRun:
    run = MeteredRun(monkeypatch)
    run.clock.now = 100.0
    return run


def test_at_the_very_start_nothing_is_known(run):
    for path in "abcd":
        run.expect(path)
    run.clock.now = 0.0
    now, track = run.now, run.figures
    assert (now.sources, now.sources_done, now.sources_failed, now.frames, now.audio_seconds) == (4, 0, 0, 0, 0)
    assert (now.media_seconds_per_second, now.eta_seconds, track.decode_share, track.compute_share) == (0, None, 0, 0)
    assert now.bottleneck == "starting"


def test_sources_frames_and_hours_are_counted(run):
    run.expect("a")
    run.track.opened("a", 0.0)
    run.track.saved("a", 300, 0.5, 3600.0)
    run.track.saved("a", 200, 0.5, 3600.0)
    run.finish("a")
    run.finish("b", SourceError("MediaError", "empty"))
    now = run.now
    assert (now.sources_done, now.sources_failed, now.frames, now.seconds) == (2, 1, 500, 100.0)
    assert now.media_seconds_per_second == 72.0


def test_seconds_of_sound_are_counted_beside_frames(run):
    run.counters = Counters(decoded=77.5)
    sound = run.add_track("seconds of audio")
    run.expect("a")
    for track, count in ((run.track, 40), (sound, 2.5)):
        track.opened("a", 0.0)
        track.saved("a", count, 0.5, 3600.0)
    now = run.now
    assert (now.frames, now.audio_seconds, now.media_seconds_per_second) == (40, 2.5, 36.0)
    assert [(track.counts, track.done, track.decoded) for track in now.tracks] == [
        ("frames", 40, 77.5),
        ("seconds of audio", 2.5, 0),
    ]


def test_a_snapshot_is_the_same_after_it_was_json(run):
    run.add_track("seconds of audio").opened("a", 0.5)
    run.outage = Outage("gone", since=1.5, until=901.5)
    run.finish("b", SourceError("MediaError", "empty"))
    assert Snapshot.from_json(json.loads(json.dumps(asdict(run.now)))) == run.now


def test_the_time_of_requests_is_shared_out(run):
    run.track.answered(Answer([], "", 1.0, 2.0, 3.0, tokens=7))
    run.track.answered(Answer([], "", 0.0, 0.0, 4.0))
    run.add_track("seconds of audio").answered(Answer([], "", 9.0, 9.0, 9.0))  # which is another server
    track, _ = run.now.tracks
    assert (track.requests, track.tokens) == (2, 7)
    assert (track.network_share, track.queue_share, track.compute_share) == pytest.approx((0.1, 0.2, 0.7))
    assert track.server_share == pytest.approx(7 / (100 * 4))


def test_how_full_calls_are_follows_from_what_answers_say_of_theirs(run):
    for items in (32, 32, 19):  # of one call of 83
        run.track.answered(Answer([], "", 0.0, 0.0, 1.0, items=items, call_items=83))
    run.track.answered(Answer([], "", 0.0, 0.0, 1.0, items=32, call_items=64))  # with one of another client
    run.track.answered(Answer([], "", 0.0, 0.0, 1.0, items=32))  # of a server that does not say it
    assert run.figures.call_items == pytest.approx((83 + 32) / 1.5)
    assert run.figures.full_call == 512


def test_workers_that_come_and_go_count_from_then_on(run):
    run.track.answered(Answer([], "", 0.0, 0.0, 100.0))
    shares = []
    for run.workers in (4, 1, 0):
        shares.append((run.figures.server_workers, run.figures.server_share))
    assert shares == [(4, 0.25), (1, 1.0), (0, 1.0)]


def test_decode_processes_are_busy_as_long_as_they_are_waited_for(run):
    run.counters = Counters(busy=50.0)
    assert run.figures.decode_share == 0.5
    run.counters = Counters(busy=300.0)  # more than there is: it is read a little later than the clock
    assert run.figures.decode_share == 1.0


def test_hours_of_media_are_those_of_this_run_whatever_earlier_runs_have_done(run):
    run.expect("a")
    run.track.opened("a", 0.8)
    run.track.saved("a", 1, 0.1, 3600.0)
    assert run.now.media_seconds_per_second == 36.0


def test_videos_without_sound_count_in_full_though_one_model_alone_works_on_them(run):
    run.add_track("seconds of audio")
    for path in ("a", "b"):
        run.expect(path)
        run.track.opened(path, 0.0)
        run.track.saved(path, 10, 1.0, 3600.0)
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
    run.expect("a", share=0.5, amount=40.0)
    run.track.opened("a", 0.5)
    run.track.saved("a", 30, 0.5, 1.0, unsent=10)
    assert (run.figures.done, run.figures.done_before, run.figures.unsent) == (30, 40, 10)


def test_the_bottleneck_is_that_of_the_track_that_needs_longest():
    slow, fast = replace(FRAMES, eta_seconds=100.0), replace(SOUND, eta_seconds=90.0)
    assert replace(SNAPSHOT, tracks=(fast, slow)).bottleneck == FRAMES.bottleneck


def test_other_keys_of_a_saved_state_are_left_out():
    assert Snapshot.from_json({**asdict(SNAPSHOT), "costs": {}, "pid": 1}) == SNAPSHOT


def test_the_state_of_an_earlier_version_lacks_what_it_did_not_know():
    earlier = asdict(SNAPSHOT)
    del earlier["done_share"]
    assert Snapshot.from_json(earlier) == replace(SNAPSHOT, done_share=0.0)


def test_a_track_that_waits_for_others_does_not_tell_the_limit_of_the_run():
    waiting = replace(SOUND, counts="summaries", bottleneck="waiting for texts to summarise", eta_seconds=900.0)
    assert replace(SNAPSHOT, tracks=(waiting, FRAMES)).bottleneck == FRAMES.bottleneck
    assert replace(SNAPSHOT, tracks=(waiting,)).bottleneck == waiting.bottleneck


def test_what_replaces_results_of_earlier_runs_counts_once_in_the_whole_job(run):
    run.expect("a", share=1.0, amount=4.0)
    run.track.count(redone=4.0)
    run.track.made("a", 4.0)
    assert (run.figures.done, run.figures.done_before) == (4.0, 0.0)


def test_nodes_are_the_same_after_they_were_json():
    assert Snapshot.from_json(json.loads(json.dumps(asdict(ON_NODES)))) == ON_NODES


def test_a_source_is_open_until_it_is_finished(run):
    assert not run.track.is_open("a")
    run.track.opened("a", 0.0)
    assert run.track.is_open("a")
    run.finish("a")
    assert not run.track.is_open("a")
