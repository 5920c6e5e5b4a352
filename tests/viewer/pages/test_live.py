"""A page that is open takes over what is new, and leaves alone what its user is doing."""

import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from reelscribe.viewer.pages.render import Renderer
from reelscribe.viewer.pages.views import Line, Track
from support.example_views import CARDS, LIBRARY, MUTE, RUN, SOURCE, FileLinks

RENDERER = Renderer(FileLinks())


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *values):
        pass


@pytest.fixture
def address(site):
    """The address of a server of the folder with the pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def show(browser, site, address):
    """Return a function that opens a page with a text, and one that gives the page a new text and lets it ask."""
    context = browser.new_context(reduced_motion="reduce", viewport={"width": 700, "height": 500})
    page = context.new_page()

    def show_it(text, name="live.html"):
        fresh = site / "fresh"  # renamed, so that a page that asks right now gets the old text or the new one
        fresh.write_text(text)
        fresh.replace(site / name)
        if urlsplit(page.url).path.endswith(name):  # the page adds what was typed to its address
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        else:
            page.goto(f"{address}/{name}")
        return page

    yield show_it
    context.close()


def test_the_library_grows_and_keeps_focus_and_what_was_typed(show):
    page = show(RENDERER.library(replace(LIBRARY, cards=CARDS[1:3], all_sources=2)))
    page.fill("#quick", "not sent yet")
    page.select_option("select[name=sort]", "longest")
    page.focus(f"#card-{MUTE} a")
    page.evaluate("scrollTo(0, 60)")
    show(RENDERER.library(replace(LIBRARY, cards=CARDS[:5], all_sources=5)))
    page.wait_for_function("document.querySelectorAll('.card').length === 5")
    assert page.locator(".card .name").all_inner_texts()[:2] == ["spoken.mp4", "same-640x360.webm"]
    assert page.locator("#count").inner_text() == "5 sources"
    assert page.evaluate("document.activeElement.closest('li').id") == f"card-{MUTE}"
    assert page.input_value("#quick") == "not sent yet"
    assert page.input_value("select[name=sort]") == "longest"
    assert page.evaluate("scrollY") >= 60


def test_sources_that_go_away_do_not_move_the_focus(show):
    page = show(RENDERER.library(LIBRARY))
    page.focus(f"#card-{CARDS[3].id} a")
    show(RENDERER.library(replace(LIBRARY, cards=CARDS[2:4])))
    page.wait_for_function("document.querySelectorAll('.card').length === 2")
    assert page.evaluate("document.activeElement.closest('li').id") == f"card-{CARDS[3].id}"


def test_the_run_goes_on(show):
    page = show(RENDERER.run(RUN))
    page.focus("[data-copy=retry]")
    show(RENDERER.run(replace(RUN, done=77, share=0.6417, speed="15.0 times real time")))
    page.wait_for_function("document.querySelector('progress').value === 0.6417")
    assert "15.0 times real time" in page.locator("#progress").inner_text()
    assert page.evaluate("document.activeElement.dataset.copy") == "retry"


def test_lines_that_are_added_can_be_gone_through_and_the_list_stays(show):
    def source(number):
        lines = tuple(Line(k, k + 1, f"line {k}") for k in range(number))
        tracks = (Track("captions", lines, number),)
        return RENDERER.source(replace(SOURCE, card=CARDS[1], end=200.0, tracks=tracks))

    page = show(source(100), "source/live.html")
    page.evaluate("document.getElementById('lines-captions').scrollTo(0, 500)")
    show(source(150), "source/live.html")
    page.wait_for_function("document.querySelectorAll('#lines-captions li').length === 150")
    assert page.evaluate("document.getElementById('lines-captions').scrollTop") == 500
    assert page.locator("#lines-captions [tabindex='0']").count() == 1
    page.evaluate("reelscribe.player.seek(120)")
    assert page.locator("#lines-captions [aria-current]").inner_text().split() == ["2:00", "line", "120"]


def test_a_server_that_has_ended_is_told_once_and_the_page_stays(show, site):
    page = show(RENDERER.library(LIBRARY))
    page.route("**/live.html", lambda route: route.abort())
    show(RENDERER.library(LIBRARY))
    page.wait_for_function("said.textContent.startsWith('The server does not answer')")
    assert page.locator(".card").count() == len(CARDS)
