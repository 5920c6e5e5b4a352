"""The time left that is told of a library which a simulated run goes through, with a clock of its own."""

import heapq
import json
import random

import pytest

from reelscribe.reporting.bottleneck import Resources
from reelscribe.reporting.forecast import Costs, Forecast, OpenCost, SourceSize
from reelscribe.reporting.formatting import describe_time_left
from reelscribe.reporting.track_meter import Readings, TrackMeter

WORKERS = 3


def mixed_library(seed: int, sources: int = 300) -> dict[str, tuple[SourceSize, float]]:
    """Sources of all kinds in an order that chance decides, each with the seconds that it occupies a process.

    Clips cost mostly what every file costs; long videos by their length, and more if their pictures are large;
    recordings little; and some files are damaged, and cost next to nothing.
    """
    chance, library = random.Random(seed), {}
    for number in range(sources):
        kind = chance.choices(("clip", "small", "large", "recording", "damaged"), (30, 25, 10, 30, 5))[0]
        seconds = chance.uniform(0.1, 2) if kind == "clip" else chance.lognormvariate(5, 0.8)
        megabytes = seconds * {"clip": 0.2, "small": 0.1, "large": 0.8, "recording": 0.016, "damaged": 0.1}[kind]
        cost = 0.05 + seconds * {"clip": 0.05, "small": 0.05, "large": 0.25, "recording": 0.01, "damaged": 0}[kind]
        size = SourceSize("audio" if kind == "recording" else "video", round(megabytes * 1e6), seconds)
        library[f"{number}-{kind}"] = size, cost * chance.uniform(0.7, 1.3)
    return library


def run(
    library: dict[str, tuple[SourceSize, float]], costs: Costs | None = None, done: int = 0
) -> list[tuple[float, float | None, float]]:
    """Go through a library; returns for many moments the fraction of the time that is over, and the time left as told.

    Args:
        library: The sources.
        costs: What an earlier run has learned.
        done: Number of sources that an earlier run has done.
    """
    forecast, told, busy, now = Forecast(WORKERS, costs), [], [], 0.0
    todo = list(library.items())[done:]
    for path, (size, _) in todo:
        forecast.expect(path, size)
    while todo or busy:
        while todo and len(busy) < WORKERS:
            path, (size, cost) = todo.pop(0)
            forecast.opened(path)
            heapq.heappush(busy, (now + cost, now, path))
        in_progress = [
            OpenCost(library[path][0], (end - now) / (end - began), (now - began) / (end - began), now - began)
            for end, began, path in busy
        ]
        left = forecast.time_left(in_progress)
        told.append((now, left.seconds if left else None, left.plus_minus if left else 0.0))
        now, began, path = heapq.heappop(busy)
        forecast.learn(library[path][0], 1.0, now - began)
    return [(moment / now, seconds, now - moment, spread) for moment, seconds, spread in told]


@pytest.mark.parametrize("seed", range(8))
def test_the_time_left_of_a_mixed_library_is_right_within_a_quarter_after_a_tenth(seed):
    late = [each for each in run(mixed_library(seed)) if 0.1 <= each[0] <= 0.8]
    assert all(abs(told / left - 1) < 0.25 for _, told, left, _ in late)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_resume_it_is_right_from_the_start(seed):
    library, costs = mixed_library(seed), Costs()
    first = Forecast(WORKERS, costs)
    for size, cost in list(library.values())[:150]:
        first.learn(size, 1.0, cost)
    saved = Costs.from_json(json.loads(json.dumps(costs.to_json())))
    _, told, left, _ = run(library, saved, done=150)[0]
    assert told == pytest.approx(left, rel=0.25)


def test_the_uncertainty_holds_what_comes_and_shrinks():
    rows = [each for seed in range(8) for each in run(mixed_library(seed)) if each[1] is not None]
    early, late = ([each for each in rows if low <= each[0] < low + 0.1] for low in (0.1, 0.5))
    assert sum(abs(told - left) <= spread for _, told, left, spread in early) > 0.7 * len(early)
    assert sum(spread for *_, spread in late) / len(late) < sum(spread for *_, spread in early) / len(early)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_few_sources_are_no_experience(done):
    forecast, size = Forecast(1), SourceSize("video", 10**7, 100.0)
    for _ in range(done):
        forecast.learn(size, 1.0, 10.0)
    forecast.expect("a", size)
    left = forecast.time_left([OpenCost(size, 0.9, 0.1, 1.0)])
    assert describe_time_left(*left).startswith("about ")
    assert left.plus_minus > left.seconds  # a factor of more than 2


