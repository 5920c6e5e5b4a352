"""What a run says of itself."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from reelscribe.reporting import meter
from reelscribe.reporting.meter import Meter, Snapshot, TrackMeter, TrackSnapshot


class Run:
    """A meter of 4 sources whose clock stands at 100 s when it is asked, with 2 decode processes and 4 workers for
    frames.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.decode_seconds = SimpleNamespace(now=0.0), 0.0
        monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: self.clock.now))
        self.meter = Meter(4)
        self.frames = self.meter.track(
            "frames", decode_workers=2, server_workers=4, decode_seconds=lambda: self.decode_seconds
        )
        self.clock.now = 100.0

    def with_sound(self) -> TrackMeter:
        """One more lane, with one decode process and two workers."""
        return self.meter.track(
            "seconds of sound",
            decode_workers=1,
            server_workers=2,
            decode_seconds=lambda: self.decode_seconds,
            decoded=lambda: 77.5,
        )

    @property
    def now(self) -> Snapshot:
        return self.meter.snapshot()

    def lane(self) -> TrackSnapshot:
        """The only one."""
        (lane,) = self.now.lanes
        return lane

    def bottleneck(self) -> str:
        self.frames.opened("a", 0.0)
        self.frames.saved("a", 10, 0.1, 1.0)
        return self.now.bottleneck


@pytest.fixture
def run(monkeypatch) -> Run:
    return Run(monkeypatch)


def test_at_the_very_start_nothing_is_known(run):
    run.clock.now = 0.0
    now, lane = run.now, run.lane()
    assert (now.sources, now.sources_done, now.sources_failed, now.frames, now.audio_seconds) == (4, 0, 0, 0, 0)
    assert (now.media_hours_per_hour, now.eta_seconds, lane.decode_share, lane.compute_share) == (0, None, 0, 0)
    assert now.bottleneck == "nothing yet"


def test_sources_frames_and_hours_are_counted(run):
    run.frames.opened("a", 0.0)
    run.frames.saved("a", 300, 0.5, 3600.0)
    run.frames.saved("a", 200, 0.5, 3600.0)
    run.meter.finished("a", failed=False)
    run.meter.finished("b", failed=True)
    now = run.now
    assert (now.sources_done, now.sources_failed, now.frames, now.seconds) == (2, 1, 500, 100.0)
    assert now.media_hours_per_hour == 72.0


def test_seconds_of_sound_are_counted_beside_frames(run):
    sound = run.with_sound()
    for lane, count in ((run.frames, 40), (sound, 2.5)):
        lane.opened("a", 0.0)
        lane.saved("a", count, 0.5, 3600.0)
    now = run.now
    assert (now.frames, now.audio_seconds, now.media_hours_per_hour) == (40, 2.5, 36.0)
    assert [(lane.counts, lane.done, lane.decoded) for lane in now.lanes] == [
        ("frames", 40, 0),
        ("seconds of sound", 2.5, 77.5),
    ]


def test_a_snapshot_is_the_same_after_it_was_json(run):
    run.with_sound().opened("a", 0.5)
    run.bottleneck()
    assert Snapshot.from_json(json.loads(json.dumps(asdict(run.now)))) == run.now


def test_the_time_of_requests_is_shared_out(run):
    run.frames.answered(1.0, 2.0, 3.0)
    run.frames.answered(0.0, 0.0, 4.0)
    run.with_sound().answered(9.0, 9.0, 9.0)  # which is another server
    lane, _ = run.now.lanes
    assert (lane.network_share, lane.queue_share, lane.compute_share) == pytest.approx((0.1, 0.2, 0.7))
    assert lane.server_share == pytest.approx(7 / (100 * 4))


def test_decode_processes_are_busy_as_long_as_they_are_waited_for(run):
    run.decode_seconds = 50.0
    assert run.lane().decode_share == 0.25
    run.decode_seconds = 300.0  # more than there is: it is read a little later than the clock
    assert run.lane().decode_share == 1.0


def test_the_time_left_is_that_of_what_is_not_done(run):
    run.frames.opened("a", 0.0)
    run.frames.saved("a", 1, 0.5, 1.0)
    assert run.now.eta_seconds == pytest.approx(100 / 0.5 * 3.5)
    run.meter.finished("a", failed=True)  # what is missing of it will not be done any more
    assert run.now.eta_seconds == pytest.approx(100 / 1.0 * 3)
    for path in ("b", "c", "d"):
        run.frames.opened(path, 0.0)
        run.meter.finished(path, failed=False)
    assert run.now.eta_seconds == 0


