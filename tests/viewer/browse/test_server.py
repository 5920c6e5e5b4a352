"""The server shows the pages of a folder to who knows its address, and nothing else to anybody."""

import asyncio
import csv
import io
import json
import os
import shutil
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp
import pytest
from yarl import URL

from reelscribe.viewer.index.source_row import source_id
from support.browsing import browsing, record_of_file, segments, write_annotations
from support.exporting import record
from support.patience import PATIENCE

MEDIA = bytes(range(256)) * 4000


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of five files, one of which is no media."""
    folder = tmp_path_factory.mktemp("library")
    for name in ("plays.mp4", "swapped.mp4", "grown.mp4", "secret.txt", "<b>odd & 'name'.mp4"):
        (folder / name).write_bytes(MEDIA)
    return folder


@pytest.fixture(scope="module")
def address(library):
    out = library / "out"
    records = [
        record_of_file(path, "<script>alert(1)</script>", segments=segments("to be or not", "to stop"))
        for path in sorted(path for path in library.iterdir() if path.is_file())
    ]
    write_annotations(out, *records)
    (library.parent / "elsewhere").write_bytes(MEDIA)
    (library / "swapped.mp4").unlink()
    (library / "swapped.mp4").symlink_to(library.parent / "elsewhere")
    (library / "grown.mp4").write_bytes(MEDIA + b"more")
    with browsing(out) as address:
        yield address


@pytest.fixture
async def client():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client:
        yield client


def id_of(path) -> str:
    return source_id(os.fsencode(path))


@pytest.mark.parametrize("page", ["", "search", "search?q=stop", "run", "?state=error&page=7", "?sort=x&page=-1"])
async def test_pages_are_html_that_may_load_only_what_is_here(client, address, page):
    async with client.get(address + page) as response:
        text = await response.text()
        assert response.status == 200
        assert response.content_type == "text/html"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "same-origin"
        assert response.headers["Cache-Control"] == "no-store"
    assert "<script>alert" not in text


async def test_the_page_of_a_source_has_its_texts(client, address, library):
    async with client.get(f"{address}source/{id_of(library / 'plays.mp4')}?t=1.5") as response:
        text = await response.text()
    assert response.status == 200
    assert "to be or not" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    async with client.get(f"{address}source/{'0' * 16}") as response:
        assert response.status == 404


async def test_hits_are_a_file_for_other_programs(client, address, library):
    async with client.get(address + "search.csv?q=stop") as response:
        rows = list(csv.DictReader(io.StringIO(await response.text())))
    async with client.get(address + "search.json?q=stop") as response:
        assert json.loads(await response.text())[0]["text"] == "to stop"
    assert [row["source"] for row in rows] == sorted(row["source"] for row in rows)
    assert len(rows) == 5
    assert rows[0] | {"source": ""} == {
        "source": "",
        "kind": "transcript",
        "start": "1.0",
        "end": "2.0",
        "text": "to stop",
    }
    async with client.get(address + "search.csv?q=*") as response:
        assert response.status == 400


async def test_a_list_of_hits_has_no_formulas(client, tmp_path):
    write_annotations(tmp_path, record("a.mp4", "=HYPERLINK(1) \x1b[31m"))
    with browsing(tmp_path) as address:
        async with client.get(address + "search.csv?q=hyperlink") as response:
            (row,) = csv.DictReader(io.StringIO(await response.text()))
    assert row["text"] == "'=HYPERLINK(1) \ufffd[31m"


async def test_a_list_of_hits_says_which_texts_are_cut(client, tmp_path):
    write_annotations(tmp_path, *(record(f"{k}.mp4", "word " * 3000, "word") for k in range(60)))
    with browsing(tmp_path) as address:
        async with client.get(address + "search.json?q=word") as response:
            assert int(response.headers["Content-Length"]) > 600_000
            texts = [hit["text"] for hit in json.loads(await response.text())]
        async with client.get(address + "search.json?q=nowhere") as response:
            assert await response.json() == []
    assert len(texts) == 120
    assert {len(text) for text in texts} == {10_001, 4}
    assert texts[0].endswith("…")


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        (None, 200, MEDIA),
        ("bytes=0-", 206, MEDIA),
        ("bytes=1000-1009", 206, MEDIA[1000:1010]),
        ("bytes=-10", 206, MEDIA[-10:]),
        (f"bytes={len(MEDIA) - 1}-{10**17}", 206, MEDIA[-1:]),
        (f"bytes={len(MEDIA)}-", 416, b""),
        ("bytes=99999999999-", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=9-3", 200, MEDIA),
        ("bytes=0-1,5-6", 200, MEDIA),
        ("lines=1-2", 200, MEDIA),
        ("bytes=" + "9" * 5000 + "-", 200, MEDIA),
    ],
)
async def test_media_has_ranges(client, address, library, wanted, status, content):
    headers = {"Range": wanted} if wanted else {}
    async with client.get(f"{address}media/{id_of(library / 'plays.mp4')}", headers=headers) as response:
        assert (response.status, await response.read()) == (status, content)
        if status == 416:
            assert response.headers["Content-Range"] == f"bytes */{len(MEDIA)}"
        else:
            assert response.content_type == "video/mp4"
            assert response.headers["Accept-Ranges"] == "bytes"
    async with client.head(f"{address}media/{id_of(library / 'plays.mp4')}") as response:
        assert response.headers["Content-Length"] == str(len(MEDIA))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("swapped.mp4", "leads through a symbolic link, and no ledger knows"),
        ("grown.mp4", "has changed since the run"),
        ("secret.txt", "no browser plays files of this suffix"),
    ],
)
async def test_only_what_the_run_has_read_is_played(client, address, library, name, reason):
    async with client.get(f"{address}media/{id_of(library / name)}") as response:
        assert response.status == 404
        assert reason in await response.text()
    async with client.get(f"{address}source/{id_of(library / name)}") as response:
        assert response.status == 200  # its texts are still shown


TRAVERSAL = [
    "../secret.txt",
    "..%2f..%2fsecret.txt",
    "%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "%00",
    "a" * 5000,
]


@pytest.mark.parametrize(
    "place", ["", "static/", "media/", "source/", "preview/", "thumbnail/", "thumbnail/0123456789abcdef/"]
)
@pytest.mark.parametrize("path", TRAVERSAL)
async def test_no_path_leads_out(client, address, place, path):
    async with client.get(URL(f"{address}{place}{path}", encoded=True)) as response:
        assert response.status == 404
        assert len(await response.read()) < 200


OPENED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
"""The headers of a browser when somebody clicks on a link in another page, such as a notebook."""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        (OPENED, 200),
        (OPENED | {"Sec-Fetch-Dest": "iframe"}, 403),
        (OPENED | {"Sec-Fetch-Mode": "no-cors"}, 403),
        (OPENED | {"Origin": "http://evil.example"}, 403),
    ],
)
async def test_other_sites_are_refused(client, address, headers, status):
    async with client.get(address, headers=headers) as response:
        assert response.status == status
        assert "Content-Security-Policy" in response.headers


async def test_the_token_is_needed_everywhere(client, address):
    parts = urlsplit(address)
    root, token = f"http://{parts.netloc}", parts.path.strip("/")
    for path in (
        "/",
        "/x/",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"//{token}/",
        "/run",
        "/static/pages.css",
        f"/%20{token}/",
    ):
        async with client.get(URL(root + path, encoded=True)) as response:
            assert response.status == 404
            assert token not in await response.text()
    async with client.get(f"{root}/{token}") as response:  # a slash was lost when the address was copied
        assert str(response.url) == address


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_nothing_can_be_changed(client, address, method):
    async with client.request(method, address) as response:
        assert response.status == 405


async def test_two_hundred_slow_clients_do_not_stop_others(client, address, library):
    parts = urlsplit(address)
    media = f"{parts.path}media/{id_of(library / 'plays.mp4')}"
    async with AsyncExitStack() as stack:
        for k in range(200):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            stack.callback(writer.close)
            rest = "" if k % 2 else "\r\n"  # half of them never end their request, the others never read the answer
            writer.write(f"GET {media} HTTP/1.1\r\nHost: {parts.netloc}\r\n{rest}".encode())
        for page in ("", "search?q=stop", "run"):
            async with client.get(address + page) as response:
                assert response.status == 200
        async with client.get(f"http://{parts.netloc}{media}") as response:
            assert await response.read() == MEDIA


def is_open(path) -> bool:
    """Return whether this process, in which the server runs, has a file open."""
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return str(path) in (os.readlink(link) for link in links if os.path.islink(link))


async def test_a_file_is_closed_however_its_answer_ends(client, address, library):
    path = library / "plays.mp4"
    parts = urlsplit(f"{address}media/{id_of(path)}")
    for wanted in ("bytes=0-", "bytes=1-0", f"bytes={len(MEDIA)}-"):
        async with client.get(parts.geturl(), headers={"Range": wanted}) as response:
            await response.read()
    await client.head(parts.geturl())
    for _ in range(10):  # these read nothing, and leave
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        await writer.drain()
        writer.close()
    async with asyncio.timeout(PATIENCE):
        while is_open(path):  # noqa: ASYNC110 - nothing tells when the server has closed a file
            await asyncio.sleep(0.05)


async def test_the_answer_breaks_off_if_its_file_becomes_shorter(client, tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(bytes(2**26))  # more than is buffered on the way
    write_annotations(tmp_path / "out", record_of_file(path))
    with browsing(tmp_path / "out") as address:
        async with client.get(f"{address}media/{id_of(path)}") as response:
            os.truncate(path, 2**20)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_a_folder_that_cannot_be_written_to_is_shown_all_the_same(client, tmp_path):
    write_annotations(tmp_path / "out", record_of_file(shutil.copy(__file__, tmp_path / "a.mp4"), "words"))
    (tmp_path / "out/.browse").symlink_to(tmp_path)
    with browsing(tmp_path / "out") as address:
        async with client.get(address) as response:
            assert "so the index is built anew each time" in await response.text()
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "out"]
