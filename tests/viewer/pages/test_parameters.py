"""Queries of users travel in addresses, and nonsense in an address is no error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, SearchQuery


def test_a_query_of_the_library_survives_its_address():
    query = LibraryQuery("beach 2024", " a/b ", "error", "en", "MediaError", "repetition", "60-600", "longest", 3)
    assert LibraryQuery.from_parameters(dict(query.parameters())) == query


def test_what_is_not_asked_is_not_in_the_address():
    assert LibraryQuery().parameters() == []
    assert SearchQuery(q="stop").parameters() == [("q", "stop")]


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        ("60-600", (60, 600)),
        ("3600-", (3600, None)),
        ("", (0, None)),
        ("a-b", (0, None)),
        ("-5", (0, 5)),
        ("²-", (0, None)),
    ],
)
def test_a_range_of_durations_is_read(duration, seconds):
    assert LibraryQuery(duration=duration).seconds() == seconds


def test_a_query_of_the_search_survives_its_address():
    query = SearchQuery('"red circle"', ("clips", "transcript"), 2)
    assert SearchQuery.from_parameters(query.parameters()) == query


def test_a_search_without_known_kinds_is_one_in_all():
    assert SearchQuery.from_parameters([("q", "x"), ("kind", "nonsense")]).kinds == TEXT_KINDS


@given(st.lists(st.tuples(st.sampled_from(["q", "kind", "page", "sort", "state", "duration"]), st.text())))
def test_any_parameters_make_a_query(parameters):
    query, search = LibraryQuery.from_parameters(dict(parameters)), SearchQuery.from_parameters(parameters)
    assert query.page >= 1
    assert search.page >= 1
    assert search.kinds
    assert query.seconds()[0] >= 0
