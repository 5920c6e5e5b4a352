"""Chromium shows the pages from files: they can be used with keys alone, and nothing violates WCAG AA."""

import pytest

from support.browser import find_chromium, violations, was_aborted
from support.example_views import OLD, SPOKEN, TALK

NAMES = ["library", "search", "run", f"source/{SPOKEN}", f"source/{OLD}", f"source/{TALK}"]


@pytest.fixture
def open_page(browser, site):
    """Return a function that opens a page; at the end of the test, no page may have logged anything."""
    contexts, logged = [], []

    def open_it(name, fragment="", **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: logged.append(message.text))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("requestfailed", lambda request: was_aborted(request) or logged.append(request.url))
        page.goto((site / f"{name}.html").as_uri() + fragment)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert logged == []


@pytest.fixture
def spoken(open_page):
    """The page of a video with speech, at second 4.2; `sought` has the times to which its player was sent."""
    page = open_page(f"source/{SPOKEN}", "#t=4.2")
    wait_for_time(page, 4.2)
    page.evaluate("""() => {
        window.sought = [];
        media.addEventListener("seeking", () => sought.push(media.currentTime));
    }""")
    return page


def wait_for_time(page, seconds):
    page.wait_for_function(
        "seconds => media.readyState > 1 && Math.abs(media.currentTime - seconds) < 0.1", arg=seconds
    )


def click_middle(page, selector):
    place = page.locator(selector).bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)


def current(page, kind):
    return page.locator(f"#lines-{kind} [aria-current=true]").all_inner_texts()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:9])
def test_a_page_has_no_violations_of_aa(open_page, name):
    assert violations(open_page(name)) == []


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:9])
def test_no_page_scrolls_sideways(open_page, name):
    page = open_page(name)
    for width in (360, 2560):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_an_address_with_a_time_opens_there(spoken):
    assert [" ".join(text.split()) for text in current(spoken, "transcript")] == [
        "0:03 channel 1: look at the red circle"
    ]
    assert spoken.locator("[data-word][data-now]").all_inner_texts() == ["the"]
    assert spoken.locator("#lane-shots rect").nth(1).get_attribute("data-now") == ""
    assert spoken.locator("#now").inner_text() == "0:04"


def test_keys_go_through_time_and_lines(spoken):
    for key, seconds in [("ArrowRight", 9.2), ("ArrowLeft", 4.2), ("ArrowDown", 7.0), ("ArrowUp", 3.0)]:
        spoken.keyboard.press(key)
        wait_for_time(spoken, seconds)
    spoken.focus("#timeline")
    spoken.keyboard.press("Home")
    wait_for_time(spoken, 0.0)
    assert spoken.get_attribute("#timeline", "aria-valuetext") == "0:00"


def test_the_lines_of_the_list_that_was_used_last_are_those_of_the_keys(spoken):
    spoken.focus("#lines-captions [tabindex='0']")
    spoken.keyboard.press("ArrowDown")
    wait_for_time(spoken, 6.0)
    assert current(spoken, "captions") == [spoken.evaluate("document.activeElement.parentElement.innerText")]


def test_space_plays_and_pauses(spoken):
    for paused in (False, True):
        spoken.keyboard.press("Space")
        spoken.wait_for_function(f"media.paused === {str(paused).lower()}")
        assert spoken.evaluate("media.paused") == paused


def test_a_click_on_a_line_or_a_word_plays_there(spoken):
    spoken.click("#lines-captions li:nth-child(2) p")
    spoken.wait_for_function("!media.paused")
    spoken.click("#lines-transcript [data-word='8.000']")
    spoken.wait_for_function("sought.length > 1")
    assert spoken.evaluate("sought") == [2, 8]


def test_a_click_on_the_timeline_goes_there(spoken):
    spoken.locator("#timeline").scroll_into_view_if_needed()
    click_middle(spoken, ".play-area")
    wait_for_time(spoken, 6.0)
    assert spoken.evaluate("media.currentTime") == pytest.approx(6.0, abs=0.1)


def test_the_current_line_scrolls_into_view_within_its_list(open_page):
    page = open_page(f"source/{TALK}", viewport={"width": 900, "height": 500}, reduced_motion="reduce")
    page.wait_for_function("media.readyState > 0")
    before = page.evaluate("scrollY")
    page.focus("#timeline")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#lines-transcript [aria-current=true]")
    assert page.evaluate("""() => {
        const line = document.querySelector("#lines-transcript [aria-current]").getBoundingClientRect();
        const list = document.getElementById("lines-transcript").getBoundingClientRect();
        return list.top <= line.top && line.bottom <= list.bottom;
    }""")
    assert page.evaluate("scrollY") == before


def test_the_speed_can_be_chosen(spoken):
    spoken.select_option("#speed", "1.5")
    assert spoken.evaluate("media.playbackRate") == 1.5


def test_the_link_to_a_time_is_copied(open_page):
    page = open_page(f"source/{SPOKEN}", "#t=4.2", permissions=["clipboard-read", "clipboard-write"])
    wait_for_time(page, 4.2)
    page.click("#copy-link")
    page.wait_for_function("said.textContent === 'Link to 0:04 copied.'")
    assert page.evaluate("navigator.clipboard.readText()") == page.url.replace("4.2", "4.200")


def test_what_no_browser_plays_is_shown_as_thumbnails(open_page):
    page = open_page(f"source/{OLD}", "#t=3.1")
    assert page.locator("#still").get_attribute("src").endswith("/3000.webp")
    page.keyboard.press("ArrowDown")  # the next line of the transcript, at second 7
    assert page.locator("#still").get_attribute("src").endswith("/7000.webp")
    assert page.locator("#thumbnails [aria-current]").inner_text() == "0:07"
    assert page.locator("#cannot").inner_text().startswith("No browser plays the container AVI.")


def test_a_still_of_another_shape_is_shown_whole(open_page):
    page = open_page(f"source/{OLD}")
    page.evaluate("""() => {
        const canvas = Object.assign(document.createElement("canvas"), { width: 320, height: 240 });
        still.src = canvas.toDataURL();
        return still.decode();
    }""")
    still, player = (page.locator(selector).bounding_box() for selector in ("#still", "#player"))
    assert still["height"] <= player["height"]
    assert still["y"] >= player["y"]
    assert page.evaluate("getComputedStyle(still).objectFit") == "contain"


def test_the_skip_link_is_the_first_that_can_be_reached(open_page):
    page = open_page("library")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_whole_card_leads_to_its_source(open_page):
    page = open_page("library")
    click_middle(page, f"#card-{SPOKEN} .counts")
    page.wait_for_url(f"**/source/{SPOKEN}.html")
    assert page.inner_text("h1") == "spoken.mp4"


def test_a_machine_without_chromium_is_told_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AssertionError, match="found none: on Debian, run apt-get install"):
        find_chromium()
