"""Attacks on a server, and the answers that refuse them; e2e/test_security.py runs them.

Requests are texts in which names in braces stand for the server's keys and places; `Target` replaces them. The answers
are exactly those of TorchServe 0.12, which is its last version.
"""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import psutil

from servers.torchserve import Serving
from support.raw_http import call_grpc, connect, reset_streams, send, status, statuses

BODY = pickle.dumps(np.full((12, 16, 3), (40, 70, 220), np.uint8)).decode("latin1")
MEBIBYTE = 2**20
CONNECTIONS = 200

KEY = "Authorization: Bearer {inference}"
MANAGE = "Authorization: Bearer {management}"
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
SMUGGLED = "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
"""A second request without a key, on the same connection."""
OPEN = "OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n"
"""A request that is answered 200 without a key: it shows whether bytes after a malformed request count as a request."""

INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping"
REGISTER = "/org.pytorch.serve.grpc.management.ManagementAPIsService/RegisterModel"


@dataclass(frozen=True)
class Target:
    """A server, and the names that attacks on it use."""

    serving: Serving
    names: Mapping[str, str]

    @classmethod
    def of(cls, serving: Serving, **places: object) -> Target:
        """A target with the present keys of the server; `places` are further names."""
        keys = {api: entry["key"] for api, entry in json.loads(serving.instance.key_file.read_text()).items()}
        return cls(serving, {**keys, "model": serving.model, **{name: str(place) for name, place in places.items()}})

    def url(self, api: str) -> str:
        """Address of the inference, management or metrics API."""
        return self.serving.settings[f"{api}_address"]

    def ordinary(self) -> str:
        """Send an ordinary request, and return the status of its answer."""
        return status(self.url("inference"), self.fill(post(KEY, LENGTH) + BODY))

    def fill(self, text: str) -> bytes:
        """Replace the names in braces."""
        return text.format_map(self.names).encode("latin1")


@dataclass(frozen=True)
class Attack:
    """An attack, and the outcomes that count as a refusal."""

    name: str
    send: Callable[[Target], str]
    """Attacks the target, and returns the statuses of the answers or another outcome."""
    refusals: tuple[str, ...]
    """Outcomes that are a refusal."""

    def __str__(self) -> str:
        return self.name


def request(line: str, *headers: str) -> str:
    """Head of a request."""
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""])


def post(*headers: str) -> str:
    """Head of a request to the model."""
    return request("POST /predictions/{model}", *headers)


def http(name: str, text: str, *refusals: str, api: str = "inference") -> Attack:
    """An attack that sends these bytes to an API."""
    return Attack(name, lambda target: statuses(target.url(api), target.fill(text), refusals), refusals)


def registration(name: str, url: str, *refusals: str) -> Attack:
    """An attack that registers an archive at `url`, with the management key."""

    def register(target: Target) -> str:
        place = quote(target.fill(url), safe="")
        return statuses(target.url("management"), target.fill(request(f"POST /models?url={place}", MANAGE)), refusals)

    return Attack(name, register, refusals)


def grpc(name: str, api: str, method: str, key: str | None, message: str) -> Attack:
    """An attack that calls a method by gRPC; its answer must contain `message`."""

    def call(target: Target) -> str:
        answer = call_grpc(target.serving.settings[f"grpc_{api}_port"], method, key and target.names[key])
        return message if message in answer else answer

    return Attack(name, call, (message,))


def slow(target: Target) -> str:
    """Send many requests a byte at a time, and none to its end."""
    with ExitStack() as stack:
        many = [stack.enter_context(connect(target.url("inference"))) for _ in range(CONNECTIONS)]
        for byte in target.fill("POST /"):
            for connection in many:
                connection.sendall(bytes([byte]))
        return f"others: {target.ordinary()}"


def idle(target: Target) -> str:
    """Open many connections, and send nothing."""
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(connect(target.url("inference")))
        return f"others: {target.ordinary()}"


def endless(target: Target) -> str:
    """Send a body in chunks that does not end, and return how much of it the server read."""
    chunk = b"100000\r\n" + bytes(MEBIBYTE) + b"\r\n"
    limit = int(target.serving.settings["max_request_size"])
    with connect(target.url("inference")) as connection:
        connection.sendall(target.fill(post(CHUNKED)))
        taken = 0
        try:
            while taken < 2 * limit:
                connection.sendall(chunk)
                taken += MEBIBYTE
        except OSError:
            pass  # the server refuses it
        # The kernel's buffers take some of it, too.
        return " ".join([*send(connection, b""), "in time" if taken < limit + 16 * MEBIBYTE else f"{taken} bytes"])


def unfinished(target: Target) -> str:
    """Send bodies almost to their end: together they are more than the server may keep in memory."""
    java = psutil.Process(target.serving.processes()["java"][0])
    mebibyte, allowed = bytes(MEBIBYTE), target.serving.memory_limit
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(connect(target.url("inference")))
            connection.settimeout(0.2)
            try:
                connection.sendall(target.fill(post("Content-Length: 40000000")))
                for _ in range(38):
                    connection.sendall(mebibyte)
            except OSError:
                pass  # the server has no memory for it
        memory = java.memory_info().rss
        return f"others: {target.ordinary()}, {'within' if memory < allowed else f'{memory} of'} its bound"


