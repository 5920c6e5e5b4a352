"""Requests, answers and refusals with one server; outages and several servers are in test_client_outages.py."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.balancer import MOST_DEATHS
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.errors import AccessRefused, NothingAnswered, RequestRefused, ServerError, ServerUnreachable, UsageError
from reelscribe.wire import COMPUTE_SECONDS_HEADER
from support.fake_torchserve import DESCRIPTION, Answer, Broken, FakeTorchServe, captions, refused, worker_died
from support.sending import FRAMES, connected, told


def answers(*steps: int | type[Broken]) -> Answer:
    """Each step once, a status of TorchServe's own or a broken connection; then captions."""
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
        assert await client.caption(FRAMES) == [f"frame {name}" for name in range(8)]


async def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(UsageError, match=r"expected an address like http://.* got 'gpu-machine:8080'"):
        CaptionClient([Server("gpu-machine:8080")], "captioner")


@pytest.mark.parametrize("steps", [(500, 502, 503, 504), (507, 503, 503), (Broken, 503, Broken)])
async def test_what_passes_is_tried_again(steps):
    async with FakeTorchServe(answers(*steps)) as server, connected(server) as client:
        assert await client.caption(FRAMES) == [f"frame {name}" for name in range(8)]
    assert [request.names() for request in server.received] == [[*range(8)]] * (len(steps) + 1)


async def test_our_handlers_503_passes_too():
    busy = [refused(503, "CallFull", "try again")]

    async def answer(request):
        return busy.pop() if busy else await captions(request)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        assert await client.caption(FRAMES[:1]) == ["frame 0"]


async def test_a_full_queue_takes_away_a_quarter_of_the_requests_in_flight():
    server = FakeTorchServe(answers(503), description=replace(DESCRIPTION, workers=4))
    async with server, connected(server) as client:
        before = client.in_flight.limit
        await client.caption(FRAMES)
        assert (before, client.in_flight.limit) == (8, 6)


def deadly(status: int, *bad: int) -> Answer:
    """Workers die of some frames."""

    async def answer(request):
        return worker_died(status) if set(bad) & set(request.names()) else await captions(request)

    return answer


@pytest.mark.parametrize("status", [500, 507])
async def test_a_frame_that_kills_workers_is_found_and_its_neighbours_are_captioned(status):
    async with FakeTorchServe(deadly(status, 5)) as server, connected(server) as client:
        result = await client.caption(FRAMES)
    assert told(result) == [0, 1, 2, 3, 4, f"status {status}: no luck", 6, 7]
    assert isinstance(result[5], RequestRefused)
    assert result[5].deadly
    halves = [8, 8, 4, 4, 4, 2, 2, 1, 1, 1, 1, 2]  # and a black frame, to see that it is not the server
    assert [len(request.names()) for request in server.received] == halves


async def test_two_frames_that_kill_workers_are_both_found():
    async with FakeTorchServe(deadly(500, 1, 7)) as server, connected(server) as client:
        assert told(await client.caption(FRAMES)) == [0, "status 500: no luck", 2, 3, 4, 5, 6, "status 500: no luck"]


