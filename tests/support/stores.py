"""Servers that keep sources, with faults on demand: a web server of a folder, and a real S3 server (moto)."""

import hashlib
import itertools
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import boto3
import moto.server
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestedRangeNotSatisfiable
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

logging.getLogger("werkzeug").setLevel(logging.ERROR)

Fault = Callable[["Sending"], Iterable[bytes] | Response | None]
"""Returns what is sent in place of an answer, or None for the answer itself."""

PIECE = 2**14


class Sending:
    """An answer that is about to be sent."""

    def __init__(
        self, request: Request, number: int, answer: Callable[[], Iterable[bytes]], released: threading.Event
    ) -> None:
        self.number, self.released = number, released
        """The number of the request among those for the same file name, from 1 on, and when the server ends."""
        self.headers = request.headers
        login = request.authorization
        self.authorization = login and (login.username, login.password)
        self._answer = answer

    @cached_property
    def pieces(self) -> Iterator[bytes]:
        """What the server answers."""
        content = self._answer()
        return (block[at : at + PIECE] for block in content for at in range(0, len(block), PIECE))


class ObjectServer:
    """A server of objects. It counts what it sends, and fails as it is told."""

    def __init__(self, app, name_of: Callable[[Request], str]) -> None:
        self._app, self._name_of = app, name_of
        self.put: Callable[[str, bytes], None]
        self.contents: Callable[[], dict[str, bytes]]
        """Put an object into the bucket, and return the contents of all by their keys, if this is a server of one."""
        self.refusal: Callable[[str, int], Fault] = refusal
        """Returns the fault that is an answer with a code of the vendor, and a status."""
        self.requests: Counter[str] = Counter()
        """Number of requests for each file name."""
        self.sent: Counter[str] = Counter()
        """Bytes of content that were sent of each file name."""
        self.faults: dict[str, Fault] = {}
        """The fault of each file name."""
        self.fault_of_all: Fault | None = None
        self.written: Counter[str] = Counter()
        """Number of requests that would write each file name."""
        self.fault_of_writes: Fault | None = None
        self.released = threading.Event()
        self._lock = threading.Lock()
        self.asked = threading.Condition(self._lock)
        """Told of each request."""

    def __call__(self, environ, start_response):
        request = Request(environ)
        name = self._name_of(request)
        is_read = request.method in ("GET", "HEAD")
        with self._lock:
            self.requests[name] += 1
            number = self.requests[name]
            self.written[name] += not is_read
            self.asked.notify_all()
        told: list = []
        sending = Sending(request, number, lambda: self._app(environ, lambda *head: told.append(head)), self.released)
        fault = self.faults.get(name) or self.fault_of_all if is_read else self.fault_of_writes
        if not is_read and not fault:
            return self._app(environ, start_response)
        failing = fault(sending) if fault else None
        if isinstance(failing, Response):
            return failing(environ, start_response)
        pieces = sending.pieces
        start_response(*told[0])
        if "application/json" in dict(told[0][1]).get(
            "Content-Type", ""
        ):  # what is told of an object is not its content
            return pieces if failing is None else failing
        return self._counted(name, pieces if failing is None else failing)

    def _counted(self, name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            with self._lock:
                self.sent[name] += len(piece)
            yield piece


@contextmanager
def serving(app, name_of=lambda request: request.path.rpartition("/")[2], **options):
    """Serve an application of WSGI; yields the server, which knows requests by names, and its address."""
    objects = ObjectServer(app, name_of)
    server = make_server("127.0.0.1", 0, objects, threaded=True, **options)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield objects, f"http{'s' * ('ssl_context' in options)}://127.0.0.1:{server.server_port}"
    finally:
        objects.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def web_server(folder: Path, **options) -> Iterator[tuple[ObjectServer, str]]:
    """Serve the files of a folder, with ranges, and with the digests of their contents as ETags."""

    def app(environ, start_response):
        path = folder / Request(environ).path.lstrip("/")
        if not path.is_file():
            return Response(status=404)(environ, start_response)
        content = path.read_bytes()
        answer = Response(content)
        answer.set_etag(hashlib.sha256(content).hexdigest()[:32])
        try:
            answer.make_conditional(environ, accept_ranges=True, complete_length=len(content))
        except RequestedRangeNotSatisfiable as error:
            answer = error.get_response(environ)
        return answer(environ, start_response)

    with serving(app, **options) as served:
        yield served


@contextmanager
def s3_server(monkeypatch, folder: Path | None = None, bucket: str = "bucket") -> Iterator[ObjectServer]:
    """Serve a bucket with the files of a folder, as the environment says from then on."""
    app = moto.server.DomainDispatcherApplication(moto.server.create_backend_app)
    with serving(app) as (server, address):
        values = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "name",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-store",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket=bucket)
        server.put = lambda key, content: client.put_object(Bucket=bucket, Key=key, Body=content)
        server.contents = lambda: {
            each.key: each.get()["Body"].read() for each in boto3.resource("s3").Bucket(bucket).objects.all()
        }
        fill(server, folder)
        try:
            yield server
        finally:
            server.faults, server.fault_of_all, server.fault_of_writes = {}, None, None
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                for each in page.get("Contents", ()):
                    client.delete_object(Bucket=bucket, Key=each["Key"])
            client.delete_bucket(Bucket=bucket)
            client.close()


def fill(server: ObjectServer, folder: Path | None) -> None:
    """Put the files of a folder into the bucket of a server, which forgets how they came."""
    for path in sorted(folder.rglob("*")) if folder else ():
        if path.is_file():
            server.put(str(path.relative_to(folder)), path.read_bytes())
    server.requests.clear()
    server.written.clear()


def status(code: int, *, times: int | None = None) -> Fault:
    """Answer with a status, always or the first so many times."""
    return lambda sending: Response(status=code) if times is None or sending.number <= times else None


def every_third(code: int) -> Fault:
    """Answer every third request with a status."""
    numbers = itertools.count(1)
    return lambda sending: Response(status=code) if next(numbers) % 3 == 0 else None


def refusal(code: str, number: int) -> Fault:
    """Refuse with a code of S3's, and with a secret in the message, which nobody may see."""
    body = f"<Error><Code>{code}</Code><Message>secret-of-the-store</Message></Error>"
    return lambda sending: Response(body, status=number, content_type="application/xml")


def lost_answer(sending: Sending) -> Response | None:
    """Do what each second request asks for, but lose the answer."""
    if sending.number % 2:
        return None
    list(sending.pieces)
    return Response(status=503)


def cut(seed: int) -> Fault:
    """Break the connection of each second request for a file, from the second on, at a random place."""
    chance = random.Random(seed)
    return lambda sending: None if sending.number % 2 else _broken(sending, chance.random())


def _broken(sending: Sending, place: float) -> Iterator[bytes]:
    pieces = list(sending.pieces)
    yield from pieces[: int(place * len(pieces))]
    raise ConnectionAbortedError


def stalled(sending: Sending) -> Iterator[bytes] | None:
    """Stand still after the first piece of the second request for a file, which is the first for its content."""
    return _stalled(sending) if sending.number == 2 else None


def _stalled(sending: Sending) -> Iterator[bytes]:
    yield next(iter(sending.pieces), b"")
    sending.released.wait()


class _AsItIs(Response):
    """An answer whose headers nobody mends."""

    def get_wsgi_headers(self, environ):
        return self.headers


def redirect(location: str) -> Fault:
    """Name another address."""
    headers = Headers({"Location": location, "Content-Length": "0"})
    return lambda sending: _AsItIs(status=302, headers=headers)
