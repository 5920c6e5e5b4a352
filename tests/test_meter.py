"""What a run says of itself."""

from types import SimpleNamespace

import pytest

from reelscribe.meter import Meter


class Run:
    """A meter of 4 sources, 2 decode processes and 4 workers, whose clock stands at 100 s when it is asked."""

    def __init__(self) -> None:
        self.clock, self.decode_seconds = SimpleNamespace(now=0.0), 0.0
        self.meter = Meter(
            4,
            decode_workers=2,
            server_workers=4,
            decode_seconds=lambda: self.decode_seconds,
            now=lambda: self.clock.now,
        )
        self.clock.now = 100.0

    def bottleneck(self) -> str:
        self.meter.opened("a", 0.0)
        self.meter.saved("a", 10, 0.1, 1.0)
        return self.meter.snapshot().bottleneck


@pytest.fixture
def run() -> Run:
    return Run()


def test_at_the_very_start_nothing_is_known(run):
    run.clock.now = 0.0
    now = run.meter.snapshot()
    assert (now.sources, now.sources_done, now.sources_failed, now.frames) == (4, 0, 0, 0)
    assert (now.frames_per_second, now.eta_seconds, now.decode_share, now.compute_share) == (0, None, 0, 0)
    assert now.bottleneck == "nothing captioned in this run"


def test_sources_frames_and_hours_are_counted(run):
    run.meter.opened("a", 0.0)
    run.meter.saved("a", 300, 0.5, 3600.0)
    run.meter.saved("a", 200, 0.5, 3600.0)
    run.meter.finished("a", failed=False)
    run.meter.finished("b", failed=True)
    now = run.meter.snapshot()
    assert (now.sources_done, now.sources_failed, now.frames, now.seconds) == (2, 1, 500, 100.0)
    assert (now.frames_per_second, now.media_hours_per_hour) == (5.0, 72.0)


def test_the_time_of_requests_is_shared_out(run):
    run.meter.answered(1.0, 2.0, 3.0)
    run.meter.answered(0.0, 0.0, 4.0)
    now = run.meter.snapshot()
    assert (now.network_share, now.queue_share, now.compute_share) == pytest.approx((0.1, 0.2, 0.7))
    assert now.server_share == pytest.approx(7 / (100 * 4))


def test_decode_processes_are_busy_as_long_as_they_are_waited_for(run):
    run.decode_seconds = 50.0
    assert run.meter.snapshot().decode_share == 0.25
    run.decode_seconds = 300.0  # more than there is: it is read a little later than the clock
    assert run.meter.snapshot().decode_share == 1.0


def test_the_time_left_is_that_of_what_is_not_done(run):
    run.meter.opened("a", 0.0)
    run.meter.saved("a", 1, 0.5, 1.0)
    assert run.meter.snapshot().eta_seconds == pytest.approx(100 / 0.5 * 3.5)
    run.meter.finished("a", failed=True)  # what is missing of it will not be done any more
    assert run.meter.snapshot().eta_seconds == pytest.approx(100 / 1.0 * 3)
    for path in ("b", "c", "d"):
        run.meter.opened(path, 0.0)
        run.meter.finished(path, failed=False)
    assert run.meter.snapshot().eta_seconds == 0


def test_what_an_earlier_run_has_done_takes_no_time(run):
    run.meter.finished("a", failed=False)  # it was never opened: all of it was done
    run.meter.opened("b", 0.8)
    assert run.meter.snapshot().eta_seconds is None
    run.meter.saved("b", 1, 0.1, 1.0)
    assert run.meter.snapshot().eta_seconds == pytest.approx(100 / 0.1 * 2.1)
    run.meter.finished("b", failed=False)
    assert run.meter.snapshot().eta_seconds == pytest.approx(100 / 0.2 * 2)


def test_as_long_as_nothing_new_is_done_no_rounding_looks_like_it(run):
    run.meter.opened("a", 0.1)
    run.meter.finished("b", failed=False)
    run.meter.opened("c", 0.2)
    run.meter.opened("d", 0.4)
    assert run.meter.snapshot().eta_seconds is None


def test_a_server_that_is_never_idle_is_the_bottleneck_whatever_else_is(run):
    run.decode_seconds = 200.0
    run.meter.answered(9999.0, 0.0, 380.0)
    assert run.bottleneck() == "server: 3.8 of 4 workers busy: add GPUs or servers"


def test_decoding_is_the_bottleneck_where_its_processes_are_always_waited_for(run):
    run.decode_seconds = 190.0
    run.meter.answered(9999.0, 0.0, 100.0)
    expected = "decoding: 1.9 of 2 processes busy, server idle 75%: add decode workers, or try --resize fast"
    assert run.bottleneck() == expected


def test_the_network_is_the_bottleneck_where_requests_spend_their_time_there(run):
    run.decode_seconds = 20.0
    run.meter.answered(300.0, 100.0, 100.0)
    assert run.bottleneck() == "network: 60% of the time of requests is sending them, server idle 75%: use a faster one"


def test_otherwise_there_is_too_little_to_do_at_a_time(run):
    run.decode_seconds = 20.0
    run.meter.answered(10.0, 100.0, 100.0)
    expected = (
        "neither decoding (0.2 of 2 processes busy) nor the server (idle 75%): short runs and busy machines look so"
    )
    assert run.bottleneck() == expected
