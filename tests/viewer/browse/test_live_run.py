"""A run that goes on while its pages are open, what it tells of failures, and pictures that are made for pages."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import aiohttp
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.errors import MediaError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.viewer.browse.serve import serving
from reelscribe.viewer.content.run_page import RunFollower
from reelscribe.viewer.index.source_row import source_id
from reelscribe.viewer.media import source_previews
from support.browsing import browsing, caption, write_annotations
from support.exporting import record
from support.fake_torchserve import FakeTorchServe, captions
from support.patience import PATIENCE
from support.videos import write


async def page(client, address: str) -> str:
    async with client.get(address) as response:
        assert response.status == 200
        return await response.text()


async def until(condition) -> None:
    """Wait until pages show something."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - nothing else tells when the server has seen a file
            await asyncio.sleep(0.05)


async def test_the_library_grows_with_the_run_and_failures_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/reelscribe", "caption", "my videos", "--out", "out"])
    write(tmp_path / "first.mp4", "libx264", [50] * 20)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    await caption(tmp_path / "out", tmp_path / "first.mp4")
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path / "out") as address:
            assert "1 source" in await page(client, address)
            await caption(tmp_path / "out", tmp_path / "first.mp4", tmp_path / "broken.mp4")

            async def has_grown() -> bool:
                grown = "2 sources" in await page(client, address)
                return grown and "1 of 2 sources failed" in await page(client, f"{address}run")

            await until(has_grown)
            text = await page(client, f"{address}run")
    assert "1 of 2 sources failed" in text
    assert "reelscribe caption --retry-failed &#39;my videos&#39; --out out" in text
    assert "A source cannot be read" in text


async def test_a_run_that_goes_on_is_told_on_every_page(tmp_path):
    write(tmp_path / "first.mp4", "libx264", [50] * 20)
    await caption(tmp_path / "out", tmp_path / "first.mp4")
    answered = asyncio.Event()

    async def slow(request):
        await answered.wait()
        return await captions(request)

    write(tmp_path / "second.mp4", "libx264", [90] * 20)
    async with FakeTorchServe(captions) as server, CaptionClient([Server(server.url)], "captioner") as client:
        server.answer = slow
        run = Run([CaptionTrack(client, CaptionOptions())], tmp_path / "out")
        task = asyncio.create_task(run.run([str(tmp_path / "first.mp4"), str(tmp_path / "second.mp4")]))
        async with aiohttp.ClientSession() as browser:
            with browsing(tmp_path / "out") as address:

                async def is_told() -> bool:
                    return "A run is going on" in await page(browser, address)

                await until(is_told)
                assert ", process " in await page(browser, f"{address}run")
                answered.set()
                await task
                await until(lambda: _ended(browser, address))


async def _ended(browser, address) -> bool:
    return "all sources succeeded" in await page(browser, f"{address}run")


async def test_thumbnails_and_previews_are_made_when_somebody_looks(tmp_path):
    write(tmp_path / "first.mp4", "libx264", [50] * 100)
    write(tmp_path / "old.avi", "mpeg4", [50] * 100)
    await caption(tmp_path / "out", tmp_path / "first.mp4", tmp_path / "old.avi")
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path / "out", transcode=True) as address:
            text = await page(client, address)
            thumbnails = re.findall(r"thumbnail/[0-9a-f]{16}/[0-9]+\.webp", text)
            assert len(thumbnails) == 2
            for name in thumbnails:
                async with client.get(address + name) as response:
                    assert response.content_type == "image/webp"
            ids = [re.search("[0-9a-f]{16}", name)[0] for name in thumbnails]
            assert "<video" in await page(client, f"{address}source/{ids[0]}")
            assert f"preview/{ids[1]}.webm" in await page(client, f"{address}source/{ids[1]}")
            async with client.get(f"{address}preview/{ids[1]}.webm", headers={"Range": "bytes=0-3"}) as response:
                assert (response.status, await response.read()) == (206, b"\x1aE\xdf\xa3")
    assert not (tmp_path / "out/thumbnails").exists()  # what is made for pages goes into the cache


