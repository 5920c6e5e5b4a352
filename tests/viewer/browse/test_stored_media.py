"""A source in a store plays through the server of the pages, in ranges, with the user's credentials."""

import asyncio
import shutil
import socket
import tarfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import aiohttp
import boto3
import pytest
from playwright.sync_api import expect

from reelscribe.errors import UsageError
from reelscribe.viewer.browse import app
from reelscribe.viewer.browse.serve import serving
from reelscribe.viewer.index.source_row import source_id
from reelscribe.viewer.media import store_reader
from support.browser import open_browser
from support.browsing import browsing, caption
from support.buckets import SCHEMES, bucket_server
from support.patience import PATIENCE
from support.stores import s3_server, status, web_server

DEMO = Path(__file__).parents[3] / "demo" / "media"

CHANGED = "s3://bucket/plays.mp4 has changed since the run; run it again to read it."

LARGE = 48 * 2**20
"""More bytes than are on the way to somebody who does not read."""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    shutil.copy(DEMO / "spoken.mp4", folder / "plays.mp4")
    shutil.copy(DEMO / "old.avi", folder / "old.avi")
    ignored = LARGE.to_bytes(4) + b"free" + bytes(LARGE - 8)
    (folder / "large.mp4").write_bytes((DEMO / "same-480x270.mp4").read_bytes() + ignored)
    return folder


@pytest.fixture
def content(library) -> bytes:
    return (library / "plays.mp4").read_bytes()


@pytest.fixture(scope="module")
def store(library):
    with pytest.MonkeyPatch.context() as monkeypatch, s3_server(monkeypatch, library) as store:
        yield store


@pytest.fixture(scope="module")
def out(store, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    asyncio.run(caption(out, "s3://bucket/"))
    return out


@pytest.fixture
def bucket(store, out, content, monkeypatch):
    """A store whose objects have been captioned, and of which nothing has been asked since."""
    monkeypatch.setattr(store_reader, "_ATTEMPTS", 1)
    boto3.client("s3").put_object(Bucket="bucket", Key="plays.mp4", Body=content)
    store.faults = {}
    for told in (store.requests, store.sent, store.released):
        told.clear()
    return store


@pytest.fixture
def address(bucket, out):
    with browsing(out, transcode=True) as address:
        yield address


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as client:
        yield client


def id_of(name: str) -> str:
    return source_id(name.encode())


def media_of(address: str, name: str = "plays.mp4") -> str:
    return f"{address}media/{id_of(f's3://bucket/{name}')}"


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        (None, slice(None)),
        ("bytes=0-", slice(None)),
        ("bytes=0-1", slice(2)),
        ("bytes=70000-70009", slice(70000, 70010)),
        ("bytes=100-70000", slice(100, 70001)),
        ("bytes=70000-", slice(70000, None)),
        ("bytes=-10", slice(-10, None)),
        (f"bytes=-{10**17}", slice(None)),
        (f"bytes=70000-{10**17}", slice(70000, None)),
    ],
)
async def test_a_source_is_sent_in_ranges(client, address, content, wanted, part):
    headers = {"Range": wanted} if wanted else {}
    async with client.get(media_of(address), headers=headers) as response:
        assert (response.status, await response.read()) == (206 if wanted else 200, content[part])
        assert (response.content_type, response.headers["Accept-Ranges"]) == ("video/mp4", "bytes")
        first, stop, _ = part.indices(len(content))
        told = f"bytes {first}-{stop - 1}/{len(content)}" if wanted else None
        assert response.headers.get("Content-Range") == told
        etag = response.headers["ETag"]
    for version, expected in ((etag, 206 if wanted else 200), ('"other"', 200)):
        async with client.get(media_of(address), headers=headers | {"If-Range": version}) as response:
            assert response.status == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("bytes=79129-", 416), ("bytes=-0", 416), ("bytes=9-3", 200), ("bytes=0-1,5-6", 200), ("lines=1-2", 200)],
)
async def test_other_ranges_are_refused_or_ignored_as_for_files(client, address, content, wanted, expected):
    assert len(content) == 79129
    async with client.get(media_of(address), headers={"Range": wanted}) as response:
        assert (response.status, await response.read()) == (expected, content if expected == 200 else b"")


