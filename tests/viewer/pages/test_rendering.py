"""Pages are well-formed, refer to what exists, and show every text as text."""

from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery
from reelscribe.viewer.pages.render import MOST_CHARACTERS, STATIC, Renderer, clock, label, page_numbers, shown
from reelscribe.viewer.pages.views import Line, NamedSpeaker, Playback, Site, SourceView, Track, Word
from support.example_views import (
    AUDIO,
    CARDS,
    DONE_RUN,
    LIBRARY,
    RUN,
    SEARCH,
    SOURCE,
    UNPLAYABLE,
    FileLinks,
)

VOID = {
    "area",
    "br",
    "col",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "track",
    "wbr",
    "image",
    "rect",
    "path",
    "polyline",
    "polygon",
}

SERVED, FILES = Renderer(FileLinks()), Renderer(FileLinks(served=False))

EMPTY = SourceView(Site("out"), replace(CARDS[1], seconds=None), "x.mp4", Playback("none"), 0.0, 0.0)

PAGES = {
    "library": SERVED.library(LIBRARY),
    "library of files": FILES.library(LIBRARY),
    "empty library": SERVED.library(replace(LIBRARY, cards=(), total=0, query=LibraryQuery(state="gone"))),
    "search": SERVED.search(SEARCH),
    "empty search": SERVED.search(replace(SEARCH, hits=(), total=0, query=SearchQuery("x"))),
    "unfit search": SERVED.search(replace(SEARCH, hits=(), problem="A quote is open.")),
    "source": SERVED.source(SOURCE),
    "unplayable source": SERVED.source(UNPLAYABLE),
    "audio": SERVED.source(AUDIO),
    "source without anything": FILES.source(EMPTY),
    "run": SERVED.run(RUN),
    "run that is done": SERVED.run(DONE_RUN),
}


