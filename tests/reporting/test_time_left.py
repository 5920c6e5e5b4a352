"""The time left and the bar: only what is answered and saved counts, by its duration."""

import pytest

from reelscribe.client.balancer import Outage
from reelscribe.client.endpoint import Answer
from reelscribe.contract.outcomes import SourceError
from reelscribe.reporting.counters import Counters
from reelscribe.reporting.formatting import describe_time_left
from reelscribe.reporting.meter import Meter
from reelscribe.reporting.time_left import SourceSize
from support.metered_run import Library, MeteredRun

SEEDS = range(6)


@pytest.fixture
def run(monkeypatch) -> MeteredRun:
    return MeteredRun(monkeypatch)


@pytest.mark.parametrize("knows_durations", [True, False])
def test_the_time_left_of_a_mixed_library_is_as_right_as_it_says(monkeypatch, knows_durations):
    runs = [Library(seed, knows_durations).work(MeteredRun(monkeypatch)) for seed in SEEDS]
    for point, error in ((0.1, 0.6), (0.25, 0.4), (0.5, 0.4), (0.75, 0.4)):
        at = [next(each for each in told if each.over >= point) for told in runs]
        assert sum(abs(each.told - each.left) <= each.plus_minus for each in at) >= len(at) - 1
        assert all(each.told == pytest.approx(each.left, rel=error) for each in at)


def test_the_uncertainty_shrinks_and_the_bar_grows_with_the_time(run):
    told = Library(1).work(run)
    early, late = ([each for each in told if low <= each.over < low + 0.1] for low in (0.1, 0.7))
    relative = [sum(each.plus_minus / each.told for each in some) / len(some) for some in (early, late)]
    assert relative[0] > relative[1] > 0.16
    assert [each.share for each in told] == sorted(each.share for each in told)
    assert all(each.share == pytest.approx(each.over, abs=0.15) for each in told)


def test_what_is_only_decoded_is_not_done(run):
    run.expect("a")
    run.track.begun("a")
    run.track.opened("a", 0.0)
    told = []
    for second in range(1, 53):
        run.clock.now = float(second)
        if second in (5, 30):  # an answer; all of it was decoded long before
            run.track.saved("a", 25, 0.25, 25.0)
        told.append((run.now.eta_seconds, run.now.done_share))
    assert told[:4] == [(None, 0.0)] * 4
    assert [eta for eta, _ in told[4:13]] == [None] * 9  # too little is known
    assert all(eta > 5.0 for eta, _ in told[13:])
    assert [share for _, share in told[4:]] == pytest.approx([0.25] * 25 + [0.5] * 23)


def test_answers_that_come_many_at_once_after_a_slow_start_tell_a_time_that_may_be_right(monkeypatch):
    """The answers of a server on two cores about 45 recordings, one of which lasts for 15 minutes."""
    run = MeteredRun(monkeypatch, "seconds of audio")
    answers = {4: 12.0, 8: 79.0, 16: 350.0, 20: 325.0, 27: 474.0, 30: 160.0}
    run.expect("a", SourceSize("audio", 10**7, 1399.0))
    run.track.begun("a")
    run.track.opened("a", 0.0)
    before = None
    for second in range(1, 30):
        run.clock.now = float(second)
        if seconds := answers.get(second):
            run.track.saved("a", seconds, seconds / 1400, seconds * 1399 / 1400)
        run.counters = Counters(busy=min(second, 15.0), with_file=float(second))
        if (now := run.now).eta_seconds is None:
            assert second < 16
            continue
        factor = 1 + now.eta_plus_minus / now.eta_seconds
        assert now.eta_seconds / factor < 31 - second < now.eta_seconds * factor
        assert seconds or now.eta_seconds <= before
        before = now.eta_seconds


def test_a_long_source_is_more_of_the_bar_than_a_short_one(run):
    run.expect("short", SourceSize("video", 100, 3.0))
    run.expect("long", SourceSize("video", 100, 1195.0))
    run.finish("short")
    assert (run.now.sources_done, run.now.done_share) == (1, pytest.approx(4 / 1200))


def test_less_is_never_left_than_a_request_takes(run):
    run.expect("a")
    run.track.opened("a", 0.0)
    run.clock.now = 100.0
    for _ in range(8):  # at once
        run.track.answered(Answer([], "", 1.0, 900.0, 59.0))
    run.track.saved("a", 99, 0.99, 99.0)
    assert run.now.eta_seconds == pytest.approx(60.0)


