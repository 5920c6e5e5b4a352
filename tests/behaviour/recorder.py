"""A proxy that records the requests to a server and its responses."""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOLATILE = {"host", "authorization", "content-length", "x-reelscribe-compute-seconds"}
"""Headers with values that differ from run to run, in lower case."""


@contextmanager
def recorder(upstream: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the proxy's address, and a list that gets a line for each request with its response."""
    lines: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            with closing(http.client.HTTPConnection(upstream.removeprefix("http://"))) as connection:
                connection.request(self.command, self.path, body, dict(self.headers))
                response = connection.getresponse()
                content = response.read()
            # TorchServe adds headers of its own, which are not compared.
            headers = [
                (name, value)
                for name, value in response.getheaders()
                if name.lower().startswith(("content-type", "x-reelscribe"))
            ]
            request = f"{self.command} {self.path} {_outline(self.headers.items())} {_digest(body)}"
            # The keys of a description may have any order.
            compared = (
                json.dumps(json.loads(content), sort_keys=True).encode() if "describe" in self.headers else content
            )
            lines.append(f"{request} -> {response.status} {_outline(headers)} {_digest(compared)}")
            self.send_response(response.status)
            for name, value in [*headers, ("Content-Length", str(len(content)))]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_OPTIONS = do_POST  # noqa: N815 - the library chose these names

        def log_message(self, *_: Any) -> None:
            """Log nothing: the lines of the record are enough."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", lines
        finally:
            server.shutdown()
            thread.join()


def _outline(headers: Any) -> list[str]:
    return sorted(name if name.lower() in VOLATILE else f"{name}: {value}" for name, value in headers)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
