"""Key files, and their renewal through a management API that writes the file and answers nothing, like TorchServe."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from reelscribe.client.credentials import RENEW_SECONDS, RETRY_SECONDS, Credentials
from reelscribe.errors import UsageError
from support.fake_torchserve import write_key_file

START = datetime(2025, 1, 1, tzinfo=UTC)


def expiry(seconds: float) -> str:
    """A time so long after START, as Java writes it: with nanoseconds."""
    return f"{START + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.000000000Z"


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The clock of the credentials, in seconds since START."""
    clock = SimpleNamespace(seconds=0.0)
    now = SimpleNamespace(time=lambda: START.timestamp() + clock.seconds)
    monkeypatch.setattr("reelscribe.client.credentials.time", now)
    return clock


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Management:
    """A management API that writes the key file for each request of a token, unless `failure` says what it does."""

    def __init__(self, key_file, clock) -> None:
        self.key_file, self.clock = key_file, clock
        self.requests: list[tuple[str, str]] = []
        self.failure = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.path_qs, request.headers["Authorization"]))
        if self.failure == "it breaks":
            assert request.transport
            request.transport.abort()
        if self.failure:
            return web.Response(status=500)
        write_key_file(self.key_file, f"key {len(self.requests)}", expiry(self.clock.seconds + 3600))
        return web.Response()


@pytest_asyncio.fixture
async def management(tmp_path, clock) -> AsyncIterator[Management]:
    management = Management(tmp_path / "key_file.json", clock)
    app = web.Application()
    app.router.add_get("/token", management.handle)
    async with TestServer(app) as server:
        management.url = str(server.make_url("")).rstrip("/")
        yield management


def test_the_inference_key_is_read_from_the_key_file(tmp_path):
    assert Credentials(str(write_key_file(tmp_path / "keys", "secret"))).token == "secret"


def test_reload_tells_whether_the_key_has_changed(tmp_path):
    path = write_key_file(tmp_path / "keys", "one")
    credentials = Credentials(path)
    assert not credentials.reload()
    write_key_file(path, "two")
    assert credentials.reload()
    assert credentials.token == "two"


BAD = ["", "{", "[]", "null", '"key"', "{}", '{"inference": {}}', '{"inference": "key"}', "\ud800"]


@pytest.mark.parametrize("text", BAD)
def test_a_file_that_is_no_key_file_is_refused(tmp_path, text):
    path = tmp_path / "keys"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UsageError, match=r"expected the key_file\.json of a TorchServe"):
        Credentials(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_have_access_to_is_refused(tmp_path, mode):
    path = write_key_file(tmp_path / "keys", "secret")
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"its owner alone, got mode {mode:o}; chmod 600") as error:
        Credentials(path)
    assert "secret" not in str(error.value)
    path.chmod(0o600)
    assert Credentials(path).token == "secret"


def test_the_key_is_in_no_representation(tmp_path):
    credentials = Credentials(write_key_file(tmp_path / "keys", "secret"))
    assert "secret" not in f"{credentials!r} {credentials}"


def test_a_key_differs_from_a_refused_one_when_the_file_has_changed(tmp_path):
    path = write_key_file(tmp_path / "keys", "one")
    credentials = Credentials(path)
    assert not credentials.reload_after_refusal("one")
    write_key_file(path, "two")
    assert credentials.reload_after_refusal("one")
    path.unlink()
    assert credentials.reload_after_refusal("one")
    assert not credentials.reload_after_refusal("two")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        Credentials(tmp_path / "keys")


@pytest.mark.parametrize("expires", ["soon", 5, "2025-13-01T00:00:00Z"])
def test_a_time_that_cannot_be_read_is_refused(tmp_path, expires):
    path = write_key_file(tmp_path / "keys", "one", expires)
    with pytest.raises(UsageError, match=r"expected the key_file\.json"):
        Credentials(path, "http://127.0.0.1:9")


def test_after_a_bad_file_the_last_key_is_kept(tmp_path):
    path = write_key_file(tmp_path / "keys", "one")
    credentials = Credentials(path)
    path.write_text("{")
    with pytest.raises(UsageError):
        credentials.reload()
    assert credentials.token == "one"


@pytest.mark.parametrize(("life", "renewed_after"), [(3600, 3600 - RENEW_SECONDS), (80, 40)])
async def test_a_key_is_renewed_before_it_expires(management, session, clock, life, renewed_after):
    credentials = Credentials(write_key_file(management.key_file, "first", expiry(life)), management.url)
    clock.seconds = renewed_after - 0.01
    assert await credentials.fresh_token(session) == "first"
    clock.seconds = renewed_after + 0.01
    assert await credentials.fresh_token(session) == "key 1"
    assert await credentials.fresh_token(session) == "key 1"
    assert management.requests == [("/token?type=inference", "Bearer api-key")]


async def test_a_key_is_renewed_again_and_again(management, session, clock):
    credentials = Credentials(write_key_file(management.key_file, "first", expiry(3600)), management.url)
    for renewals in range(1, 4):
        clock.seconds = renewals * 3600
        assert await credentials.fresh_token(session) == f"key {renewals}"


async def test_the_management_key_is_renewed_in_the_same_way(management, session):
    path = write_key_file(management.key_file, "first", expiry(-100))
    assert await Credentials(path, management.url, api="management").fresh_token(session) == "key 1"
    assert management.requests == [("/token?type=management", "Bearer api-key")]


async def test_a_key_that_has_expired_is_renewed(management, session):
    credentials = Credentials(write_key_file(management.key_file, "first", expiry(-100)), management.url)
    assert await credentials.fresh_token(session) == "key 1"


async def test_without_a_management_address_an_expired_key_is_not_renewed(tmp_path, session):
    credentials = Credentials(write_key_file(tmp_path / "keys", "first", expiry(-100)))
    assert await credentials.fresh_token(session) == "first"


async def test_a_file_without_an_expiry_is_not_renewed(management, session):
    management.key_file.touch(mode=0o600)
    management.key_file.write_text(json.dumps({"inference": {"key": "first"}, "API": {"key": "api-key"}}))
    assert await Credentials(management.key_file, management.url).fresh_token(session) == "first"
    assert management.requests == []


@pytest.mark.parametrize("failure", ["it refuses", "it breaks"])
async def test_after_a_renewal_that_fails_the_old_key_is_used_and_renewed_later(management, session, clock, failure):
    credentials = Credentials(write_key_file(management.key_file, "first", expiry(10)), management.url)
    management.failure = failure
    clock.seconds = 20
    assert await credentials.fresh_token(session) == "first"
    requests = len(management.requests)  # two if the connection breaks, because aiohttp repeats a GET
    for clock.seconds in (21, 20 + RETRY_SECONDS - 1):
        assert await credentials.fresh_token(session) == "first"
    assert len(management.requests) == requests
    management.failure = ""
    clock.seconds = 20 + RETRY_SECONDS + 1
    assert await credentials.fresh_token(session) == f"key {requests + 1}"


async def test_without_a_management_api_the_old_key_is_used(tmp_path, session):
    path = write_key_file(tmp_path / "keys", "first", expiry(-100))
    assert await Credentials(path, "http://127.0.0.1:9").fresh_token(session) == "first"


def test_a_key_file_without_the_key_of_the_api_is_refused(tmp_path):
    (tmp_path / "keys").write_text('{"inference": {"key": "x"}}')
    with pytest.raises(UsageError, match="it has no management key"):
        Credentials(tmp_path / "keys", api="management")
