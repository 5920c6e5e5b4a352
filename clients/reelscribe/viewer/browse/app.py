"""The web application of `reelscribe browse`: its addresses, its answers, and whom it answers."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reelscribe.errors import OutputError, UsageError
from reelscribe.export.speakers import NAME as NAMES
from reelscribe.export.speakers import NameChange
from reelscribe.storage.address import is_stored
from reelscribe.viewer.browse.media_responses import OpenFileResponse, stored_response
from reelscribe.viewer.content.library_page import LibraryPage
from reelscribe.viewer.content.run_page import RunFollower, RunPage
from reelscribe.viewer.content.search_page import SearchPage, TextHit, csv_lines, json_lines
from reelscribe.viewer.content.source_page import SourcePage
from reelscribe.viewer.index.queries import source_row
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.media_files import MediaFiles, MediaNotNow, MediaRefused, OpenMedia
from reelscribe.viewer.media.source_previews import SourcePreviews
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails
from reelscribe.viewer.media.store_reader import MOST_READINGS, StoreReader
from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery
from reelscribe.viewer.pages.render import STATIC, Renderer
from reelscribe.viewer.pages.views import Site

T = TypeVar("T")

_THREADS, _SLOW_THREADS = 4, 6
_THUMBNAILS_AT_ONCE = 4  # the other slow threads make lists of hits
_MOST_FORM_BYTES = 2**18  # a form has at most 100 speakers
_ID = re.compile("[0-9a-f]{16}")
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer", browsers would not tell the origin of forms either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer that has no others of the same names."""