def resets(target: Target) -> str:
    """Open streams of HTTP/2, and reset each at once."""
    reset_streams(target.serving.settings["grpc_inference_port"], INFERENCE, streams=5000)
    return f"others: {target.ordinary()}"


def planted(folder: Path) -> Path:
    """Make a folder that TorchServe takes for a model, as an attacker with access to the disk might."""
    (folder / "MAR-INF").mkdir(parents=True)
    model = {"modelName": "planted", "modelVersion": "1.0", "handler": "planted.py"}
    manifest = {"createdOn": "x", "runtime": "python", "archiverVersion": "0.12.0", "model": model}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "planted.py").write_text("def handle(data, context):\n    return data\n")
    return folder


def was_connected(listener: socket.socket) -> bool:
    """Whether anybody connected to `listener`, a socket that does not block."""
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


_NO_KEY = "Token Authorization failed"

TOKENS = [
    http("no token", post(LENGTH) + BODY, "400"),
    http("an empty token", post("Authorization: Bearer ", LENGTH) + BODY, "400"),
    http("a made up token", post("Authorization: Bearer AAAAAAAA", LENGTH) + BODY, "400"),
    http("the token without its scheme", post("Authorization: {inference}", LENGTH) + BODY, "400"),
    http("the token as a password", post("Authorization: Basic {inference}", LENGTH) + BODY, "400"),
    http("the token in the URL", request("POST /predictions/{model}?token={inference}", LENGTH) + BODY, "400"),
    http("a wrong token before the right one", post("Authorization: Bearer x", KEY, LENGTH) + BODY, "400"),
    http("the management key on inference", post(MANAGE, LENGTH) + BODY, "400"),
    http("the API key on inference", post("Authorization: Bearer {API}", LENGTH) + BODY, "400"),
    http("ping without a token", request("GET /ping"), "400"),
    http("management without a token", request("GET /models"), "400", api="management"),
    http("the inference key on management", request("GET /models", KEY), "400", api="management"),
    http("the API key on management", request("GET /models", "Authorization: Bearer {API}"), "400", api="management"),
    http("the inference key scales workers", request("PUT /models/{model}?min_worker=9", KEY), "400", api="management"),
    http("the inference key makes keys", request("GET /token?type=management", KEY), "400", api="management"),
    http("the management key makes keys", request("GET /token?type=management", MANAGE), "400", api="management"),
    grpc("gRPC inference without a token", "inference", INFERENCE, None, _NO_KEY),
    grpc("gRPC inference with the management key", "inference", INFERENCE, "management", _NO_KEY),
    grpc("gRPC management without a token", "management", REGISTER, None, _NO_KEY),
    grpc("gRPC management with the inference key", "management", REGISTER, "inference", _NO_KEY),
]

MODEL_API_OFF = [
    http("register an archive of the store", request("POST /models?url={model}.mar", MANAGE), "405", api="management"),
    http("register a folder", request("POST /models?url={planted}", MANAGE), "405", api="management"),
    http("unregister", request("DELETE /models/{model}", MANAGE), "405", api="management"),
    http("register a workflow", request("POST /workflows?url=x.war", MANAGE), "404", "400", api="management"),
    grpc("register by gRPC", "management", REGISTER, "management", "Model API disabled"),
]

PATHS = [
    http("climb out of predictions", request("GET /predictions/../models", KEY), "404"),
    http("climb out, encoded", request("GET /predictions/%2e%2e/models", KEY), "404"),
    http("climb with a model's name", request("GET /predictions/{model}/../../models", KEY), "404"),
    http("an encoded null byte", request("GET /predictions/{model}%00", KEY), "404"),
    http("a null byte", request("GET /predictions/\0{model}", KEY), "404"),
    http("a broken encoding", request("GET /predictions/%zz", KEY), "403"),
    http("another host's URL", request("GET http://example.com/predictions/{model}", KEY), "404"),
    http("management on inference", request("GET /models", KEY), "404"),
    http("scale on inference", request("PUT /models/{model}?min_worker=9", KEY), "404"),
    http("unregister on inference", request("DELETE /models/{model}", KEY), "404"),
    http("predict on management", request("POST /predictions/{model}", MANAGE), "404", api="management"),
    http("the models on metrics", request("GET /models", MANAGE), "404", api="metrics"),
    http("a method of no name", request("FOO /predictions/{model}", LENGTH) + BODY, "400"),
    http("PUT without a token", request("PUT /predictions/{model}", LENGTH) + BODY, "400"),
]

