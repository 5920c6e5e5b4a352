"""The library finds sources by name, folder and tags, and tells those apart that have one name."""

import pytest

from reelscribe.viewer.content.library_page import LibraryPage
from reelscribe.viewer.content.run_page import RunFollower, RunPage
from reelscribe.viewer.content.search_page import SearchPage
from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery
from reelscribe.viewer.pages.views import Site
from support.browsing import open_index, segments, write_annotations
from support.exporting import record

SITE = Site("out")
ERROR = {"status": "error", "error": {"type": "MediaError", "message": "cut short"}}
RECORDS = [
    record("/v/2023/Zürich/IMG_0001.MOV", "a lake", segments=segments("hallo", language="de")),
    record("/v/2023/Strand/IMG_0001.MOV", "a beach", clips=[{"start": 0, "end": 1, "text": "x x"}]),
    record("/v/2023/Strand/raw/C0002.MP4", "a lake", **ERROR),
    record("/v/2023-old/IMG_0001.MOV", "a boat"),
    record("/v/100% _ done.mp4", "a tram", clips=[{"start": 0, "end": 1, "text": "", "flags": ["odd"]}]),
]
RECORDS[3]["source"]["missing"] = True
PATHS = [value["source"]["path"].removeprefix("/v/") for value in RECORDS]


@pytest.fixture
def index(tmp_path):
    write_annotations(tmp_path, *RECORDS)
    with open_index(tmp_path) as index:
        yield index


@pytest.fixture
def library(index, thumbnails):
    """Return a function that returns what the library shows of a query."""
    page = LibraryPage(index, thumbnails)
    return lambda **query: page.view(SITE, LibraryQuery(**query))


def shown(view):
    return sorted(PATHS.index(card.path) for card in view.cards)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("img_00", [0, 1, 3]),
        ("IMG strand", [1]),  # of the name and of its folder
        ("zurich", [0]),
        ("ZU\u0308RICH", [0]),  # as macOS writes it
        ("raw/c", [2]),
        ('"img" 2023*', [0, 1, 3]),
        ("mediaerror", [2]),
        ("failed", [2]),
        ("gone", [3]),
        ("odd", [4]),
        ("% _", [4]),
        ("/v", []),  # all sources are there
        ("nothing", []),
        (" ", [0, 1, 2, 3, 4]),
    ],
)
def test_a_source_is_found_by_parts_of_its_name_its_folder_and_its_tags(library, words, found):
    assert shown(library(q=words)) == found


def test_a_language_is_a_tag(library):
    assert shown(library(q="hallo")) == []
    assert shown(library(q="mov de")) == [0]


def test_sources_in_stores_are_found_by_name_too(tmp_path, thumbnails):
    write_annotations(tmp_path, *(record(f"s3://bucket/2023/{name}", "x") for name in ("Zürich.mp4", "lake.mp4")))
    with open_index(tmp_path) as index:
        (card,) = LibraryPage(index, thumbnails).view(SITE, LibraryQuery(q="zurich mp4")).cards
    assert card.name == "Zürich.mp4"


@pytest.mark.parametrize(
    ("folder", "sources", "folders"),
    [
        ("", [0, 1, 2, 3, 4], [("2023", 3), ("2023-old", 1)]),
        ("2023", [0, 1, 2], [("2023/Strand", 2), ("2023/Zürich", 1)]),
        ("2023/Strand", [1, 2], [("2023/Strand/raw", 1)]),
        ("2023/Strand/raw", [2], []),
        ("202", [], []),
        ("../v/2023", [], []),
    ],
)
def test_a_folder_has_what_is_in_it_and_below_and_lists_its_folders(library, folder, sources, folders):
    view = library(folder=folder)
    assert (shown(view), [(choice.value, choice.count) for choice in view.folders]) == (sources, folders)


def test_all_ways_to_choose_sources_go_together(library):
    assert shown(library(folder="2023", q="mp4", state="error", duration="0-60")) == [2]
    assert shown(library(folder="2023/Strand", q="zurich")) == []


def test_two_files_of_one_name_are_told_apart_on_each_page(index, library, thumbnails, tmp_path):
    cards = library(q="img_0001").cards
    assert [(card.name, card.folder) for card in cards] == [
        ("IMG_0001.MOV", "2023-old"),
        ("IMG_0001.MOV", "2023/Strand"),
        ("IMG_0001.MOV", "2023/Zürich"),
    ]
    hits = SearchPage(index, thumbnails).view(SITE, SearchQuery("a")).hits
    assert sorted(hit.path for hit in hits) == sorted(PATHS)
    failures = RunPage(RunFollower(tmp_path), index, LibraryPage(index, thumbnails)).view(SITE).failures
    assert [example.path for group in failures for example in group.examples] == ["2023/Strand/raw/C0002.MP4"]


def test_a_search_finds_names_too(index, thumbnails):
    view = SearchPage(index, thumbnails).view(SITE, SearchQuery('"img_0001" zur*'))
    assert ([card.path for card in view.named], view.named_total, view.total) == (["2023/Zürich/IMG_0001.MOV"], 1, 0)


def test_of_very_many_folders_the_first_are_listed_and_the_others_counted(tmp_path, thumbnails):
    write_annotations(tmp_path, *(record(f"/v/{k:04}/a.mp4", "x") for k in range(1000)))
    with open_index(tmp_path) as index:
        view = LibraryPage(index, thumbnails).view(SITE, LibraryQuery())
    assert (len(view.folders), view.folders_hidden, view.folders[0].label) == (300, 700, "0000")


@pytest.mark.parametrize(("paths", "folders"), [(["/a.mp4", "/b/c.mp4"], ["b"]), (["/x/a.mp4"], []), ([], [])])
def test_the_folder_of_all_sources_may_be_any(tmp_path, thumbnails, paths, folders):
    write_annotations(tmp_path, *(record(path, "x") for path in paths))
    with open_index(tmp_path) as index:
        view = LibraryPage(index, thumbnails).view(SITE, LibraryQuery())
    assert [choice.label for choice in view.folders] == folders
    assert [card.path for card in view.cards] == [path.rpartition("/x/")[2].lstrip("/") for path in paths]
