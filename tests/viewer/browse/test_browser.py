"""The server's pages in Debian's Chromium, over the folder of a real run: from a library to a moment of a video."""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from aiohttp import web
from playwright.sync_api import expect

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.contract.frames import FrameCaption
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from support.browser import open_browser, violations
from support.browsing import browsing, record_of_file, segments, write_annotations
from support.exporting import record, spoken_by
from support.fake_torchserve import SPEECH, FakeTorchServe
from support.patience import PATIENCE

MEDIA = Path(__file__).parents[3] / "demo" / "media"

STOP_SECONDS = 4.25
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> a red circle"
SEGMENTS = (SpeechSegment(0.5, 3.0, "look here"), SpeechSegment(STOP_SECONDS, 6.0, "and now STOP it"))


async def captions(request):
    return web.json_response([FrameCaption(HOSTILE, avg_logprob=-0.25).to_json() for _ in request.names()])


async def transcripts(request):
    chunk = ChunkTranscript("look here and now STOP it", "en", SEGMENTS, no_speech_prob=0.25)
    return web.json_response([chunk.to_json() for _ in request.names()])


async def annotate(out, *sources, answer=captions):
    """Caption a frame a second of sources, and transcribe their speech, with servers that say what tests know."""
    async with (
        FakeTorchServe(answer) as for_frames,
        FakeTorchServe(transcripts, description=SPEECH) as for_speech,
        CaptionClient([Server(for_frames.url)], "captioner") as captioner,
        SpeechClient([Server(for_speech.url)], "speech") as speech,
    ):
        tracks = [
            CaptionTrack(captioner, CaptionOptions(sampling=Sampling(fps=1))),
            TranscriptTrack(speech, SpeechOptions(silence_db=None)),
        ]
        await Run(tracks, out).run([*map(str, sources)])