class Guard:
    """Lets only requests through that come from this server's own pages, or from somebody who knows its address."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        """Guard an application.

        Args:
            app: The application.
            token: The first part of the path of every address.
            port: The port on which the server listens.
        """
        self._app, self._token = app, token.encode()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in ours if pair[0] not in names)]
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return PlainTextResponse("This server answers for its own address only.", 421)
        if any(origin != f"http://{host[0]}" for origin in headers.get("origin", [])):
            return PlainTextResponse("This server answers its own pages only.", 403)
        # A link to a page may be anywhere, such as in a notebook. Who clicks on it opens a page of its own, which no
        # other one can read or frame, and whose address has the token. Forms come from these pages alone.
        is_opened = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
        is_opened = is_opened and scope["method"] in ("GET", "HEAD")
        sites = headers.get("sec-fetch-site", [])
        if not is_opened and any(site not in ("same-origin", "none") for site in sites):
            return PlainTextResponse("This server answers its own pages only.", 403)
        token = scope["path"].encode("utf-8", "surrogatepass").split(b"/")[1:2]
        if not token or not compare_digest(token[0], self._token):
            return PlainTextResponse("Not found: open the address that `reelscribe browse` has printed.", 404)
        return None


class ServerLinks:
    """The addresses that the server of `reelscribe browse` answers; see `reelscribe.viewer.pages.links.Links`."""

    served = True

    def library(self, query: LibraryQuery) -> str:
        """Return the address of the library, which is the root."""
        return _address("", query.parameters())

    def search(self, query: SearchQuery, form: Literal["html", "csv", "json"] = "html") -> str:
        """Return the address of the search as a page, or as a list of hits."""
        return _address("search" if form == "html" else f"search.{form}", query.parameters())

    def source(self, source: str, seconds: float | None = None) -> str:
        """Return the address of the page of a source; the server needs the time to choose the section with it."""
        return f"source/{source}" + ("" if seconds is None else f"?t={seconds:.3f}#t={seconds:.3f}")

    def run(self) -> str:
        """Return the address of the page of the run."""
        return "run"

    def thumbnail(self, source: str, seconds: float) -> str:
        """Return the address of a thumbnail."""
        return f"thumbnail/{source}/{round(seconds * 1000)}.webp"

    def media(self, source: str) -> str:
        """Return the address of the bytes of a source."""
        return f"media/{source}"

    def preview(self, source: str) -> str:
        """Return the address of the preview of a source."""
        return f"preview/{source}.webm"

    def static(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        return f"static/{name}"


class BrowseApp:
    """Answers requests about a folder of results."""

    def __init__(
        self,
        out: Path,
        index: SourceIndex,
        run: RunFollower,
        cache: Path,
        *,
        transcode: bool = False,
        media_hosts: Sequence[str] = (),
        notices: tuple[str, ...] = (),
    ) -> None:
        """Prepare the pages.

        Args:
            out: The folder of results.
            index: Its index, which is open.
            run: Follows the run that writes to it.
            cache: A folder for what is made for pages, which nobody else uses.
            transcode: Whether to make previews of what browsers cannot play.
            media_hosts: The hosts of web servers that the user has named; see `StoreReader`.
            notices: Sentences that every page shows.
        """
        self._out, self._index, self._run, self._notices = out, index, run, notices
        self._cache, self._files = cache, MediaFiles(out)
        self._thumbnails = SourceThumbnails(out, cache, self._files)
        self._previews = SourcePreviews(cache, self._files) if transcode else None
        self._library = LibraryPage(index, self._thumbnails)
        self._search = SearchPage(index, self._thumbnails)
        self._source = SourcePage(out, index, self._thumbnails, self._files, previews=transcode)
        self._run_page = RunPage(run, index, self._library)
        self._renderer = Renderer(ServerLinks())
        self._static = {file.name: file.read_bytes() for file in STATIC.iterdir()}
        self._threads = ThreadPoolExecutor(_THREADS, "pages")
        self._slow_threads = ThreadPoolExecutor(_SLOW_THREADS, "pictures")
        self._places = asyncio.Semaphore(_THUMBNAILS_AT_ONCE)
        self._preview_thread = ThreadPoolExecutor(1, "previews")
        self._stores = StoreReader(media_hosts)
        self._store_threads = ThreadPoolExecutor(MOST_READINGS, "stores")

    def asgi(self, token: str, port: int) -> ASGIApp:
        """Return the application as ASGI has it.

        Args:
            token: The first part of the path of every address.
            port: The port on which it will be served.
        """
        routes = [
            Route("/", self._answer_library),
            Route("/search", self._answer_search),
            Route("/search.csv", self._answer_csv),
            Route("/search.json", self._answer_json),
            Route("/source/{id}", self._answer_source),
            Route("/source/{id}", self._answer_names, methods=["POST"]),
            Route("/run", self._answer_run),
            Route("/thumbnail/{id}/{name}", self._answer_thumbnail),
            Route("/media/{id}", self._answer_media),
            Route("/preview/{name}", self._answer_preview),
            Route("/static/{name}", self._answer_static),
        ]
        handlers = {OutputError: _not_now}
        app = Starlette(
            routes=[Mount(f"/{token}", routes=routes), Route(f"/{token}", _to_root)], exception_handlers=handlers
        )
        return Guard(app, token, port)

    def close(self) -> None:
        """End the threads, and what they make."""
        for made in (self._thumbnails, self._previews):
            if made:
                made.close()
        for threads in (self._preview_thread, self._slow_threads, self._threads):
            threads.shutdown(cancel_futures=True)
        self._store_threads.shutdown()  # what it has begun to read is closed
        self._stores.close()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _in_slow_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what may take long, such as decoding a source, so that pages need not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._slow_threads, function, *arguments)

    def _site(self) -> Site:
        return Site(str(self._out), self._run.sentence, (*self._notices, *self._index.notices))

    async def _answer_library(self, request: Request) -> Response:
        query = LibraryQuery.from_parameters(request.query_params)
        return await self._page(lambda: self._renderer.library(self._library.view(self._site(), query)))

    async def _answer_search(self, request: Request) -> Response:
        query = SearchQuery.from_parameters(request.query_params.multi_items())
        return await self._page(lambda: self._renderer.search(self._search.view(self._site(), query)))

    async def _answer_run(self, _: Request) -> Response:
        return await self._page(lambda: self._renderer.run(self._run_page.view(self._site())))

    async def _answer_source(self, request: Request) -> Response:
        if not _ID.fullmatch(request.path_params["id"]):
            return _not_found()
        return await self._page(lambda: self._source_html(request))

    async def _answer_names(self, request: Request) -> Response:
        """Change names of speakers as a form says, and send the browser back to the page, or say there why not."""
        id_ = request.path_params["id"]
        if not _ID.fullmatch(id_):
            return _not_found()
        try:
            changes = _name_changes(await _body(request))
        except (ValueError, ClientDisconnect) as error:
            expected = f"Expected the form of the page of a source, of at most {_MOST_FORM_BYTES:,} bytes"
            return PlainTextResponse(f"{expected}: {error}. Save names there, or write them into {NAMES}.", 400)
        try:
            await self._in_thread(self._source.change_speaker_names, id_, changes)
        except UsageError as error:
            refusal = f"{error}."
            typed = {(each.speaker, each.everywhere): each.name for each in changes}
            return await self._page(lambda: self._source_html(request, refusal=refusal, typed=typed), 400)
        return RedirectResponse(request.url.replace(scheme="", netloc=""), 303)

    def _source_html(self, request: Request, **refused: Any) -> str | None:
        seconds = _seconds(request.query_params.get("t", ""))
        view = self._source.view(self._site(), request.path_params["id"], seconds, self._run.retry)
        return None if view is None else self._renderer.source(replace(view, **refused))

    async def _page(self, make: Callable[[], str | None], status: int = 200) -> Response:
        def encoded() -> bytes | None:
            page = make()
            return None if page is None else page.encode("utf-8", "replace")

        content = await self._in_thread(encoded)
        return _not_found() if content is None else HTMLResponse(content, status)

    async def _answer_csv(self, request: Request) -> Response:
        return await self._list(request, "text/csv; charset=utf-8", csv_lines)

    async def _answer_json(self, request: Request) -> Response:
        return await self._list(request, "application/json", json_lines)

    async def _list(
        self, request: Request, media_type: str, lines_of: Callable[[Iterable[TextHit]], Iterator[str]]
    ) -> Response:
        query = SearchQuery.from_parameters(request.query_params.multi_items())

        def made() -> OpenMedia:
            # In memory, several lists at once would be too large, and a slow client must not keep a reader.
            self._cache.mkdir(exist_ok=True)  # somebody may have deleted it
            with TemporaryFile(dir=self._cache) as file:
                for line in lines_of(self._search.all_hits(query)):
                    file.write(line.encode("utf-8", "replace"))
                file.flush()
                return OpenMedia(os.dup(file.fileno()), media_type)

        try:
            return OpenFileResponse(await self._in_slow_thread(made), request.url.path.rpartition("/")[2])
        except UsageError as error:
            return PlainTextResponse(str(error), 400)
        except OSError as error:
            raise OutputError(f"{self._cache} cannot be written to ({error.strerror})") from None

    async def _answer_thumbnail(self, request: Request) -> Response:
        match = re.fullmatch(r"([0-9]{1,9})\.webp", request.path_params["name"])
        row = await self._row(request.path_params["id"])
        if not match or row is None:
            return _not_found()
        wanted = row, int(match[1]) / 1000
        webp = await self._in_thread(self._thumbnails.existing_webp, *wanted)
        if not webp:
            async with self._places:
                # Those who have left, such as for the next page, must not be waited for.
                if not await request.is_disconnected():
                    webp = await self._in_slow_thread(self._thumbnails.webp, *wanted)
        return Response(webp, 200, {"Cache-Control": "private, max-age=600"}, "image/webp") if webp else _not_found()

    async def _answer_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        content, media_type = self._static.get(name), _STATIC_TYPES.get(os.path.splitext(name)[1])
        if content is None or media_type is None:
            return _not_found()
        return Response(content, 200, {"Cache-Control": "private, max-age=600"}, media_type)

    async def _answer_preview(self, request: Request) -> Response:
        id_, _, suffix = request.path_params["name"].partition(".")
        row = await self._row(id_)
        if row is None or suffix != "webm" or self._previews is None:
            return _not_found()
        try:
            media = await self._in_thread(self._previews.find, row) or await self._made_preview(request, row)
        except MediaRefused as error:
            return PlainTextResponse(f"{error}.", 404)
        return OpenFileResponse(media)

    async def _made_preview(self, request: Request, row: SourceRow) -> OpenMedia:
        """Make the preview of a source, for as long as the client of a request waits for it."""
        assert self._previews
        cancelled = Event()
        gone = asyncio.create_task(_wait_for_disconnect(request.receive))
        gone.add_done_callback(lambda _: cancelled.set())
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._preview_thread, self._previews.make, row, cancelled)
        finally:
            gone.cancel()

    async def _answer_media(self, request: Request) -> Response:
        row = await self._row(request.path_params["id"])
        if row is None:
            return _not_found()
        try:
            if is_stored(row.path):
                stored = await self._in_thread(self._files.stored, row)
                return await stored_response(request, stored, self._stores, self._store_threads)
            return OpenFileResponse(await self._in_thread(self._files.open, row))
        except MediaNotNow as error:
            return PlainTextResponse(f"{error}.", 503)
        except MediaRefused as error:
            return PlainTextResponse(f"{error}.", 404)

    async def _row(self, id_: str) -> SourceRow | None:
        return await self._in_thread(self._find_row, id_) if _ID.fullmatch(id_) else None

    def _find_row(self, id_: str) -> SourceRow | None:
        with self._index.reader() as reader:
            return source_row(reader, id_)


async def _to_root(request: Request) -> Response:
    return RedirectResponse(f"{request.url.path}/")


async def _not_now(_: Request, error: Exception) -> Response:
    """Answer while there is no index, such as after it was deleted; browsers ask again by themselves."""
    seconds = {"Retry-After": "2", "Refresh": "2"}
    return PlainTextResponse(f"Not now: {error}.", 503, seconds)


def _not_found() -> Response:
    return PlainTextResponse("Not found: there is nothing at this address now.", 404)


def _seconds(text: str) -> float:
    return float(text) if re.fullmatch(r"-?[0-9]{1,12}(\.[0-9]{1,9})?", text) else 0.0


def _address(path: str, parameters: list[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(parameters, errors='replace')}" if parameters else path


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises ValueError if it is too long, once all of it has been sent."""
    body = b""
    async for part in request.stream():
        body += part[: _MOST_FORM_BYTES + 1 - len(body)]  # who sends the rest would not read an earlier answer
    if len(body) > _MOST_FORM_BYTES:
        raise ValueError("this one is longer")
    return body


def _name_changes(body: bytes) -> list[NameChange]:
    """Return what was changed in the form of templates/source.html. Raises ValueError if it is another form."""
    fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    columns = [fields.get(name, []) for name in ("speaker", "for", "before", "name")]
    if len({*map(len, columns)}) > 1:
        raise ValueError("this one has not all fields of each name")
    return [
        NameChange(speaker, scope == "all", before, name.strip())
        for speaker, scope, before, name in zip(*columns, strict=True)
        if name != before
    ]


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client of a request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
