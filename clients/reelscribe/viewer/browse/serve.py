"""Serves the pages of a folder of results on this machine, and keeps their index up to date meanwhile."""

from __future__ import annotations

import secrets
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import uvicorn

from reelscribe._web_addresses import named_host
from reelscribe.errors import OutputError, UsageError
from reelscribe.results.annotations import NAME as ANNOTATIONS
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.viewer.browse.app import BrowseApp
from reelscribe.viewer.browse.cache_folder import Cache, cache_folder
from reelscribe.viewer.content.run_page import RunFollower
from reelscribe.viewer.index.source_index import SourceIndex

MOST_CONNECTIONS = 800
"""Number of connections from which on further ones get 503."""

_REFRESH_SECONDS = 1.0
_REFRESH_SHARE = 0.1  # of the time, at most, goes into refreshing


class BrowseServer:
    """A server that is ready to run."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket, token: str) -> None:
        self._server, self._listening = server, listening
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/{token}/"
        """The address of the library, with the secret part."""

    def run(self) -> None:
        """Answer requests until the process is interrupted, or `stop` is called by another thread."""
        self._server.run(sockets=[self._listening])

    def stop(self) -> None:
        """Let `run` return soon."""
        self._server.should_exit = True


@contextmanager
def serving(
    out: Path, port: int = 0, *, transcode: bool = False, media_hosts: Sequence[str] = ()
) -> Iterator[BrowseServer]:
    """Prepare a server of the pages of a folder of results on 127.0.0.1, and keep its index up to date.

    Args:
        out: The folder of a run, which may be going on.
        port: The port; 0 for any that is free.
        transcode: Whether to make previews of what browsers cannot play.
        media_hosts: The hosts of web servers that the user has named; see `StoreReader`.

    Yields:
        The server, which listens already and answers as soon as it runs.

    Raises:
        UsageError: The folder is none of a run, the port is taken, or a host is none.
        OutputError: The results cannot be read.
    """
    if not any((out / name).exists() for name in (ANNOTATIONS, LEDGER)):
        raise UsageError(f"{out}: expected the folder of a run, with {ANNOTATIONS} or {LEDGER}, but it has neither")
    try:
        hosts = [named_host(host) for host in media_hosts]
    except ValueError as error:
        raise UsageError(f"--media-host: {error}, such as films.example") from None
    with ExitStack() as stack:
        listening = stack.enter_context(_listening(port))
        cache = stack.enter_context(cache_folder(out))
        try:
            index = stack.enter_context(SourceIndex(out, cache.folder))
        except (OSError, sqlite3.Error) as error:
            raise OutputError(f"{out}: the results cannot be read, or not be indexed: {error}") from None
        run = RunFollower(out)
        run.update()
        stack.enter_context(_kept_up_to_date(cache, index, run))
        notices = (cache.notice,) if cache.notice else ()
        app = BrowseApp(out, index, run, cache.folder, transcode=transcode, media_hosts=hosts, notices=notices)
        stack.callback(app.close)
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            app.asgi(token, listening.getsockname()[1]),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
        yield BrowseServer(uvicorn.Server(config), listening, token)


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Listen on a port of 127.0.0.1. Raises UsageError if it is taken."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            raise UsageError(f"--port {port}: {error.strerror}; choose another one, or 0 for any") from None
        yield listening


@contextmanager
def _kept_up_to_date(cache: Cache, index: SourceIndex, run: RunFollower) -> Iterator[None]:
    """Refresh the index and the state of the run in a thread while the block runs, and make a deleted cache again."""

    def refresh() -> None:
        while not index.stopped:
            began = time.monotonic()
            index.attempt("run", "The state of the run cannot be read", run.update)
            if index.attempt("cache", f"{cache.folder} was deleted, and cannot be made again", cache.restore):
                index.refresh()
            index.wait(max(_REFRESH_SECONDS, (time.monotonic() - began) / _REFRESH_SHARE))

    thread = Thread(target=refresh, name="index")
    thread.start()
    try:
        yield
    finally:
        index.stop()
        thread.join()