async def test_a_preview_is_given_up_when_its_client_has_left(tmp_path, monkeypatch):
    write(tmp_path / "old.avi", "mpeg4", [50] * 10)
    await caption(tmp_path / "out", tmp_path / "old.avi")
    begun, given_up = threading.Event(), threading.Event()

    def make_for_ever(_, __, *, cancelled):
        begun.set()
        if cancelled.wait(PATIENCE):
            given_up.set()
        raise MediaError("it was cancelled")

    monkeypatch.setattr(source_previews, "make_preview", make_for_ever)
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path / "out", transcode=True) as address:
            id_ = source_id(os.fsencode(tmp_path / "old.avi"))
            request = asyncio.create_task(page(client, f"{address}preview/{id_}.webm"))
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            request.cancel()
            assert await asyncio.to_thread(given_up.wait, PATIENCE)


async def test_pages_go_on_and_tell_it_when_the_run_cannot_be_followed(tmp_path, monkeypatch):
    write_annotations(tmp_path, record("a.mp4"))
    async with aiohttp.ClientSession() as client:
        with serving(tmp_path) as server:
            monkeypatch.setattr(RunFollower, "update", lambda _: 1 / 0)
            thread = threading.Thread(target=server.run)
            thread.start()
            try:

                async def is_told() -> bool:
                    return "The state of the run cannot be read" in await page(client, server.address)

                await until(is_told)
                write_annotations(tmp_path, record("a.mp4"), record("b.mp4"))

                async def has_grown() -> bool:
                    return "2 sources" in await page(client, server.address)

                await until(has_grown)
                assert await is_told()
            finally:
                server.stop()
                thread.join()


async def test_without_previews_the_reason_and_the_option_are_told(tmp_path):
    write(tmp_path / "old.avi", "mpeg4", [50] * 100)
    await caption(tmp_path / "out", tmp_path / "old.avi")
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path / "out") as address:
            (id_,) = set(re.findall(r"source/([0-9a-f]{16})", await page(client, address)))
            text = await page(client, f"{address}source/{id_}")
            async with client.get(f"{address}preview/{id_}.webm") as response:
                assert response.status == 404
    assert "Browsers cannot play .avi files with mpeg4" in text
    assert "--transcode" in text


async def test_a_record_that_says_anything_is_shown_all_the_same(tmp_path):
    source = {"path": "x", "absolute_path": "/nowhere/<i>x\u202e.mp4", "sha256": "../../etc", "bytes": 3}
    spans = [{"start": 0, "end": 1e99, "text": "words"}]
    write_annotations(tmp_path / "out", {"source": source, "caption_spans": spans})
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path / "out") as address:
            library = await page(client, address)
            (id_,) = set(re.findall(r"source/([0-9a-f]{16})", library))
            assert "&lt;i&gt;x" in library
            assert "\u202e" not in library
            assert "cannot be read: No such file" in await page(client, f"{address}source/{id_}")


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    from reelscribe.errors import UsageError

    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="expected the folder of a run"), browsing(tmp_path / name):
        pass


def test_the_command_prints_the_address_and_ends_with_ctrl_c(tmp_path):
    write_annotations(tmp_path, record("a.mp4", "words"))
    command = [sys.executable, "-m", "reelscribe.cli", "browse", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address) as response:
            assert b"a.mp4" in response.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert "Traceback" not in process.stderr.read()


async def test_a_ledger_that_cannot_be_read_is_told(tmp_path):
    write_annotations(tmp_path, record("a.mp4", "words"))
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    async with aiohttp.ClientSession() as client:
        with browsing(tmp_path) as address:
            text = await page(client, f"{address}run")
    assert "The state of the run cannot be read" in text
    assert "No run has saved anything" not in text
