"""One endpoint, which sends each request once."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web

from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.operations import Request, captioning
from reelscribe.client.torchserve_endpoint import TorchServeEndpoint
from reelscribe.contract import shared_memory
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.shared_memory import MAGIC, SharedMemory, machine, resolve
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable, UsageError
from support.fake_torchserve import (
    DESCRIPTION,
    Broken,
    FakeTorchServe,
    Received,
    captions,
    refused,
    worker_died,
    write_key_file,
)
from support.sending import FRAMES

BODY = wire.pack({"frames": FRAMES})


def asked(frames=FRAMES):
    return Request(captioning(None), frames)


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeTorchServe]:
    async with FakeTorchServe() as server:
        yield server


def endpoint_of(server, session, credentials=None, *, request_seconds=None):
    return TorchServeEndpoint(
        Server(server.url, credentials),
        "captioner",
        session,
        CaptionerDescription.from_json,
        request_seconds=request_seconds,
    )


async def test_a_description_has_the_number_of_workers(server, session):
    endpoint = endpoint_of(server, session)
    assert endpoint.workers == 1
    server.description = replace(DESCRIPTION, workers=3)
    assert await endpoint.describe() == server.description == endpoint.description
    assert endpoint.workers == 3


async def test_an_address_may_end_in_a_slash(server, session):
    endpoint = TorchServeEndpoint(
        Server(server.url + "/"), "captioner", session, CaptionerDescription.from_json, request_seconds=None
    )
    assert endpoint.url == f"{server.url}/predictions/captioner"
    assert await endpoint.describe() == DESCRIPTION


async def test_requests_are_outstanding_until_they_are_answered_or_fail(server, session):
    endpoint = endpoint_of(server, session)
    counted = []

    async def answer(request):
        counted.append(endpoint.outstanding)
        if len(counted) == 2:
            raise Broken
        return await captions(request)

    server.answer = answer
    await endpoint.predict(asked())
    with pytest.raises(ServerUnreachable, match="is the server running"):
        await endpoint.predict(asked())
    assert counted == [1, 1]
    assert endpoint.outstanding == 0


async def test_without_a_key_no_token_is_sent(server, session):
    await endpoint_of(server, session).predict(asked())
    assert "Authorization" not in server.received[0].headers


@pytest.mark.parametrize(
    ("answer", "final", "message"),
    [
        (worker_died(500), False, "status 500: no luck"),
        (worker_died(503), False, "status 503: no luck"),
        (worker_died(507), False, "status 507: no luck"),
        (web.Response(status=502, text="<html>Bad gateway</html>"), False, "status 502: <html>Bad gateway</html>"),
        (web.Response(status=504, body=b"\xff"), False, "status 504: \ufffd"),
        (web.json_response({"error": "no dict"}, status=500), False, 'status 500: {"error": "no dict"}'),
        (web.json_response([1], status=500), False, "status 500: [1]"),
        (refused(503, "CallFull", "try again"), False, "status 503: try again"),
        (refused(400, "WireError", "no body"), True, "status 400: no body"),
        (refused(507, "OutOfDeviceMemory", "too large"), False, "status 507: too large"),
        (refused(500, "RequestFailed", "KeyError"), False, "status 500: KeyError"),
    ],
)
async def test_a_request_is_refused_for_now_or_for_good(server, session, answer, final, message):
    async def respond(_):
        return answer

    server.answer = respond
    with pytest.raises(RequestRefused) as error:
        await endpoint_of(server, session).predict(asked())
    assert (str(error.value), error.value.permanent, error.value.kills_workers) == (message, final, False)


@pytest.mark.parametrize(
    ("status", "temporary", "advice"),
    [(400, True, "no token was given"), (404, True, "'captioner' built and loaded"), (413, False, "max_request_size")],
)
async def test_access_is_refused_with_advice(server, session, status, temporary, advice):
    async def respond(_):
        return web.Response(status=status)

    server.answer = respond
    with pytest.raises(AccessRefused, match=advice) as error:
        await endpoint_of(server, session).predict(asked())
    assert error.value.temporary == temporary


async def test_json_that_is_no_description_is_an_error(server, session):
    server.description = SimpleNamespace(to_json=lambda: {"name": "a/b"})
    with pytest.raises(ServerError, match="expected the description of a caption handler"):
        await endpoint_of(server, session).describe()


async def test_a_response_that_is_not_json_is_an_error(server, session):
    async def respond(_):
        return web.Response(text="a star")

    server.answer = respond
    with pytest.raises(ServerError, match="expected JSON, got 'a star'"):
        await endpoint_of(server, session).predict(asked())


async def test_all_requests_that_were_refused_together_see_the_new_key(server, session, tmp_path):
    key_file = write_key_file(tmp_path / "key_file.json", "old")
    endpoint = endpoint_of(server, session, Credentials(key_file))
    server.key = "new"
    with pytest.raises(AccessRefused, match="keys expire"):
        await endpoint.predict(asked())
    assert not endpoint.reload_key()
    write_key_file(key_file, "new")
    assert [endpoint.reload_key() for _ in range(3)] == [True] * 3
    assert (await endpoint.predict(asked())).answers[7].text == "frame 7"


async def test_a_key_file_that_is_gone_for_a_while_has_no_new_key(server, session, tmp_path):
    key_file = write_key_file(tmp_path / "key_file.json", "old")
    endpoint = endpoint_of(server, session, Credentials(key_file))
    server.key = "new"
    with pytest.raises(AccessRefused, match="keys expire"):
        await endpoint.predict(asked())
    key_file.unlink()
    assert not endpoint.reload_key()


async def test_a_key_without_a_file_never_changes(server, session):
    server.key = "new"
    endpoint = endpoint_of(server, session, "old")
    with pytest.raises(AccessRefused, match="keys expire"):
        await endpoint.predict(asked())
    assert not endpoint.reload_key()


@pytest.fixture
def memory():
    memory = SharedMemory(10_000)
    yield memory
    memory.close()


def in_memory(memory, count=2):
    frames = np.ndarray((count, 40, 30, 3), np.uint8, memory.view)
    frames[:] = np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1)
    return frames


async def read_there(received):
    """Respond like a handler that reads the memory of its clients."""
    return await captions(Received(received.headers, bytes(resolve(received.body))))


async def cannot_read(received):
    """Respond like a handler that cannot read the memory of its clients."""
    if received.body.startswith(MAGIC):
        return refused(421, "MemoryNotShared", "it cannot be opened")
    return await captions(received)


async def test_a_server_on_this_machine_is_told_where_the_frames_are(server, session, memory):
    server.description, server.answer = replace(DESCRIPTION, machine=machine()), read_there
    endpoint = endpoint_of(server, session)
    endpoint.memories = [memory]
    await endpoint.describe()
    answer = await endpoint.predict(asked(in_memory(memory)))
    assert [each.text for each in answer.answers] == ["frame 0", "frame 1"]
    assert len(server.received[0].body) < 400
    await endpoint.predict(asked())  # its frames are elsewhere
    assert server.received[1].body == b"".join(map(bytes, BODY))


@pytest.mark.parametrize("name", ["", "another machine"])
async def test_a_server_elsewhere_gets_the_frames(server, session, memory, name, monkeypatch):
    server.description = replace(DESCRIPTION, machine=name)
    monkeypatch.setattr(shared_memory, "machine", lambda: "" if not name else "this machine")
    endpoint = endpoint_of(server, session)
    endpoint.memories = [memory]
    await endpoint.describe()
    await endpoint.predict(asked(in_memory(memory)))
    assert len(server.received[0].frames) == 2


async def test_a_server_that_cannot_read_the_memory_gets_the_frames_and_is_asked_once(server, session, memory, caplog):
    server.description, server.answer = replace(DESCRIPTION, machine=machine()), cannot_read
    endpoint = endpoint_of(server, session)
    endpoint.memories = [memory]
    await endpoint.describe()
    for _ in range(2):
        assert len((await endpoint.predict(asked(in_memory(memory)))).answers) == 2
    assert [each.body.startswith(MAGIC) for each in server.received] == [True, False, False]
    assert "so frames are sent" in caplog.text


@pytest.mark.parametrize(
    "address",
    [
        *("http://me:hidden@gpu:8080", "http://gpu:8080\\\\@hidden", "http://gpu:8080/?key=hidden", "http://gpu:0/"),
        *(
            "http://127.1:8080",
            "http://gpu..:8080",
            "http://gpu:8080\t",
            "openai+http://me:hid/hidden@gpu/v1",
            "gpu:8080",
        ),
    ],
)
def test_an_address_that_programs_read_differently_is_no_server(address, tmp_path):
    with pytest.raises(UsageError, match="server: expected an address like http") as refused:
        Server(address)
    assert "me:hid" not in str(refused.value)
    (tmp_path / "key").write_text('{"inference": {"key": "k"}}')
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError, match="server: expected an address like http"):
        Credentials(tmp_path / "key", address)