def test_the_rest_of_a_recording_takes_one_process_and_that_of_a_video_all(monkeypatch):
    left = []
    for counts in ("frames", "seconds of audio"):
        run = MeteredRun(monkeypatch, counts)
        for path, seconds in (("a", 99.0), ("b", 99.0), ("c", 99.0), ("long", 999.0)):
            run.expect(path, SourceSize("video", 100, seconds))
            run.track.begun(path)
            run.track.opened(path, 0.0)
        for path in "abc":
            run.track.saved(path, 99, 1.0, 99.0)
            run.finish(path)
        run.clock.now = 10.0  # three processes have read 100 s each
        run.counters = Counters(busy=30.0, with_file=30.0)
        left.append(run.now.eta_seconds)
    assert left == [pytest.approx(1000 / 30), pytest.approx(1000 / 10)]


def test_sources_that_come_to_nothing_are_expected_among_what_is_left(run):
    for path in "abcdefgh":
        run.expect(path)
    run.clock.now = 10.0
    for path in "abcd":
        if path in "ab":
            run.track.opened(path, 0.0)
            run.track.saved(path, 100, 1.0, 100.0)
        run.finish(path, None if path in "ab" else SourceError("MediaError", "damaged"))
    assert run.now.eta_seconds == pytest.approx(10.0)


def test_unknown_durations_are_guessed_from_those_that_are_known(run):
    run.expect("known", SourceSize("video", 10**7, 99.0))
    run.expect("unknown", SourceSize("video", 2 * 10**7))
    run.track.opened("known", 0.0)
    run.track.saved("known", 99, 1.0, 99.0)
    run.clock.now = 10.0
    assert run.now.eta_seconds == pytest.approx(19.9)
    run.learn("unknown", 49.0)
    assert run.now.eta_seconds == pytest.approx(5.0)


def test_a_wait_for_a_server_is_no_time_of_the_run(run):
    for path in "ab":
        run.expect(path)
        run.track.opened(path, 0.0)
    run.track.saved("a", 100, 1.0, 100.0)
    run.clock.now = 20.0
    assert run.now.eta_seconds == pytest.approx(20.0)
    run.outage = Outage("gone", since=0.0, until=900.0)
    run.clock.now = 500.0
    assert (run.now.outage, run.now.eta_seconds) == (run.outage, pytest.approx(20.0))


@pytest.mark.parametrize(("path", "share"), [("a.mp3", 0.0), ("a.mp4", 1.0)])
def test_recordings_and_what_was_done_before_are_no_work_for_a_captioner(run, path, share):
    run.expect(path, SourceSize("audio" if path == "a.mp3" else "video", 10**6, 1000.0), share)
    assert (run.now.eta_seconds, run.now.done_share) == (0.0, 1.0)


def test_a_track_that_is_done_with_a_source_does_not_wait_for_the_others(run):
    sound = run.add_track("seconds of audio")
    run.expect("mute")
    run.track.opened("mute", 0.0)
    run.track.saved("mute", 50, 0.5, 50.0)
    sound.completed("mute")
    run.clock.now = 10.0
    assert [track.eta_seconds for track in run.now.tracks] == [pytest.approx(10.0), 0.0]


def test_a_run_that_goes_on_counts_what_earlier_ones_have_done():
    meter = Meter()
    meter.add_track("frames", speed_before=10.0)
    meter.all_listed = True
    meter.expect(SourceSize("video", 100, 99.0), [1.0])
    meter.done_before()
    meter.expect(SourceSize("video", 100, 99.0), [0.4])
    assert meter.time_left().seconds == pytest.approx(6.0)  # by the speed of an earlier run
    assert (meter.snapshot().done_share, meter.speeds()) == (pytest.approx(0.7), [10.0])


def test_few_sources_are_no_experience(run):
    run.expect("a")
    run.track.opened("a", 0.0)
    run.track.saved("a", 10, 0.1, 10.0)
    run.clock.now = 10.0
    now = run.now
    assert describe_time_left(now.eta_seconds, now.eta_plus_minus).startswith("about ")


def test_nothing_is_told_before_all_sources_are_listed(run):
    run.meter.all_listed = False
    run.expect("a")
    run.track.opened("a", 0.0)
    run.track.saved("a", 10, 0.1, 10.0)
    run.clock.now = 10.0
    assert run.now.eta_seconds is None
