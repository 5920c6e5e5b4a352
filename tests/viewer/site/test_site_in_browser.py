"""Exported pages in Debian's Chromium, opened from their files as somebody does who was given them."""

import json
import sys
import unicodedata

import pytest

from reelscribe.errors import UsageError
from reelscribe.viewer.index.word_rules import parse_query, word_spans
from reelscribe.viewer.pages.render import STATIC
from support.browser import open_browser, violations, was_aborted
from support.exported_pages import exported_site, source_record
from support.exporting import both, record, transcript_record

STOP_SECONDS = 5.25


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    spoken = source_record(folder / "in" / "spoken.webm", "a red circle", "</script><b>bold</b>")
    speech = transcript_record("x", "Look here", start=STOP_SECONDS - 1)
    speech["segments"].append({**speech["segments"][0], "start": STOP_SECONDS, "end": 6.0, "text": "and now STOP it"})
    many = [record(f"/in/{k}.mp4", f"the Größe of {k}", "red and blue 日本語") for k in range(120)]
    site, _ = exported_site(folder / "out", [both(spoken, speech), *many], "copy")
    return site


@pytest.fixture
def page(browser, site):
    """A page in which everything that should not happen is a failure."""
    page, wrong = browser.new_page(), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: was_aborted(request) or wrong.append(f"failed: {request.url}"))
    page.on("request", lambda request: request.url.startswith(f"file://{site}/") or wrong.append(request.url))
    yield page
    page.close()
    assert wrong == []


def hits(page, site, query):
    """Search, and return the title of the result and the texts of the hits."""
    page.goto(f"file://{site}/search.html?{query}")
    page.wait_for_selector("#result h2:not(:text('Searching')), #result .bad")
    return page.inner_text("#result h2"), page.locator(".hit .text").all_inner_texts()


def test_from_the_library_to_the_second_in_which_a_word_is_said(page, site):
    page.goto(f"file://{site}/index.html")
    assert page.locator(".card").count() == 96
    assert page.inner_text("#count") == "121 sources"
    page.fill("#quick", "stop")
    page.press("#quick", "Enter")
    page.wait_for_selector(".hit")
    assert page.inner_text(".hit mark") == "STOP"
    page.add_init_script("HTMLMediaElement.prototype.play = async () => {};")  # so that the time stays
    page.click(".hit a")
    page.wait_for_selector("#media", state="attached")
    page.evaluate("window.media = document.getElementById('media')")
    page.wait_for_function("media.readyState > 0 && !media.seeking")
    assert abs(page.evaluate("media.currentTime") - STOP_SECONDS) < 0.1
    assert page.inner_text("#lines-transcript [aria-current]").endswith("and now STOP it")


def test_searching_finds_what_the_live_search_finds(page, site):
    assert hits(page, site, "q=grosse+7")[1] == ["the Größe of 7"]
    assert hits(page, site, "q=gro*+117") == ("1 hit", ["the Größe of 117"])
    assert hits(page, site, "q=%22circle+red%22") == ("0 hits", [])
    assert hits(page, site, "q=red+circle&kind=transcript") == ("0 hits", [])
    assert hits(page, site, "q=bold")[1] == ["</script><b>bold</b>"]
    title, texts = hits(page, site, "q=%E6%9C%AC%E8%AA%9E")
    assert (title, len(texts)) == ("More than 50 hits", 50)
    page.click("text=Show more")
    page.click("text=Show more")
    page.wait_for_selector("h2:text('120 hits')")
    assert page.locator("text=Show more").count() == 0


def test_the_library_is_filtered_by_name_and_folder(page, site):
    page.goto(f"file://{site}/index.html")
    page.locator("#filters [name=q]").press_sequentially("/1 .MP4")
    page.wait_for_selector("#count:text('31 of 121 sources')")
    assert page.locator(".card").count() == 31
    page.fill("#filters [name=q]", "SPOKEN")
    page.wait_for_selector("#count:text-matches('^1 of 121 sources')")
    assert page.locator(".card .name").all_inner_texts() == ["spoken.webm"]
    page.fill("#filters [name=q]", "")
    page.wait_for_selector("#count:text-is('121 sources')")
    assert page.locator(".card").count() == 96
    page.click("#folders :text-is('in')")
    page.wait_for_selector("#count:text('120 of 121 sources')")
    page.click(".pager a:text-is('2')")
    page.wait_for_selector(".pager [aria-current]:text-is('2')")
    assert page.locator(".card").count() == 24
    page.click("#folders a:text-is('All folders')")
    page.wait_for_selector("#count:text-is('121 sources')")


def test_a_search_finds_names_too(page, site):
    page.goto(f"file://{site}/search.html?q=webm")
    page.click(".named a:has-text('spoken.webm')")
    page.wait_for_url("**/source/*.html")


def test_a_query_that_cannot_be_searched_is_explained(page, site):
    for query, reason in (("q=a*", "needs at least 2 characters"), ("q=%2B", "Type at least one word")):
        page.goto(f"file://{site}/search.html?{query}")
        assert reason in page.inner_text("#result .bad")


def test_a_piece_that_is_missing_is_said(browser, site):
    page = browser.new_page()
    page.route("**/words-*.js", lambda route: route.abort())
    page.goto(f"file://{site}/search.html?q=red")
    assert "Was the folder copied as a whole?" in page.inner_text("#result .bad")
    page.close()


@pytest.mark.parametrize("name", ["index.html", "index.html?q=mp4&folder=in", "search.html?q=red"])
def test_pages_are_accessible(browser, site, name):
    page = browser.new_page()
    page.goto(f"file://{site}/{name}")
    page.wait_for_selector(".card, .hit")
    assert violations(page) == []
    page.close()


def test_words_and_queries_are_those_of_the_live_search(browser):
    """All characters of Python's version of Unicode make the same words in scripts as in Python."""
    characters = map(chr, range(sys.maxunicode + 1))
    known = [each for each in characters if unicodedata.category(each) not in ("Cn", "Co", "Cs")]
    alike = ("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "EGYPTIAN", "CUNEIFORM")  # one of fifty of these will do
    known = [each for each in known if ord(each) % 50 == 0 or not unicodedata.name(each, "").startswith(alike)]
    texts = [f"a{''.join(known[k : k + 3])}b {known[k]} {known[k]}e" for k in range(len(known))]
    queries = ['red "a b', "stop* x*", "don't 日*", 'a"b c"d', '* "" \'', "é*", "w " * 33, 'ß* "ﬁx']
    page = browser.new_page()
    page.evaluate(f"window.reelscribe = {{}}; {(STATIC / 'words.js').read_text()}")
    words = "JSON.parse(texts).map((text) => reelscribe.words.spans(text).map(({ word }) => word))"
    found = json.loads(page.evaluate(f"texts => JSON.stringify({words})", json.dumps(texts)))  # one by one takes long
    assert found == [[span.word for span in word_spans(text)] for text in texts]
    for query in queries:
        try:
            expected = [[list(term.words), term.prefix] for term in parse_query(query)]
        except UsageError as error:
            expected = str(error)
        parse = "query => { try { return reelscribe.words.parse(query).map((term) => [term.words, term.prefix]); }"
        assert page.evaluate(f"{parse} catch (error) {{ return error.message; }} }}", query) == expected
    page.close()