@pytest.fixture(scope="module")
def runs():
    """A thread for runs: in the test's own, playwright has an event loop."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda *sources, **options: pool.submit(asyncio.run, annotate(*sources, **options))


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(runs, tmp_path_factory):
    """The address of the pages of a video with speech, one that no browser plays, and a broken file."""
    folder = tmp_path_factory.mktemp("results")
    sources = [shutil.copy(MEDIA / name, folder) for name in ("spoken.mp4", "old.avi")]
    (folder / "broken.mp4").write_bytes((MEDIA / "spoken.mp4").read_bytes()[:1000])
    runs(folder / "out", *sources, folder / "broken.mp4").result(PATIENCE)
    with browsing(folder / "out", transcode=True) as address:
        yield address


@pytest.fixture
def open_page(browser):
    """Return a function that opens a page of a server; whatever is not as it should be in it is a failure."""
    wrong = []
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)

    def open_it(address, path=""):
        page, root = context.new_page(), address.rsplit("/", 2)[0]
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on(
            "response", lambda response: response.status < 400 or wrong.append(f"{response.status}: {response.url}")
        )
        page.on("request", lambda request: request.url.startswith(root) or wrong.append(request.url))
        page.goto(address + path)
        return page

    yield open_it
    context.close()
    assert wrong == []


def source(page, name):
    """Go from the library to the page of a source."""
    page.click(f".card a:has-text('{name}')")
    page.wait_for_url("**/source/*")
    return page


def wait_for_time(page, seconds):
    page.wait_for_function(
        "seconds => media.readyState > 1 && !media.seeking && Math.abs(media.currentTime - seconds) < 0.1", arg=seconds
    )


def test_the_library_finds_what_failed_and_the_command_to_try_it_again(open_page, address):
    page = open_page(address)
    expect(page.locator(".card")).to_have_count(3)
    page.select_option("select[name=state]", "error")
    expect(page.locator("#count")).to_contain_text("1 of 3 sources")
    source(page, "broken.mp4")
    expect(page.locator("#what-failed")).to_contain_text("MediaError")
    expect(page.locator("#retry")).to_contain_text("--retry-failed")


def test_the_library_is_filtered_as_one_types_and_keeps_it_in_the_address(open_page, address):
    page = open_page(address)
    field = page.locator("#filters [name=q]")
    field.press_sequentially("OLD.A")
    expect(page.locator("#count")).to_contain_text("1 of 3 sources")
    expect(page.locator(".card .name")).to_have_text("old.avi")
    expect(field).to_be_focused()
    expect(page).to_have_url(f"{address}?q=OLD.A")
    field.press_sequentially("x")
    expect(page.locator("#nothing")).to_contain_text("No source fits")
    expect(open_page(address, "?q=old").locator(".card .name")).to_have_text("old.avi")
    page.click("text=Show all")
    expect(page.locator(".card")).to_have_count(3)


def test_folders_lead_to_what_is_in_them(open_page, tmp_path):
    records = [record(f"/v/{folder}/IMG_0001.MOV", "a star") for folder in ("a", "b", "b/c d&é")]
    for value in records:
        value["source"]["sha256"] = None  # so that there are no thumbnails to ask for
    write_annotations(tmp_path, *records)
    with browsing(tmp_path) as address:
        page = open_page(address)
        expect(page.locator(".card .place")).to_have_text(["a", "b", "b/c d&é"])
        page.click("#folders :text-is('b')")
        expect(page.locator(".card")).to_have_count(2)
        page.click("#folders :text-is('c d&é')")
        expect(page.locator(".card .place")).to_have_text("b/c d&é")
        page.fill("#filters [name=q]", "nothing")
        expect(page.locator("#count")).to_contain_text("0 of 3 sources")
        page.fill("#filters [name=q]", "img")
        expect(page.locator("#count")).to_contain_text("1 of 3 sources")
        page.click(".card a")
        page.wait_for_url("**/source/*")
        assert page.title() == "IMG_0001.MOV · b/c d&é · reelscribe"
        page.click(".folders :text-is('b')")
        expect(page.locator(".card")).to_have_count(2)
        assert violations(page) == []
        page.close()


def test_from_a_word_to_the_moment_in_which_it_is_said(open_page, address):
    page = open_page(address)
    page.add_init_script("HTMLMediaElement.prototype.play = async () => {};")  # so that the time stays
    page.fill("#quick", "stop")
    page.press("#quick", "Enter")
    expect(page.locator(".hit:has-text('spoken.mp4') mark")).to_have_text("STOP")
    page.click(".hit:has-text('spoken.mp4') a")
    wait_for_time(page, STOP_SECONDS)
    expect(page.locator("#lines-transcript [aria-current]")).to_contain_text("and now STOP it")
    page.keyboard.press("ArrowRight")
    wait_for_time(page, STOP_SECONDS + 5)
    expect(page.locator("#lines-transcript [aria-current]")).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    wait_for_time(page, STOP_SECONDS)
    page.click("#copy-link")
    expect(page.locator("#said")).to_contain_text("copied")
    wait_for_time(open_page(page.evaluate("navigator.clipboard.readText()")), STOP_SECONDS)


def test_lines_are_marked_while_a_video_plays(open_page, address):
    page = source(open_page(address), "spoken.mp4")
    page.evaluate("() => { media.loop = true; }")  # a slow machine sees the line another time
    page.click("#lines-transcript li:has-text('look here') p")
    page.wait_for_function("() => !media.paused && media.currentTime > 0.6")
    expect(page.locator("#lines-transcript [aria-current]")).to_contain_text("look here")


def test_a_preview_of_what_no_browser_plays_is_played(open_page, address):
    page = source(open_page(address), "old.avi")
    expect(page.locator("#cannot")).to_contain_text("This is a small preview")
    wait_for_time(page, 0)
    page.keyboard.press("Space")
    page.wait_for_function("() => media.videoWidth > 0 && media.currentTime > 0.2")


def test_a_browser_that_cannot_play_a_video_plays_its_preview(browser, address):
    with browser.new_context() as context:
        context.route(
            "**/media/*", lambda route: route.fulfill(body="nothing that it plays", content_type="video/x-ms")
        )
        page = context.new_page()
        page.goto(address)
        source(page, "spoken.mp4")
        page.wait_for_function("() => media.currentSrc.endsWith('.webm') && media.videoWidth > 0")
        expect(page.locator("#cannot")).to_be_hidden()


def test_matroska_with_codecs_that_browsers_know_is_played(open_page, tmp_path):
    path = shutil.copy(MEDIA / "same-1280x720.mkv", tmp_path)
    write_annotations(tmp_path / "out", record_of_file(Path(path), "a star"))
    with browsing(tmp_path / "out") as address:
        page = source(open_page(address), "same-1280x720.mkv")
        wait_for_time(page, 0)
        page.keyboard.press("Space")
        page.wait_for_function("() => media.videoWidth === 1280 && media.currentTime > 0.2")
        page.close()


def test_a_page_that_is_open_grows_with_the_run_and_keeps_what_was_typed(open_page, runs, tmp_path):
    videos = [shutil.copy(MEDIA / name, tmp_path) for name in ("same-480x270.mp4", "variable-rate.mp4")]
    runs(tmp_path / "out", videos[0]).result(PATIENCE)
    answered = Event()

    async def slow(request):
        await asyncio.to_thread(answered.wait, PATIENCE)
        return await captions(request)

    run = runs(tmp_path / "out", *videos, answer=slow)
    try:
        with browsing(tmp_path / "out") as address:
            page = open_page(address)
            # A page asks for what is new at once when it comes into view, and otherwise after some seconds.
            page.evaluate("() => setInterval(() => document.dispatchEvent(new Event('visibilitychange')), 100)")
            expect(page.locator("body")).to_contain_text("A run is going on: 1 of 2 sources")
            expect(page.locator(".card")).to_have_count(1)
            page.fill("#quick", "not sent yet")
            answered.set()
            expect(page.locator(".card")).to_have_count(2)
            expect(page.locator("#quick")).to_have_value("not sent yet")
            expect(page.locator("#quick")).to_be_focused()
            page.close()
    finally:
        answered.set()
        run.result(PATIENCE)


def test_speakers_are_named_with_keys_alone(open_page, tmp_path):
    value = spoken_by(record("/v/call.wav", segments=segments("How may I help?", "Hello.")), "channel 1", "channel 2")
    value["source"]["sha256"] = None  # so that there are no thumbnails to ask for
    write_annotations(tmp_path, value)
    with browsing(tmp_path) as address:
        page = source(open_page(address), "call.wav")
        page.get_by_role("group", name="channel 2").get_by_label("In this source").focus()
        page.keyboard.type("Ms Okafor")
        page.keyboard.press("Enter")
        expect(page.locator("#lines-transcript .speaker")).to_have_text(["channel 1:", "Ms Okafor:"])
        assert page.url.endswith("#names")
        assert violations(page) == []
        page.close()
    assert '"channel 2" = "Ms Okafor"' in (tmp_path / "speakers.toml").read_text()


def test_no_page_violates_the_rules_of_accessibility(open_page, address):
    pages = [open_page(address, path) for path in ("", "search?q=stop", "search?q=*", "run")]
    pages += [source(open_page(address), name) for name in ("spoken.mp4", "old.avi", "broken.mp4")]
    assert {page.url: found for page in pages if (found := violations(page))} == {}