async def test_its_headers_are_told_without_its_content(client, address, bucket, content):
    async with client.head(media_of(address)) as response:
        assert (response.status, response.headers["Content-Length"]) == (200, str(len(content)))
    assert bucket.sent["plays.mp4"] == 0


async def test_pages_ask_the_store_for_nothing(client, address, bucket):
    for page in ("", "?q=plays", f"source/{id_of('s3://bucket/plays.mp4')}"):
        async with client.get(address + page) as response:
            assert "plays.mp4" in (text := await response.text())
            assert "secret-of-the-store" not in text
            assert "thumbnail/" not in text  # its run kept none
    assert f'media/{id_of("s3://bucket/plays.mp4")}">' in text
    assert not bucket.requests


async def test_what_browsers_cannot_play_says_so(client, address):
    async with client.get(f"{address}source/{id_of('s3://bucket/old.avi')}") as response:
        assert "Previews are made of files of this machine only." in await response.text()
    async with client.get(f"{address}preview/{id_of('s3://bucket/old.avi')}.webm") as response:
        assert response.status == 404
        assert "is in a store; only reelscribe browse plays it" in await response.text()


def change(sending) -> None:
    """Put other content in the place of the object."""
    if sending.number == 1:
        boto3.client("s3").put_object(Bucket="bucket", Key="plays.mp4", Body=bytes(79129))


@pytest.mark.parametrize(
    ("fault", "expected", "reason"),
    [
        (change, 404, CHANGED),
        (status(403), 404, "s3://bucket/plays.mp4 cannot be read: permission denied by the store to you; set AWS_"),
        (status(404), 404, "s3://bucket/plays.mp4 cannot be read: no such object in the store; check the address."),
        (status(503), 503, "s3://bucket/plays.mp4 cannot be read now: the store failed with 503"),
    ],
)
async def test_the_answer_says_why_it_cannot_be_played(client, address, bucket, fault, expected, reason):
    bucket.faults["plays.mp4"] = fault
    async with client.get(media_of(address), headers={"Range": "bytes=5-"}) as response:
        text = await response.text()
        assert (response.status, response.content_type) == (expected, "text/plain")
    assert text.startswith(reason)
    assert "secret-of-the-store" not in text + str(response.headers)
    async with client.head(media_of(address)) as response:
        assert response.status == expected


def test_the_page_plays_it_or_shows_why_not(address, bucket):
    with open_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{address}source/{id_of('s3://bucket/plays.mp4')}#t=4")
        page.wait_for_function("() => media.readyState > 1 && media.currentTime >= 4")
        boto3.client("s3").put_object(Bucket="bucket", Key="plays.mp4", Body=bytes(79129))
        page.reload()
        expect(page.locator("#cannot")).to_have_text(CHANGED, timeout=PATIENCE * 1000)


async def test_only_what_the_run_has_read_is_read(client, bucket, out, tmp_path):
    boto3.client("s3").put_object(Bucket="bucket", Key="other.mp4", Body=b"other")
    bucket.requests.clear()
    with browsing(out) as address:
        async with client.get(media_of(address, "other.mp4")) as response:
            assert response.status == 404
    shutil.copy(out / "annotations.jsonl", tmp_path)
    with browsing(tmp_path) as address:
        async with client.get(media_of(address)) as response:
            assert response.status == 404
            assert "no ledger knows which version" in await response.text()
    assert not bucket.requests


def leave_early(address: str) -> socket.socket:
    """Ask for the large source, read where it begins, and no more; close the socket to leave."""
    parts = urlsplit(media_of(address, "large.mp4"))
    browser = socket.create_connection((parts.hostname, parts.port))
    browser.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nRange: bytes=0-\r\n\r\n".encode())
    assert browser.recv(12) == b"HTTP/1.1 206"
    return browser


async def test_a_browser_that_leaves_ends_the_reading(address, bucket):
    ended = Event()

    def watched(sending):
        def pieces():
            try:
                yield from sending.pieces
            finally:
                ended.set()

        return pieces()

    bucket.faults["large.mp4"] = watched
    browser = await asyncio.to_thread(leave_early, address)
    assert not ended.is_set()  # it waits for the browser, which takes nothing
    browser.close()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert bucket.sent["large.mp4"] < LARGE


