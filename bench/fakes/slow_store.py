"""A web server of a folder, in a process of its own, with the latency and the bandwidth of a store far away.

    python bench/fakes/slow_store.py FOLDER LATENCY_MS MEGABYTES_PER_SECOND

It prints its address. Every answer begins after the latency, and no connection is faster than the bandwidth. The answer
to /sent is the number of bytes that it has sent so far. With a number in the place of FOLDER, it is an S3 server with a
bucket of so many keys instead, all of which have the content of the file that follows the number after a comma, such as
`1000000,one.mp4`.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

BLOCK = 2**16
PAGE = 1000


@lru_cache(64)
def _content(path: Path) -> tuple[bytes, str]:
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:32]


class SlowStore(BaseHTTPRequestHandler):
    """Answers requests for files and for pages of keys."""

    protocol_version = "HTTP/1.1"
    folder: Path
    keys = 0
    """Number of keys of a bucket; 0 for a web server."""
    latency: float
    bandwidth: float
    sent = 0
    """Number of bytes of contents so far."""

    def do_HEAD(self) -> None:
        """Answer with headers alone."""
        self._answer(only_headers=True)

    def do_GET(self) -> None:
        """Answer with content."""
        self._answer(only_headers=False)

    def _answer(self, *, only_headers: bool) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/sent":
            self._send(200, str(SlowStore.sent).encode(), {})
            return
        time.sleep(self.latency)
        if self.keys and "list-type" in parts.query:
            self._send(200, self._page(parse_qs(parts.query)), {"Content-Type": "application/xml"})
            return
        content, digest = _content(self.folder if self.keys else self.folder / parts.path.lstrip("/"))
        version = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._send(200, content, version, only_headers=only_headers)
            return
        start, stop = int(wanted[1]), int(wanted[2] or len(content) - 1) + 1
        version["Content-Range"] = f"bytes {start}-{min(stop, len(content)) - 1}/{len(content)}"
        self._send(206, content[start:stop], version, only_headers=only_headers)

    def _page(self, query: dict[str, list[str]]) -> bytes:
        """Return a page of keys in the form of S3."""
        prefix = query.get("prefix", [""])[0]
        first = int(query.get("continuation-token", ["0"])[0])
        last = min(self.keys, first + PAGE)
        size = self.folder.stat().st_size
        rows = "".join(
            f'<Contents><Key>{escape(prefix)}{k:09}.mp4</Key><Size>{size}</Size><ETag>"{k}"</ETag></Contents>'
            for k in range(first, last)
        )
        more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < self.keys else ""
        is_cut = str(last < self.keys).lower()
        return f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{more}{rows}</ListBucketResult>".encode()

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, only_headers: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        began, sent = time.monotonic(), 0
        while sent < len(content) and not only_headers:
            self.wfile.write(content[sent : sent + BLOCK])
            SlowStore.sent += len(content[sent : sent + BLOCK])
            sent += BLOCK
            time.sleep(max(0.0, began + sent / self.bandwidth - time.monotonic()))

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is that of the base class
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing, as clients leave when they have what they want."""


def main() -> None:
    """Serve until the process is ended."""
    place, latency, bandwidth = sys.argv[1:]
    number, _, file = place.partition(",")
    SlowStore.folder, SlowStore.keys = Path(file or place), int(number) if file else 0
    SlowStore.latency, SlowStore.bandwidth = float(latency) / 1000, float(bandwidth) * 1e6
    with _Server(("127.0.0.1", 0), SlowStore) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
