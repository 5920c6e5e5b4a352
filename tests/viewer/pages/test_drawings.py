"""Where lines are on the timeline, and the curve of the speed."""

from dataclasses import replace

import pytest

from reelscribe.viewer.pages.drawings import (
    LEAST_WIDTH,
    MOST_PICTURES,
    MOST_POINTS,
    film_strip,
    picture_starts,
    rate_chart,
    timeline_bars,
)
from reelscribe.viewer.pages.views import Line, Rate, Track
from support.example_views import SOURCE


def bars(*lines, start=10.0, end=20.0):
    view = replace(SOURCE, start=start, end=end, tracks=(Track("captions", lines, len(lines)),))
    return [(bar.left, pytest.approx(bar.width)) for bar in timeline_bars(view)[0].bars]


def test_lines_lie_where_their_times_are():
    assert bars(Line(10, 12), Line(15, 20)) == [(0, 20), (50, 50)]


def test_a_line_without_length_can_be_seen_at_both_ends():
    assert bars(Line(10, 10), Line(20, 20)) == [(0, LEAST_WIDTH), (100 - LEAST_WIDTH, LEAST_WIDTH)]


def test_lines_beyond_the_ends_stay_on_the_timeline():
    assert bars(Line(5, 30)) == [(0, 100)]


def test_a_source_without_length_has_a_timeline():
    assert bars(Line(10, 10), end=10.0) == [(0, LEAST_WIDTH)]


def test_thumbnails_fill_the_timeline():
    film = film_strip(replace(SOURCE, start=0.0, end=10.0, tracks=(), thumbnails=(1.0, 5.0, 8.0)))
    assert [(picture.seconds, picture.left, picture.width) for picture in film] == [
        (1, 0, 30),
        (5, 30, 35),
        (8, 65, 35),
    ]


def test_thumbnails_of_two_shots_meet_at_the_cut():
    shots = Track("shots", (Line(0, 2), Line(2, 6), Line(6, 10)), 3)
    view = replace(SOURCE, start=0.0, end=10.0, tracks=(shots,))
    assert picture_starts(view, (1.0, 5.0, 7.0, 9.0)) == [0, 2, 6, 8]


def test_of_many_thumbnails_some_are_shown():
    times = tuple(k / 100 for k in range(1200))
    film = film_strip(replace(SOURCE, thumbnails=times))
    assert len(film) == MOST_PICTURES
    assert (film[0].seconds, film[-1].seconds) == (times[0], times[-1])
    assert sum(picture.width for picture in film) == pytest.approx(100)


def test_a_curve_goes_from_edge_to_edge():
    chart = rate_chart([Rate(10, 0), Rate(15, 4), Rate(20, 2)])
    assert chart.points == "0.0,120.0 300.0,24.0 600.0,72.0"
    assert (chart.top, chart.begin, chart.end, chart.last, chart.mean) == (5, 10, 20, 2, 2)


@pytest.mark.parametrize("rates", [[], [Rate(0, 1)], [Rate(0, 1), Rate(1, float("nan"))]])
def test_too_few_values_make_no_curve(rates):
    assert rate_chart(rates) is None


def test_a_curve_of_days_has_a_bounded_number_of_points():
    chart = rate_chart([Rate(k, 0.0) for k in range(100_000)])
    assert len(chart.points.split()) <= MOST_POINTS
