"""The client against a small HTTP server that stands for TorchServe; the real one is in e2e/."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import stamina
from aiohttp import web
from aiohttp.test_utils import TestServer

from reelscribe import wire
from reelscribe.client import ATTEMPTS, MOST_DEATHS, CaptionClient
from reelscribe.errors import AccessRefused, RequestRefused, ServerError, ServerUnreachable

FRAMES = np.random.default_rng(0).integers(0, 256, (40, 100, 100, 3), np.uint8)


@pytest.fixture(autouse=True)
def _no_waiting() -> None:
    stamina.set_testing(True, attempts=ATTEMPTS)


@asynccontextmanager
async def serving(answer: Callable[[web.Request, bytes], web.Response]) -> AsyncIterator[CaptionClient]:
    async def handler(request: web.Request) -> web.Response:
        return answer(request, await request.read())

    app = web.Application(client_max_size=2**27)
    app.router.add_post("/predictions/captioner", handler)
    async with (
        TestServer(app) as server,
        CaptionClient(str(server.make_url("/")), "captioner", token="secret") as client,
    ):
        yield client


async def test_frames_arrive_whole_with_length_and_token():
    seen = []

    def answer(request, body):
        seen.append((request.headers, len(body), wire.unpack(body)["frames"]))
        return web.json_response(["x"] * 40)

    async with serving(answer) as client:
        assert await client.caption(FRAMES) == ["x"] * 40
    ((headers, size, frames),) = seen
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Length"] == str(size)
    assert headers["Content-Type"] == "application/octet-stream"
    assert "Transfer-Encoding" not in headers
    assert np.array_equal(frames, FRAMES)


@pytest.mark.parametrize("status", [500, 503, 507])
async def test_what_passes_is_tried_again(status):
    statuses = [status, 503, 200]

    def answer(request, body):
        assert len(wire.unpack(body)["frames"]) == 40
        return web.json_response(["x"] * 40, status=statuses.pop(0))

    async with serving(answer) as client:
        assert await client.caption(FRAMES) == ["x"] * 40
    assert statuses == []


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, {"code": 503, "message": "no worker"}, ATTEMPTS),
        (502, {"error": "Bad gateway"}, ATTEMPTS),
        (504, "\udcff", ATTEMPTS),
        (503, {"error": {"type": "CallFull", "message": "try again"}}, ATTEMPTS),
        (500, {"code": 500, "message": "Worker died."}, MOST_DEATHS),
        (507, {"error": {"type": "OutOfDeviceMemory", "message": "does not fit"}}, 1),
    ],
)
async def test_what_does_not_pass_is_given_up(status, body, expected):
    tries = []

    def answer(request, _):
        tries.append(1)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, body=text.encode(errors="surrogateescape"))

    async with serving(answer) as client:
        with pytest.raises(RequestRefused, match=f"status {status}"):
            await client.caption(FRAMES)
    assert len(tries) == expected


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        (422, {"error": {"type": "FramesError", "message": "expected uint8"}}, RequestRefused, "expected uint8"),
        (400, {"code": 400, "message": "Token Authorization failed."}, AccessRefused, "--key-file"),
        (404, {"code": 404, "message": "Model not found"}, AccessRefused, "'captioner' built and loaded"),
        (413, "", AccessRefused, "max_request_size"),
    ],
)
async def test_what_would_come_again_is_said_at_once(status, body, kind, reason):
    tries = []

    def answer(request, _):
        tries.append(1)
        return web.Response(status=status, text=json.dumps(body) if body else "")

    async with serving(answer) as client:
        with pytest.raises(kind, match=reason):
            await client.caption(FRAMES)
    assert len(tries) == 1


@pytest.mark.parametrize("text", ["[]", '["one"]', '"a star"', "{}", "not json"])
async def test_an_answer_that_is_not_one_caption_a_frame_is_an_error(text):
    async with serving(lambda request, body: web.Response(text=text)) as client:
        with pytest.raises(ServerError, match="expected"):
            await client.caption(FRAMES)


async def test_a_request_that_the_server_forgets_is_sent_again():
    tries, never = [], asyncio.Event()

    async def forget_the_first(request: web.Request) -> web.Response:
        tries.append(len(await request.read()))
        if len(tries) == 1:
            await never.wait()
        return web.json_response(["x"] * 40)

    app = web.Application(client_max_size=2**27)
    app.router.add_post("/predictions/captioner", forget_the_first)
    async with (
        TestServer(app) as server,
        CaptionClient(str(server.make_url("/")), "captioner", request_seconds=1) as client,
    ):
        assert await client.caption(FRAMES) == ["x"] * 40
        never.set()
    assert len(set(tries)) == 1
    assert len(tries) == 2


async def test_nobody_there():
    async with CaptionClient("http://127.0.0.1:9", "captioner") as client:
        with pytest.raises(ServerUnreachable, match="is the server running"):
            await client.describe()
