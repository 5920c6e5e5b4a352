"""A proxy in front of a server that records requests and answers."""

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
"""Headers whose values differ from run to run."""


@contextmanager
def recorder(upstream: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the proxy's address, and a list that gets one line for each request and its answer."""
    lines: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            with closing(http.client.HTTPConnection(upstream.removeprefix("http://"))) as connection:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
            # TorchServe adds headers of its own, which are no behaviour of ours.
            ours = [(n, v) for n, v in answer.getheaders() if n.lower().startswith(("content-type", "x-reelscribe"))]
            sent = f"{self.command} {self.path} {_outline(self.headers.items())} {_digest(body)}"
            # The order of the keys of a description does not count.
            known = json.dumps(json.loads(content), sort_keys=True).encode() if "describe" in self.headers else content
            lines.append(f"{sent} -> {answer.status} {_outline(ours)} {_digest(known)}")
            self.send_response(answer.status)
            for name, value in [*ours, ("Content-Length", str(len(content)))]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_OPTIONS = do_POST  # noqa: N815 - the library chose these names

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

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