class Page(HTMLParser):
    """The elements of a page; it fails at tags that do not fit each other."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute occurs twice in {tag}: {names}"
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"{tag} is closed, but nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, *names):
        return [element[name] for _, element in self.elements for name in names if name in element]


@pytest.fixture(params=PAGES, ids=lambda name: name.replace(" ", "-"))
def page(request):
    return Page(PAGES[request.param])


def test_a_page_is_well_formed(page):
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert not set(page.values("for", "aria-labelledby", "aria-describedby", "data-copy")) - set(ids)
    assert [tag for tag, _ in page.elements].count("h1") == 1


def test_a_page_has_nothing_inline_and_nothing_from_elsewhere(page):
    for tag, attributes in page.elements:
        assert tag not in ("style", "iframe", "object", "embed", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag != "script" or set(attributes) == {"defer", "src"}
    for address in page.values("href", "src", "action", "poster"):
        assert urlsplit(address).scheme in ("", "file")
        assert address.startswith(("./", "../", "#", "file:"))


def test_all_files_of_pages_exist(page):
    addresses = [address for address in page.values("href", "src") if address.startswith(("./static/", "../static/"))]
    assert {address.rpartition("/")[2] for address in addresses} <= {path.name for path in STATIC.iterdir()}
    assert addresses


def test_hostile_texts_are_shown_as_text(page):
    assert not [text for text in page.texts if any(ord(char) < 32 and char not in "\n\t" for char in text)]
    assert not [text for text in page.texts if "\u202e" in text or "\ud800" in text]
    assert not [value for value in page.values("src") if value == "x"]


@pytest.mark.parametrize("name", ["library", "search", "source", "run"])
def test_a_page_says_the_hostile_text_as_it_is(name):
    assert (
        '<script>document.title="ran"</script><img src=x onerror=alert(1)>"\'{{ 7*7 }}\ufffd[31m\ufffdgpj'
        in "".join(Page(PAGES[name]).texts)
    )


@pytest.mark.parametrize("char", "\x00\x07\x1b\x7f\x9b\u061c\u200e\u200f\u202a\u202e\u2066\u2069\ufffe\ud800")
def test_characters_that_nobody_sees_are_shown(char):
    assert shown(f"a{char}b") == label(f"a{char}b", 10) == "a\ufffdb"


def test_a_list_that_has_not_all_hits_says_so():
    assert "The first 10,000 hits as" in "".join(Page(SERVED.search(SEARCH)).texts)
    assert "All hits as" in "".join(Page(SERVED.search(replace(SEARCH, more=False))).texts)


def test_a_served_page_has_fields_for_a_hundred_speakers_and_a_file_has_none():
    view = replace(SOURCE, speakers=tuple(NamedSpeaker(f"speaker {k}", 0, "", "") for k in range(120)))
    page = SERVED.source(view)
    assert (page.count("<fieldset>"), "There are 20 more" in page) == (100, True)
    assert "<fieldset>" not in FILES.source(view)


def test_a_command_is_whole_however_long_it_is():
    command = f"cd /films && reelscribe caption --retry-failed {'long-name.mp4 ' * 1000}last.mp4"
    page = Page(SERVED.run(replace(RUN, retry=command)))
    assert command in page.texts


@given(st.text())
def test_every_text_can_be_encoded_and_has_no_controls(text):
    safe = shown(text)
    safe.encode()
    assert len(safe) == len(text)
    assert not [char for char in safe if ord(char) < 32 and char not in "\t\n\r"]


def test_a_text_of_ten_megabytes_is_cut_and_says_so():
    line = Line(0.0, 1.0, "<b>" * 3_500_000)
    page = SERVED.source(replace(SOURCE, tracks=(Track("captions", (line,), 1),)))
    assert len(page) < 100_000
    assert "(cut; the whole text has 10,500,000 characters)" in page
    assert label("x" * 50, 5) == "xxxxx…"
    assert shown("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS


def test_a_line_of_a_million_words_is_shown_without_their_times():
    words = (Word(0.0, 1.0, "a"),) * 1_000_000
    page = SERVED.source(replace(SOURCE, tracks=(Track("transcript", (Line(0.0, 1.0, "aaa", words=words),), 1),)))
    assert len(page) < 100_000
    assert "data-word" not in page


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (12.9, "0:12"), (3723, "1:02:03"), (-5, "-0:05"), (-0.4, "0:00")]
)
def test_times_are_shown_as_players_show_them(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("times", "labels"),
    [
        ((0.0, 5.0, 65.5), ["0:00", "0:05", "1:05"]),
        ((0.0, 0.4, 0.9), ["0:00.0", "0:00.4", "0:00.9"]),
        ((3599.98, 3600.02, 3600.98), ["59:59.9", "1:00:00.0", "1:00:00.9"]),
        ((4.0, 4.0001), ["0:04.000", "0:04.000"]),  # no thumbnails are closer than a millisecond
    ],
)
def test_no_two_thumbnails_have_the_same_label(times, labels):
    page = Page(SERVED.source(replace(UNPLAYABLE, tracks=(), thumbnails=times)))
    assert [text for text in page.texts if text in labels][-len(labels) :] == labels


@pytest.mark.parametrize(
    ("page", "pages", "numbers"),
    [
        (1, 2, [1, 2]),
        (1, 5, [1, 2, 3, None, 5]),
        (3, 5, [1, 2, 3, 4, 5]),
        (7, 209, [1, None, 5, 6, 7, 8, 9, None, 209]),
        (209, 209, [1, None, 207, 208, 209]),
    ],
)
def test_there_are_links_to_the_first_the_last_and_the_nearest_pages(page, pages, numbers):
    assert page_numbers(page, pages) == numbers
    view = replace(LIBRARY, pages=pages, query=LibraryQuery(page=page))
    labels = [label for label in Page(SERVED.library(view)).values("aria-label") if label.startswith("Page ")]
    assert labels == [f"Page {number} of {pages}" for number in numbers if number]


def test_a_page_asks_for_what_is_new_only_where_there_may_be_something_new():
    def live(text):
        return Page(text).values("data-live-seconds")

    resting = Site("out")
    assert live(SERVED.library(LIBRARY)) == ["3"]
    assert live(SERVED.library(replace(LIBRARY, site=resting))) == ["20"]
    assert live(SERVED.source(SOURCE)) == ["3"]
    assert live(SERVED.source(replace(SOURCE, site=resting))) == ["20"]
    assert live(FILES.source(SOURCE)) == []
    assert live(SERVED.run(DONE_RUN)) == ["20"]
    assert live(FILES.library(LIBRARY)) == []


def test_a_file_that_nobody_can_watch_says_why_and_has_no_player():
    page = SERVED.source(replace(EMPTY, card=CARDS[4], retry="reelscribe caption x --retry-failed"))
    assert "cannot be opened: expected a media file" in page
    assert "reelscribe caption x --retry-failed" in page
    assert not {"player.js", "follow.js"} & {value.rpartition("/")[2] for value in Page(page).values("src")}


def test_filters_that_are_set_are_chosen_and_kept_even_if_no_source_has_them():
    page = SERVED.library(replace(LIBRARY, query=LibraryQuery(state="error", language="xx", sort="longest")))
    chosen = [
        attributes["value"] for tag, attributes in Page(page).elements if tag == "option" and "selected" in attributes
    ]
    assert chosen == ["error", "xx", "longest"]


def test_a_summary_is_at_the_top_of_the_page_and_its_title_on_the_card_as_text():
    hostile = "<script>alert(1)</script>\u202e"
    shown_as = "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd"
    page = SERVED.source(replace(SOURCE, summary=SourceSummary(hostile, hostile, (hostile, "second"))))
    section = page[page.index('id="summary"') : page.index('id="player"')]
    assert (section.count(shown_as), section.count("<script>")) == (3, 0)
    assert shown_as in SERVED.card(replace(CARDS[0], title=hostile))
    assert "<p" not in SERVED.source(EMPTY).partition('id="summary"')[2].partition("</section>")[0]
