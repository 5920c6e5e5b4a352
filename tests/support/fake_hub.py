"""A hub with one repository, over HTTP on this machine: all that huggingface_hub needs to download a snapshot."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

NAME = "some/model"
COMMIT = "0123456789abcdef" * 2 + "01234567"
BRANCHES = {"main": COMMIT, "tuned": COMMIT[::-1]}


class FakeHub(ThreadingHTTPServer):
    """Answers requests for the repository `NAME`, whose files are the same at every commit."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = files
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        path = self.path.split("?")[0].removeprefix("/")
        if path == f"api/models/{NAME}" or path.startswith(f"api/models/{NAME}/revision/"):
            revision = path.removeprefix(f"api/models/{NAME}").removeprefix("/revision/") or "main"
            if commit := BRANCHES.get(revision) or (revision in BRANCHES.values() and revision):
                model = {"id": NAME, "sha": commit, "siblings": [{"rfilename": name} for name in self.server.files]}
                if weights := self.server.files.get("model.safetensors"):
                    count = weights_count(weights)
                    model["safetensors"] = {"parameters": {"F32": count}, "total": count}
                self._answer(json.dumps(model).encode())
            else:
                self._answer(b"{}", status=404, headers={"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"api/models/{NAME}/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                for name, data in self.server.files.items()
            ]
            self._answer(json.dumps(entries).encode())
        elif path.startswith(f"{NAME}/resolve/"):
            _, _, _, commit, name = path.split("/", 4)
            data = self.server.files[name]
            self._answer(data, headers={"ETag": f'"{_digest(data)}"', "X-Repo-Commit": commit})
        else:
            self._answer(b"{}", status=404, headers={"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing to the terminal."""


def weights_count(safetensors: bytes) -> int:
    """The number of parameters in a file, as a hub counts them."""
    header = json.loads(safetensors[8 : 8 + int.from_bytes(safetensors[:8], "little")])
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def fake_hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(files) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