async def test_a_server_whose_workers_die_of_everything_ends_the_run():
    async with FakeTorchServe(deadly(500, *range(8))) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed \(status 500.*, and then a black frame too.*log"):
            await client.caption(FRAMES)
    assert sum(len(request.names()) == 1 for request in server.received) == 2 * MOST_DEATHS


async def test_a_busy_server_is_not_taken_for_one_that_dies():
    async with FakeTorchServe(answers(*[503] * 100)) as server, connected(server) as client:
        with pytest.raises(RequestRefused, match="status 503") as error:
            await client.caption(FRAMES)
    assert not error.value.deadly
    assert {len(request.names()) for request in server.received} == {8}


FINAL = [(400, "WireError"), (413, "LimitExceeded"), (422, "FramesError")]


@pytest.mark.parametrize(("status", "kind"), FINAL)
async def test_what_our_handler_refuses_comes_back_for_each_frame_at_once(status, kind):
    async def answer(request):
        return refused(status, kind, "no good") if request.names() != [0] else await captions(request)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        result = await client.caption(FRAMES)
    assert told(result) == [f"status {status}: no good"] * 8
    assert len(server.received) == 2  # and a black frame


async def test_a_device_without_memory_is_asked_again_and_then_for_fewer_frames():
    async def answer(request):
        few = len(request.names()) <= 2
        return await captions(request) if few else refused(507, "OutOfDeviceMemory", "too large")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        assert told(await client.caption(FRAMES)) == [*range(8)]
    assert [len(request.names()) for request in server.received] == [8, 8, 4, 4, 2, 2, 4, 4, 2, 2]


async def refuse_odd(request):
    return refused(422, "FramesError", "odd") if request.names()[0] % 2 else await captions(request)


async def test_a_source_of_frames_that_are_all_refused_does_not_end_the_run():
    async with FakeTorchServe(refuse_odd) as server, connected(server) as client:
        for _ in range(10):
            assert told(await client.caption(FRAMES[1:3])) == ["status 422: odd"] * 2


async def test_a_model_that_refuses_everything_ends_the_run():
    async def answer(_):
        return refused(422, "FramesError", "no")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed \(status 422: no\), and then a black frame too"):
            await client.caption(FRAMES[1:3])


class Gate:
    """An answer that waits for `open`, and counts the requests that wait with it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = self.most = 0

    async def __call__(self, request):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.open.wait()
        self.waiting -= 1
        return await captions(request)


async def test_no_more_requests_are_at_the_server_at_once_than_allowed():
    gate = Gate()
    server = FakeTorchServe(gate, description=replace(DESCRIPTION, workers=100))
    async with server, connected(server, requests_in_flight=5) as client:
        calls = asyncio.gather(*(client.caption(FRAMES[k % 8][None]) for k in range(100)))
        for _ in range(5):
            await server.arrivals.get()
        await client.describe()  # describing takes no permit, and gives none
        assert server.arrivals.empty()
        gate.open.set()
        assert [told(result) for result in await calls] == [[k % 8] for k in range(100)]
    assert gate.most == 5


async def test_cancelled_calls_give_their_permits_back():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server, requests_in_flight=2) as client:
        calls = [asyncio.create_task(client.caption(FRAMES)) for _ in range(5)]
        for _ in range(2):
            await server.arrivals.get()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        gate.open.set()
        for _ in range(3):
            assert told(await client.caption(FRAMES)) == [*range(8)]


@pytest.mark.parametrize("status", [500, 422])
async def test_with_one_request_in_flight_a_request_is_still_halved_and_a_black_frame_sent(status):
    async def answer(request):
        if 5 not in request.names():
            return await captions(request)
        return worker_died() if status == 500 else refused(422, "FramesError", "no luck")

    async with FakeTorchServe(answer) as server, connected(server, requests_in_flight=1) as client:
        results = await asyncio.gather(*(client.caption(FRAMES[4:6]) for _ in range(3)))
    reason = f"status {status}: no luck"
    assert [told(result) for result in results] == [[4 if status == 500 else reason, reason]] * 3


async def test_when_waiting_is_stopped_only_requests_that_were_sent_are_answered():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server, requests_in_flight=2) as client:
        sent = [asyncio.create_task(client.caption(FRAMES)) for _ in range(2)]
        for _ in range(2):
            await server.arrivals.get()
        waiting = asyncio.create_task(client.caption(FRAMES))
        await asyncio.sleep(0)
        client.stop_waiting()
        with pytest.raises(ServerUnreachable, match="the request was not sent"):
            await waiting
        gate.open.set()
        assert [told(await request) for request in sent] == [[*range(8)]] * 2


@pytest.mark.parametrize(
    ("status", "reason"), [(413, "max_request_size"), (401, "is it a TorchServe"), (405, "is it a TorchServe")]
)
async def test_what_would_be_refused_every_time_ends_the_run_at_once(status, reason):
    async def answer(_):
        return web.Response(status=status, text="")

    said = []
    async with FakeTorchServe(answer) as server, connected(server, say=said.append) as client:
        with pytest.raises(AccessRefused, match=reason):
            await client.caption(FRAMES)
    assert len(server.received) == 1
    assert said == []


@pytest.mark.parametrize("text", ["[]", '["one"]', "[1, 2, 3, 4, 5, 6, 7, 8]", '"a star"', "{}", "null", "not json"])
async def test_an_answer_that_is_not_one_text_a_frame_is_an_error(text):
    async def answer(_):
        return web.Response(text=text)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        with pytest.raises(ServerError, match="expected"):
            await client.caption(FRAMES)
    assert len(server.received) == 1


async def test_a_request_without_an_answer_is_sent_again():
    async def forget_the_first(request):
        if len(server.received) == 1:
            await asyncio.Event().wait()
        return await captions(request)

    async with FakeTorchServe(forget_the_first) as server, connected(server, request_seconds=1) as client:
        assert told(await client.caption(FRAMES)) == [*range(8)]
    assert server.received[0].body == server.received[1].body


async def test_where_the_time_went_is_told():
    seen = []

    async def answer(request):
        # More than it took, so that nothing is left for the queue.
        headers = {COMPUTE_SECONDS_HEADER: "1000.5"} if len(server.received) == 1 else None
        return await captions(request, headers=headers)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        client.on_answer = seen.append
        await client.caption(FRAMES)
        await client.caption(FRAMES)
    computed, queued = seen
    assert computed.value == [f"frame {name}" for name in range(8)]
    assert (computed.compute_seconds, computed.queue_seconds) == (1000.5, 0)
    assert computed.network_seconds > 0
    assert queued.compute_seconds == 0
    assert queued.queue_seconds > 0


async def test_a_failed_try_is_no_answer():
    seen = []
    async with FakeTorchServe(answers(500, 503)) as server, connected(server) as client:
        client.on_answer = seen.append
        await client.caption(FRAMES)
    assert len(seen) == 1


async def test_a_server_that_was_never_asked_to_describe_its_model_can_be_asked_for_captions():
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        assert told(await client.caption(FRAMES)) == [*range(8)]
