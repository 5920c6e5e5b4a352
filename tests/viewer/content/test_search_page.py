"""The search finds words of any language, phrases, and beginnings of words, and marks them."""

from itertools import islice

import pytest

from reelscribe.viewer.content.search_page import SearchPage
from reelscribe.viewer.index.queries import MOST_HITS
from reelscribe.viewer.index.word_rules import found_spans, parse_query
from reelscribe.viewer.media.source_thumbnails import line_thumbnail_time
from reelscribe.viewer.pages.parameters import SearchQuery
from reelscribe.viewer.pages.views import Site
from support.browsing import found, open_index, segments, write_annotations
from support.exporting import record, with_summary

TEXTS = [
    "A large red circle, on a green background.",
    "the RED one is not a circle",
    "Don't stop!",
    "stopped at the café",
    "Ein Straßenschild: ÜBER ALLEN GIPFELN",
    "これは赤い円です",
    "ภาษาไทยง่าย",
    "हिन्दी में लिखा है",
    "naïve_snake_case x2",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    write_annotations(out, record("a.mp4", segments=segments(*TEXTS)))
    with open_index(out) as index:
        yield index


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("red circle", ["A large [red] [circle], on a green background.", "the [RED] one is not a [circle]"]),
        ('"red circle"', ["A large [red circle], on a green background."]),
        ('"red circle', ["A large [red circle], on a green background."]),
        ("circle RED green", ["A large [red] [circle], on a [green] background."]),
        ("stop", ["Don't [stop]!"]),
        ("stop*", ["Don't [stop]!", "[stopped] at the café"]),
        ("don't", ["[Don't] stop!"]),
        ("don", ["[Don]'t stop!"]),
        ("CAFE", ["stopped at the [café]"]),
        ("café", ["stopped at the [café]"]),
        ("strassenschild uber", ["Ein [Straßenschild]: [ÜBER] ALLEN GIPFELN"]),
        ("赤い円", ["これは[赤い円]です"]),
        ("円", ["これは赤い[円]です"]),
        ("円赤", []),
        ("ไทย", ["ภาษา[ไทย]ง่าย"]),
        ("हिन्दी", ["[हिन्दी] में लिखा है"]),
        ("हिन्द", []),
        ("हिन्द*", ["[हिन्दी] में लिखा है"]),
        ("snake x2", ["naïve_[snake]_case [x2]"]),
        ("nowhere", []),
        ("red AND circle", []),
        ("NOT", ["the RED one is [not] a circle"]),
        ('"large red" "red circle" cir*', ["A [large red circle], on a green background."]),
        ('circle "green back*"', []),
        ('") OR (", red NEAR(circle)', []),
        ("red* ^circle -- {words}: x", []),
    ],
)
def test_words_phrases_and_prefixes_are_found_and_marked(index, thumbnails, query, texts):
    assert found(index, query, thumbnails) == texts


@pytest.mark.parametrize("query", ["", " ", '"', '"" * - ()', "\0", "*", "…"])
def test_a_query_without_words_finds_nothing_and_says_why(index, thumbnails, query):
    view = SearchPage(index, thumbnails).view(Site("out"), SearchQuery(query))
    assert view.hits == ()
    assert bool(view.problem) == bool(query)


def test_a_prefix_of_one_letter_and_a_query_of_many_words_are_refused_in_words(index, thumbnails):
    problems = [SearchPage(index, thumbnails).view(Site("out"), SearchQuery(q)).problem for q in ("a*", "x " * 33)]
    assert problems[0] == "A beginning of a word needs at least 2 characters before the star."
    assert "up to 32 words" in problems[1]