MALFORMED = [
    http("a header of 9 KB", post(KEY, LENGTH, "X: " + "a" * 9000) + BODY, "400"),
    http("a header of 1 MB", post(KEY, LENGTH, "X: " + "a" * MEBIBYTE) + BODY, "400"),
    http("10,000 headers", post(KEY, LENGTH, *["X: a"] * 10_000) + BODY, "400"),
    http("a URL of 1 MB", request("GET /" + "a" * MEBIBYTE, KEY), "400"),
    http("a trailer of 1 MB", post(KEY, CHUNKED) + "0\r\nX: " + "a" * MEBIBYTE + "\r\n\r\n", "400"),
    http("10 GB announced", post(KEY, "Content-Length: 10000000000"), "413"),
    http("10 GB announced, without a token", post("Content-Length: 10000000000", "Expect: 100-continue"), "413"),
    http("a length of 30 digits", post(KEY, "Content-Length: 1" + "0" * 30), "400"),
    http("two lengths", post(KEY, LENGTH, "Content-Length: 0") + BODY + OPEN, "400"),
    http("the same length twice", post(KEY, LENGTH, LENGTH) + BODY + OPEN, "400"),
    http("a list of lengths", post(KEY, f"{LENGTH}, 0") + BODY + OPEN, "400"),
    http("a length in hexadecimal", post(KEY, "Content-Length: 0x10") + BODY + OPEN, "400"),
    http("a space before the colon", post(KEY, LENGTH, "Transfer-Encoding : chunked") + BODY + OPEN, "400"),
    http("a chunk of no size", post(KEY, CHUNKED) + "zz\r\n\r\n" + OPEN, "400"),
    http("a chunk of negative size", post(KEY, CHUNKED) + "-1\r\n\r\n" + OPEN, ""),
    http("a chunk of 4 GB", post(KEY, CHUNKED) + "100000005\r\nxxxxx" + OPEN, "400"),
    # These are taken for two requests, and the second one needs a key like any other.
    http("a length and chunks", post(KEY, "Content-Length: 4", CHUNKED) + "0\r\n\r\n" + SMUGGLED, "400", "200 400"),
    http("an unknown encoding", post(KEY, LENGTH, "Transfer-Encoding: xchunked") + BODY + SMUGGLED, "400", "200 400"),
    http("a bare line feed in a chunk's head", post(KEY, CHUNKED) + "2;\nxx\r\n0\r\n\r\n" + SMUGGLED, "400", "400 400"),
    http("a request behind another", post(KEY, LENGTH) + BODY + SMUGGLED, "400", "200 400"),
    http("1,000 requests at once, without a token", SMUGGLED * 1000, "400"),
    http("bare line feeds, without a token", "GET /ping HTTP/1.1\nHost: x\n\n", "400"),
    http("the token in a folded header", post("Authorization:\r\n Bearer {inference}", LENGTH) + BODY, "400"),
    http("a carriage return in a header", post(KEY, LENGTH, "X: a\rb") + BODY, "400"),
    http("a null byte in a header", post(KEY, LENGTH, "X: a\0b") + BODY, "400"),
    http("HTTP/1.0, without a token", "GET /ping HTTP/1.0\r\n\r\n", "400"),
    http("HTTP/0.9", "GET /ping\r\n", "400"),
    http("HTTP/2 where there is none", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    http("an upgrade", request("GET /ping", "Connection: Upgrade", "Upgrade: h2c"), "400"),
    http("no HTTP at all", "\xff\xfe" * 2000 + "\r\n\r\n", "400"),
]

FLOODS = [
    Attack(f"{CONNECTIONS} requests, a byte at a time", slow, ("others: 200",)),
    Attack(f"{CONNECTIONS} connections without a request", idle, ("others: 200",)),
    Attack("a body without an end", endless, ("413 in time",)),
    Attack("5,000 streams reset at once", resets, ("others: 200",)),
]

UNFINISHED = Attack(
    "300 MB of unfinished bodies, where 192 MB are allowed", unfinished, ("others: 200, within its bound",)
)
"""An attack on a server with -XX:MaxDirectMemorySize=192m."""

REGISTRATIONS = [
    registration("climb out of the store", "../outside/x.mar", "404"),
    registration("climb out, encoded twice", "%2e%2e/outside/x.mar", "404"),
    registration("an archive elsewhere on the disk", "{outside}/x.mar", "404"),
    registration("a file URL", "file:///etc/passwd", "404"),
    registration("a file URL of an archive", "file://{outside}/x.mar", "404"),
    registration("a file URL with one slash", "file:{outside}/x.mar", "404"),
    registration("a file URL in capitals", "FILE://{outside}/x.mar", "404"),
    registration("an http URL", "http://127.0.0.1:{listener}/x.mar", "404"),
    registration("an https URL", "https://127.0.0.1:{listener}/x.mar", "404"),
    registration("an http URL after a space", " http://127.0.0.1:{listener}/x.mar", "404"),
    registration("an http URL after a line feed", "\nhttp://127.0.0.1:{listener}/x.mar", "404"),
    registration("an ftp URL", "ftp://127.0.0.1:{listener}/x.mar", "404"),
    registration("an http URL in a jar URL", "jar:http://127.0.0.1:{listener}/x.mar!/", "404", "400"),
    registration("an S3 URL", "s3://bucket/x.mar", "404"),
    registration("a null byte in a name", "x\0.mar", "403"),
    registration("a folder without a manifest", "{outside}", "400"),
    registration("the root folder", "/", "400", "500"),
    registration("no name", "", "404"),
    registration("a model that is there", "{model}.mar", "409"),
]