async def test_connections_to_stores_have_a_limit(client, monkeypatch, bucket, out):
    for module in (app, store_reader):
        monkeypatch.setattr(module, "MOST_READINGS", 2)
    with browsing(out) as address, ExitStack() as stack:
        for _ in range(2):
            stack.callback((await asyncio.to_thread(leave_early, address)).close)
        async with client.get(media_of(address)) as response:
            assert response.status == 503
            assert "2 sources in stores are being played already" in await response.text()
        stack.close()
        async with asyncio.timeout(PATIENCE):
            while (await client.get(media_of(address))).status != 200:  # noqa: ASYNC110 - nothing tells when one is free
                await asyncio.sleep(0.05)


async def test_pages_do_not_wait_for_a_store(client, address, bucket):
    asked = Event()

    def wait(sending):
        asked.set()
        sending.released.wait()

    bucket.faults["plays.mp4"] = wait
    playing = asyncio.ensure_future(client.get(media_of(address)))
    try:
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        async with client.get(address) as response:
            assert response.status == 200
    finally:
        bucket.released.set()
        (await playing).close()


async def test_an_answer_breaks_off_with_its_connection_to_the_store(client, address, bucket):
    def broken(sending):
        yield from (next(sending.pieces) for _ in range(200))
        raise ConnectionAbortedError

    bucket.faults["large.mp4"] = broken
    async with client.get(media_of(address, "large.mp4")) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_source_on_a_web_server_plays_too(client, library, content, tmp_path):
    with web_server(library) as (_, site):
        name = f"{site}/plays.mp4"
        await caption(tmp_path / "out", name)
        with browsing(tmp_path / "out", media_hosts=["127.0.0.1"]) as address:
            async with client.get(f"{address}media/{id_of(name)}", headers={"Range": "bytes=9-"}) as response:
                assert (response.status, await response.read()) == (206, content[9:])


async def test_that_results_name_a_private_web_server_does_not_mean_that_the_user_does(
    client, library, tmp_path, monkeypatch
):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with web_server(library) as (served, site):
        await caption(tmp_path / "out", name := f"{site}/plays.mp4")
        served.requests.clear()
        with browsing(tmp_path / "out") as address:
            async with client.get(f"{address}media/{id_of(name)}") as response:
                assert (response.status, "with --media-host" in await response.text()) == (404, True)
        assert not served.requests
    with (
        pytest.raises(UsageError, match="--media-host: expected a host alone"),
        serving(tmp_path / "out", media_hosts=["a:1/"]),
    ):
        pass


async def test_a_member_of_an_archive_plays_from_its_place_in_it(client, library, content, tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        shard.add(library / "old.avi", "old.avi")
        shard.add(library / "plays.mp4", "a/plays.mp4")
    await caption(tmp_path / "out", str(tmp_path / "s.tar"))
    with browsing(tmp_path / "out") as address:
        media = f"{address}media/{id_of(f'{tmp_path}/s.tar::a/plays.mp4')}"
        async with client.get(media, headers={"Range": "bytes=70000-70009"}) as response:
            assert (response.status, await response.read()) == (206, content[70000:70010])
        (tmp_path / "s.tar").write_bytes(b"another archive")
        async with client.get(media) as response:
            assert response.status == 404
            assert "has changed since the run" in await response.text()


@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each != "s3"])
async def test_a_source_of_any_bucket_plays(client, scheme, content, tmp_path, monkeypatch):
    (folder := tmp_path / "library").mkdir()
    (folder / "plays.mp4").write_bytes(content)
    with bucket_server(scheme, monkeypatch, folder) as bucket:
        await caption(tmp_path / "out", f"{scheme}://bucket/")
        with browsing(tmp_path / "out") as address:
            media = f"{address}media/{id_of(f'{scheme}://bucket/plays.mp4')}"
            async with client.get(media, headers={"Range": "bytes=70000-70009"}) as response:
                assert (response.status, await response.read()) == (206, content[70000:70010])
            bucket.put("plays.mp4", b"other")
            async with client.get(media) as response:
                assert (response.status, "has changed since the run" in await response.text()) == (404, True)