def test_what_an_earlier_run_has_done_takes_no_time(run):
    run.meter.finished("a", failed=False)  # it was never opened: all of it was done
    run.frames.opened("b", 0.8)
    assert run.now.eta_seconds is None
    run.frames.saved("b", 1, 0.1, 1.0)
    assert run.now.eta_seconds == pytest.approx(100 / 0.1 * 2.1)
    run.meter.finished("b", failed=False)
    assert run.now.eta_seconds == pytest.approx(100 / 0.2 * 2)


def test_of_a_source_that_two_models_work_on_each_does_a_half(run):
    sound = run.with_sound()
    run.frames.opened("a", 0.0)
    sound.opened("a", 0.0)
    run.frames.saved("a", 1, 1.0, 10.0)
    assert run.now.eta_seconds == pytest.approx(100 / 0.5 * 3.5)
    sound.saved("a", 1, 1.0, 10.0)
    assert run.now.eta_seconds == pytest.approx(100 / 1.0 * 3)
    run.meter.finished("a", failed=False)
    assert run.now.eta_seconds == pytest.approx(100 / 1.0 * 3)


def test_videos_without_sound_count_in_full_though_one_model_alone_works_on_them(run):
    run.with_sound()
    for path in ("a", "b"):
        run.frames.opened(path, 0.0)
        run.frames.saved(path, 10, 1.0, 3600.0)
        run.meter.finished(path, failed=False)
    assert (run.now.eta_seconds, run.now.media_hours_per_hour) == (pytest.approx(100.0), 72.0)


def test_as_long_as_nothing_new_is_done_no_rounding_looks_like_it(run):
    run.frames.opened("a", 0.1)
    run.meter.finished("b", failed=False)
    run.frames.opened("c", 0.2)
    run.frames.opened("d", 0.4)
    assert run.now.eta_seconds is None


def test_a_source_is_open_until_it_is_finished(run):
    assert not run.frames.is_open("a")
    run.frames.opened("a", 0.0)
    assert run.frames.is_open("a")
    run.meter.finished("a", failed=False)
    assert not run.frames.is_open("a")


def test_a_server_that_is_never_idle_is_the_bottleneck_whatever_else_is(run):
    run.decode_seconds = 200.0
    run.frames.answered(9999.0, 0.0, 380.0)
    assert run.bottleneck() == "server: 3.8 of 4 workers busy: add GPUs or servers"


def test_decoding_is_the_bottleneck_where_its_processes_are_always_waited_for(run):
    run.decode_seconds = 190.0
    run.frames.answered(9999.0, 0.0, 100.0)
    expected = "decoding: 1.9 of 2 processes busy, server idle 75%: add decode workers, or try --resize fast"
    assert run.bottleneck() == expected


def test_the_network_is_the_bottleneck_where_requests_spend_their_time_there(run):
    run.decode_seconds = 20.0
    run.frames.answered(300.0, 100.0, 100.0)
    assert run.bottleneck() == "network: 60% of request time is sending, server idle 75%: use a faster network"


def test_otherwise_there_is_too_little_to_do_at_a_time(run):
    run.decode_seconds = 20.0
    run.frames.answered(10.0, 100.0, 100.0)
    expected = "neither decoding (0.2 of 2 processes busy) nor the server (idle 75%): short runs and busy machines"
    assert run.bottleneck() == f"{expected} look like this"


def test_where_sound_is_decoded_the_advice_is_another(run):
    run.decode_seconds = 100.0
    sound = run.with_sound()
    sound.opened("a", 0.0)
    sound.saved("a", 30.0, 0.1, 30.0)
    expected = "decoding: 1.0 of 1 processes busy, server idle 100%: add --audio-workers"
    assert run.now.lanes[1].bottleneck == expected


def test_of_two_models_each_has_its_own_bottleneck(run):
    sound = run.with_sound()
    sound.opened("a", 0.0)
    sound.saved("a", 30.0, 0.1, 30.0)
    sound.answered(0.0, 0.0, 200.0)
    expected = "frames: nothing yet; seconds of sound: server: 2.0 of 2 workers busy: add GPUs or servers"
    assert run.now.bottleneck == expected
