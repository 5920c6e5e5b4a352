"""A captioner's client and one server: requests, answers and refusals. Outages are in test_outages.py."""

import asyncio

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.balancer import MAX_DEATHS
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameCaption
from reelscribe.errors import AccessRefused, NothingAnswered, RequestRefused, ServerError, UsageError
from reelscribe.run.in_memory import caption_frames
from reelscribe.wire import COMPUTE_SECONDS_HEADER
from support.fake_torchserve import Answer, Broken, FakeTorchServe, captions, refused, worker_died
from support.patience import LoopClock
from support.sending import FRAMES, connected, frame_numbers


def answers(*steps: int | type[Broken]) -> Answer:
    """Fail once with each step, a status of TorchServe itself or a broken connection; then answer with captions."""
    waiting = list(steps)

    async def answer(request):
        if not waiting:
            return await captions(request)
        step = waiting.pop(0)
        if step is Broken:
            raise Broken
        return worker_died(step)

    return answer


async def test_frames_arrive_whole_with_length_and_token():
    frames = np.random.default_rng(0).integers(0, 256, (40, 100, 100, 3), np.uint8)
    async with FakeTorchServe() as server, connected(server, credentials="secret") as client:
        assert len(await client.caption(frames)) == 40
    (request,) = server.received
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Length"] == str(len(request.body))
    assert request.headers["Content-Type"] == "application/octet-stream"
    assert "Transfer-Encoding" not in request.headers
    assert np.array_equal(request.frames, frames)


async def test_each_frame_gets_its_own_caption():
    async with FakeTorchServe() as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]


async def test_a_single_frame_has_one_caption():
    async with FakeTorchServe() as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES[7])) == [7]
        assert await caption_frames(client, FRAMES[7]) == ["frame 7"]
    assert [request.frames.shape for request in server.received] == [(1, 8, 8, 3)] * 2


@pytest.mark.parametrize(
    "frames",
    [
        FRAMES[..., 0],
        FRAMES[..., :2],
        FRAMES[None],
        FRAMES[:0],
        FRAMES.astype(np.float32),
        FRAMES.tolist(),
    ],
)
@pytest.mark.parametrize("call", [CaptionClient.caption, caption_frames])
async def test_what_is_no_frames_is_an_error_and_not_sent(call, frames):
    async with FakeTorchServe() as server, connected(server) as client:
        with pytest.raises(UsageError, match=r"frames: expected .*\(H, W, 3\) or \(N, H, W, 3\) uint8 RGB.*got"):
            await call(client, frames)
    assert server.received == []


async def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(UsageError, match=r"expected an address like http://.* got 'gpu-machine:8080'"):
        CaptionClient([Server("gpu-machine:8080")], "captioner")


@pytest.mark.parametrize("steps", [(500, 502, 503, 504), (507, 503, 503), (Broken, 503, Broken)])
async def test_a_failure_that_may_pass_is_retried(steps):
    async with FakeTorchServe(answers(*steps)) as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]
    assert [request.names() for request in server.received] == [[*range(8)]] * (len(steps) + 1)


async def test_a_full_call_of_the_handler_is_retried():
    busy = [refused(503, "CallFull", "try again")]

    async def answer(request):
        return busy.pop() if busy else await captions(request)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        assert await client.caption(FRAMES[:1]) == [FrameCaption("frame 0", avg_logprob=-0.25)]


def deadly(status: int, *bad: int) -> Answer:
    """Kill the worker of a request that holds one of the frames `bad`."""

    async def answer(request):
        return worker_died(status) if set(bad) & set(request.names()) else await captions(request)

    return answer


@pytest.mark.parametrize("status", [500, 507])
async def test_a_frame_that_kills_workers_is_found_and_its_neighbours_are_captioned(status):
    async with FakeTorchServe(deadly(status, 5)) as server, connected(server) as client:
        result = await client.caption(FRAMES)
    assert frame_numbers(result) == [0, 1, 2, 3, 4, f"status {status}: no luck", 6, 7]
    assert isinstance(result[5], RequestRefused)
    assert result[5].kills_workers
    halves = [8, 8, 4, 4, 4, 2, 2, 1, 1, 1, 1, 2]  # and a black frame, to see that it is not the server
    assert [len(request.names()) for request in server.received] == halves


async def test_two_frames_that_kill_workers_are_both_found():
    async with FakeTorchServe(deadly(500, 1, 7)) as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES)) == [
            0,
            "status 500: no luck",
            2,
            3,
            4,
            5,
            6,
            "status 500: no luck",
        ]


