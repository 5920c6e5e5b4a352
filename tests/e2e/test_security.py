"""Attacks on the real server, listed in support/attacks.py: each is refused, and the server answers as before."""

import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import pytest

from servers.emulated import serve_emulated
from servers.torchserve import CONFIG
from support import raw_http
from support.attacks import (
    FLOODS,
    KEY,
    MALFORMED,
    MANAGE,
    MODEL_API_OFF,
    PATHS,
    REGISTRATIONS,
    TOKENS,
    UNFINISHED,
    Attack,
    Target,
    planted,
    request,
    was_connected,
)
from support.patience import PATIENCE
from support.raw_http import NO_ANSWER, status, statuses
from support.servers import RunningServer

SMALL = "-Xmx512m -XX:MaxDirectMemorySize=192m"
EXPIRES_MINUTES = 0.25
"""Life of a token: short, as a test waits for its end. A start that takes longer renews its own token."""


@pytest.fixture(scope="module")
def target(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A server as anybody starts it."""
    return Target.of(server, planted=planted(tmp_path_factory.mktemp("planted") / "model"))


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A socket to which nobody must connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture(scope="module")
def registering(tmp_path_factory: pytest.TempPathFactory, listener: socket.socket) -> Iterator[Target]:
    """A small server with the model API on, whose tokens expire soon."""
    directory = tmp_path_factory.mktemp("registering")
    outside = directory / "outside"
    places = {"outside": outside, "planted": planted(directory / "planted"), "listener": listener.getsockname()[1]}
    settings = {"enable_model_api": "true", "token_expiration_min": str(EXPIRES_MINUTES), "vmargs": SMALL}
    with serve_emulated(directory, CONFIG, frames_per_second=1000, **settings) as serving:
        outside.mkdir()
        shutil.copy(directory / "store" / "emulated.mar", outside / "x.mar")
        yield Target.of(serving, **places)


def renewed(target: Target, api: str) -> Target:
    """The target with a new token for an API, made with the API key, which does not expire."""
    line = f"GET /token?type={api}"
    status(target.url("management"), target.fill(request(line, "Authorization: Bearer {API}")))
    return Target(target.serving, {**target.names, api: target.serving.instance.key(api)})


def registered(target: Target) -> list[str]:
    return [path.name for path in (target.serving.instance.directory.parent / "store").iterdir()]


@pytest.mark.parametrize("attack", [*TOKENS, *MODEL_API_OFF, *PATHS, *MALFORMED, *FLOODS], ids=str)
def test_it_is_refused_and_the_server_answers_as_before(target: Target, attack: Attack):
    assert attack.send(target) in attack.refusals
    assert target.ordinary() == "200"


@pytest.mark.parametrize("attack", REGISTRATIONS, ids=str)
def test_nothing_else_is_registered_than_an_archive_of_the_store(registering, listener, attack: Attack):
    target = renewed(registering, "management")
    assert attack.send(target) in attack.refusals
    assert not was_connected(listener)
    assert registered(target) == ["emulated.mar"]
    assert status(target.url("management"), target.fill(request("GET /models/{model}", MANAGE))) == "200"


def test_the_management_key_can_register_any_folder_of_the_disk(registering):
    # As docs/security.md says: TorchServe checks no setting before it accepts a folder.
    target = renewed(registering, "management")
    url = quote(target.names["planted"], safe="")
    assert status(target.url("management"), target.fill(request(f"POST /models?url={url}", MANAGE))) == "200"
    assert status(target.url("management"), target.fill(request("DELETE /models/planted", MANAGE))) == "200"


def test_an_expired_token_is_refused(registering):
    entry = json.loads(registering.serving.instance.key_file.read_text())["inference"]
    expires = datetime.fromisoformat(entry["expiration time"][:19]).replace(tzinfo=UTC)
    url, ping = registering.url("inference"), registering.fill(request("GET /ping", KEY))
    assert status(url, ping) == "200" or datetime.now(UTC) >= expires
    # The file says the time in whole seconds, up to one too early.
    time.sleep(max(0.0, (expires + timedelta(seconds=1) - datetime.now(UTC)).total_seconds()))
    assert status(url, ping) == "400"
    assert renewed(registering, "inference").ordinary() == "200"


def test_bodies_that_are_held_back_cost_no_more_memory_than_is_allowed(registering):
    target = renewed(registering, "inference")
    assert UNFINISHED.send(target) in UNFINISHED.refusals
    assert target.ordinary() == "200"


def test_keys_are_for_their_owner_only(target: Target):
    instance = target.serving.instance
    assert instance.key_file.stat().st_mode & 0o077 == 0
    assert instance.directory.stat().st_mode & 0o077 == 0


def test_what_anybody_may_read_without_a_token_names_no_key(target: Target):
    keys = {target.names[api] for api in ("inference", "management", "API")}
    for api in ("inference", "management", "metrics"):
        description = read(target, api, "/api-description")
        assert "openapi" in description
        assert not any(key in description for key in keys)
    assert not any(key in read(target, "metrics", "/metrics") for key in keys)


def test_a_server_without_any_response_has_not_refused(monkeypatch):
    monkeypatch.setattr(raw_http, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts the connection, and nobody answers
        assert statuses(f"http://127.0.0.1:{silent.getsockname()[1]}", b"GET / HTTP/1.1\r\n\r\n") == NO_ANSWER


def read(target: Target, api: str, path: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(target.url(api)).netloc, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()