def test_kinds_are_searched_together_or_alone(tmp_path, thumbnails):
    clip = {"start": 0.0, "end": 4.0, "text": "word of a clip", "flags": []}
    write_annotations(tmp_path, record("a.mp4", "word", "word", "other", segments=segments("said word"), clips=[clip]))
    with open_index(tmp_path) as index:
        assert found(index, "word", thumbnails) == ["[word]", "[word]", "[word] of a clip", "said [word]"]
        assert found(index, "word", thumbnails, kinds=("clips",)) == ["[word] of a clip"]
        assert found(index, "word", thumbnails, kinds=("captions", "transcript")) == ["[word]", "[word]", "said [word]"]


def test_translations_are_found_with_what_is_said(tmp_path, thumbnails):
    english = [
        {"start": 0.25, "end": 1.0, "text": "Hello, Anna!"},
        {"start": 1.25, "end": 2.0, "text": "Good morning."},
    ]
    write_annotations(tmp_path, record("a.mp4", segments=segments("Hallo, Anna!", "Anna."), translations=english))
    with open_index(tmp_path) as index:
        assert found(index, "anna", thumbnails) == [
            "Hallo, [Anna]!",
            "Hello, [Anna]!",
            "[Anna].",
        ]  # in the order of time
        view = SearchPage(index, thumbnails).view(Site("out"), SearchQuery("good", ("transcript",)))
        assert [(hit.kind, hit.start) for hit in view.hits] == [("transcript", 1.25)]


def test_hits_are_ordered_by_source_and_time_and_counting_ends_somewhere(tmp_path, thumbnails):
    number = MOST_HITS // 100 + 1
    write_annotations(tmp_path, *(record(f"{k:03}.mp4", segments=segments(*["word"] * 100)) for k in range(number)))
    with open_index(tmp_path) as index:
        page = SearchPage(index, thumbnails)
        view = page.view(Site("out"), SearchQuery("word", page=3))
        assert (view.total, view.more, view.pages) == (MOST_HITS, True, MOST_HITS // 50)
        assert [(hit.path, hit.start) for hit in view.hits] == [("001.mp4", float(k)) for k in range(50)]
        assert page.view(Site("out"), SearchQuery("word", page=10**9)).query.page == view.pages


def test_a_hit_in_a_long_text_shows_the_stretch_around_it(tmp_path, thumbnails):
    write_annotations(tmp_path, record("a.mp4", "blah " * 5000 + "needle " + "blah " * 5000))
    with open_index(tmp_path) as index:
        (text,) = found(index, "needle", thumbnails)
    assert "[needle]" in text
    assert text.startswith("…")
    assert text.endswith("…")
    assert len(text) < 1000


def test_finds_of_many_words_come_one_after_another():
    query = parse_query(" ".join(f'word{k} "word{k} next"' for k in range(16)))
    spans = found_spans("word3 next " * 20_000, query)
    assert list(islice(spans, 2)) == [(0, 10), (11, 21)]
    assert sum(1 for _ in spans) == 19_998


def test_a_hit_has_a_thumbnail_of_its_own_time_if_there_is_one():
    times = [2.0, 6.0, 10.0]
    assert [line_thumbnail_time(times, start, start + 4) for start in (4.0, 2.0, 0.0)] == [6.0, 2.0, 2.0]
    assert line_thumbnail_time(times, 6.5, 8.0) == 6.0
    assert line_thumbnail_time([], 1.0, 2.0) is None


def test_a_summary_is_found_by_its_title_its_text_and_its_keywords(tmp_path, thumbnails):
    spoken = record("a.mp4", segments=segments("a talk about dogs"))
    write_annotations(tmp_path, with_summary(spoken, "The talk", "Dogs. Cats. Birds.", ["animals", "talk show"]))
    with open_index(tmp_path) as other:
        assert found(other, "talk", thumbnails) == [
            "The [talk] · Dogs. Cats. Birds. · animals, [talk] show",
            "a [talk] about dogs",
        ]
        assert found(other, "cats animals", thumbnails) == ["The talk · Dogs. [Cats]. Birds. · [animals], talk show"]
        assert found(other, "talk", thumbnails, kinds=("transcript",)) == ["a [talk] about dogs"]