def test_what_was_decoded_of_a_source_that_is_not_done_is_known_after_an_interruption():
    track = TrackMeter(lambda: Resources("frames", 1, 1, 1), Readings())
    size = SourceSize("video", 10**7, 100.0)
    track.expect("a", size)
    track.begun("a")
    track.decoded("a", 0.5)
    costs = Forecast(1).costs_with([*track.in_progress().values()])
    again = Forecast(1, Costs.from_json(json.loads(json.dumps(costs.to_json()))))
    again.expect("a", size)
    assert again.time_left() is not None


def test_of_many_sources_the_sum_is_kept(monkeypatch):
    monkeypatch.setattr("reelscribe.reporting.forecast.MOST_SINGLE", 2)
    forecast, size = Forecast(1), SourceSize("video", 10**7, 100.0)
    forecast.learn(size, 1.0, 10.0)
    for path in "abcde":
        forecast.expect(path, size)
    monkeypatch.setattr("reelscribe.reporting.forecast.SIMULATED_SOURCES", 2)
    assert forecast.time_left().seconds == pytest.approx(50.0)
    for left, path in zip((40.0, 30.0, 20.0, 10.0, 0.0), "edcba", strict=True):
        forecast.single_out(path, size)
        assert forecast.opened(path) == size
        assert forecast.time_left().seconds == pytest.approx(left)


def test_one_long_video_at_the_end_takes_as_long_as_it_takes():
    forecast = Forecast(4)
    for _ in range(5):
        forecast.learn(SourceSize("video", 10**7, 100.0), 1.0, 10.0)
    forecast.expect("long", SourceSize("video", 10**9, 10_000.0))
    assert forecast.time_left().seconds == pytest.approx(1000.0)


def test_long_queues_are_added_up_instead_of_simulated():
    forecast = Forecast(4)
    forecast.learn(SourceSize("video", 10**7, 100.0), 1.0, 10.0)
    for number in range(5000):
        forecast.expect(f"{number}", SourceSize("video", 10**7, 100.0))
    assert forecast.time_left().seconds == pytest.approx(12_500.0)
    forecast.expect("very long", SourceSize("video", 10**7, 500_000.0))
    assert forecast.time_left().seconds == pytest.approx(50_000.0)


def test_unknown_durations_are_guessed_from_those_that_are_known():
    forecast = Forecast(1)
    forecast.learn(SourceSize("video", 10**7, 100.0), 1.0, 10.0)
    forecast.expect("known", SourceSize("video", 10**7, 100.0))
    forecast.expect("unknown", SourceSize("video", 2 * 10**7))
    assert forecast.time_left().seconds == pytest.approx(30.0)
    forecast.learn_duration("unknown", 50.0)
    assert forecast.time_left().seconds == pytest.approx(15.0)


def test_sources_that_wait_for_their_last_answers_free_no_process():
    forecast, size = Forecast(1), SourceSize("video", 10**7, 100.0)
    forecast.learn(size, 1.0, 10.0)
    forecast.expect("a", size)
    begun = [OpenCost(size, 0.0, 1.0, 10.0)] * 5 + [OpenCost(size, 0.5, 0.5, 5.0)]
    assert forecast.time_left(begun).seconds == pytest.approx(15.0)


def test_what_was_done_before_takes_no_time():
    forecast = Forecast(1)
    forecast.learn(SourceSize("video", 10**7, 100.0), 1.0, 10.0)
    forecast.expect("a", SourceSize("video", 10**7, 100.0), share=0.3)
    assert forecast.time_left().seconds == pytest.approx(3.0)


def test_nothing_is_told_before_anything_is_known_and_nothing_left_takes_no_time():
    forecast = Forecast(1)
    assert forecast.time_left() == (0.0, 0.0)
    forecast.expect("a", SourceSize("video", 10**7, 100.0))
    assert forecast.time_left() is None


@pytest.mark.parametrize("seed", range(30))
def test_when_all_sources_are_open_the_time_left_is_known(seed):
    chance, forecast = random.Random(seed), Forecast(WORKERS)
    sizes = [SourceSize("video", chance.randrange(10**8), chance.uniform(0.1, 200)) for _ in range(20)]
    for number, size in enumerate(sizes):
        forecast.expect(str(number), size, chance.random())
        forecast.learn(size, 1.0, chance.uniform(0.1, 9))
    for number in chance.sample(range(20), 20):
        forecast.opened(str(number))
    left = forecast.time_left([OpenCost(sizes[0], 0.0, 1.0, 1.0)])
    assert left is not None
    assert left.seconds >= 0
    assert left.plus_minus >= 0