async def test_a_server_whose_workers_die_of_everything_ends_the_run():
    async with FakeTorchServe(deadly(500, *range(8))) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed \(status 500.*, and then a black frame too.*log"):
            await client.caption(FRAMES)
    assert sum(len(request.names()) == 1 for request in server.received) == 2 * MAX_DEATHS


async def test_a_full_queue_is_not_taken_for_a_death():
    async with FakeTorchServe(answers(*[503] * 100)) as server, connected(server) as client:
        with pytest.raises(RequestRefused, match="status 503") as error:
            await client.caption(FRAMES)
    assert not error.value.kills_workers
    assert {len(request.names()) for request in server.received} == {8}


FINAL = [(400, "WireError"), (413, "LimitExceeded"), (422, "FramesError")]


@pytest.mark.parametrize(("status", "kind"), FINAL)
async def test_what_the_handler_refuses_is_not_retried_and_comes_back_for_each_frame(status, kind):
    async def answer(request):
        return refused(status, kind, "no good") if request.names() != [0] else await captions(request)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        result = await client.caption(FRAMES)
    assert frame_numbers(result) == [f"status {status}: no good"] * 8
    assert len(server.received) == 2  # and a black frame


async def test_frames_that_exceed_the_devices_memory_are_retried_and_then_halved():
    async def answer(request):
        few = len(request.names()) <= 2
        return await captions(request) if few else refused(507, "OutOfDeviceMemory", "too large")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]
    assert [len(request.names()) for request in server.received] == [8, 8, 4, 4, 2, 2, 4, 4, 2, 2]


async def refuse_odd(request):
    return refused(422, "FramesError", "odd") if request.names()[0] % 2 else await captions(request)


async def test_a_source_of_frames_that_are_all_refused_does_not_end_the_run():
    async with FakeTorchServe(refuse_odd) as server, connected(server) as client:
        for _ in range(10):
            assert frame_numbers(await client.caption(FRAMES[1:3])) == ["status 422: odd"] * 2


async def test_a_model_that_refuses_everything_ends_the_run():
    async def answer(_):
        return refused(422, "FramesError", "no")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed \(status 422: no\), and then a black frame too"):
            await client.caption(FRAMES[1:3])


@pytest.mark.parametrize(
    ("status", "reason"), [(413, "max_request_size"), (401, "is it a TorchServe"), (405, "is it a TorchServe")]
)
async def test_a_refusal_of_every_request_is_not_retried(messages, status, reason):
    async def answer(_):
        return web.Response(status=status, text="")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        with pytest.raises(AccessRefused, match=reason):
            await client.caption(FRAMES)
    assert len(server.received) == 1
    assert messages.lines == []


ONE = '{"text": "a star", "avg_logprob": -0.5}'


@pytest.mark.parametrize(
    "text",
    ["[]", f"[{ONE}]", ONE, "[1, 2, 3, 4, 5, 6, 7, 8]", "[" + '"a", ' * 7 + '"a"]', '"a star"', "{}", "null"]
    + [f"[{', '.join([ONE] * 7 + [odd])}]" for odd in ('{"text": "a"}', '{"text": 1, "avg_logprob": 0}', '"a"')],
)
async def test_an_answer_without_one_caption_for_each_frame_is_an_error(text):
    async def answer(_):
        return web.Response(text=text)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        with pytest.raises(ServerError, match=r"expected|avg_logprob"):
            await client.caption(FRAMES)
    assert len(server.received) == 1


async def test_a_request_without_an_answer_is_sent_again(monkeypatch):
    async def forget_the_first(request):
        if len(server.received) == 1:
            await asyncio.Event().wait()
        return await captions(request)

    clock = LoopClock(monkeypatch)
    async with FakeTorchServe(forget_the_first) as server, connected(server, request_seconds=100) as client:
        request = asyncio.create_task(client.caption(FRAMES))
        await server.arrivals.get()
        await clock.advance(101)  # aiohttp rounds long timeouts up to whole seconds
        assert frame_numbers(await request) == [*range(8)]
    assert server.received[0].body == server.received[1].body


async def test_answers_say_where_the_time_went():
    answered = []

    async def answer(request):
        # More than the request took, so that nothing is left for the queue.
        headers = {COMPUTE_SECONDS_HEADER: "1000.5"} if len(server.received) == 1 else None
        return await captions(request, headers=headers)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        client.on_answer = answered.append
        await client.caption(FRAMES)
        await client.caption(FRAMES)
    computed, queued = answered
    assert [caption.text for caption in computed.answers] == [f"frame {name}" for name in range(8)]
    assert (computed.compute_seconds, computed.queue_seconds) == (1000.5, 0)
    assert computed.network_seconds > 0
    assert queued.compute_seconds == 0
    assert queued.queue_seconds > 0


async def test_a_failed_attempt_is_no_answer():
    answered = []
    async with FakeTorchServe(answers(500, 503)) as server, connected(server) as client:
        client.on_answer = answered.append
        await client.caption(FRAMES)
    assert len(answered) == 1


async def test_frames_can_be_captioned_without_a_description():
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]
