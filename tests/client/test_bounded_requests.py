"""How many requests of a client are at the servers at once."""

import asyncio
from dataclasses import replace

import pytest

from reelscribe import wire
from reelscribe.client.in_flight import ROUND_ANSWERS
from reelscribe.errors import ServerUnreachable
from support.fake_torchserve import (
    DESCRIPTION,
    Broken,
    FakeTorchServe,
    Gate,
    captions,
    queue_full,
    refused,
    worker_died,
)
from support.sending import FRAMES, connected, frame_numbers


async def broken(_request):
    raise Broken


async def highest_number_in_flight(client, gate: Gate, expected: int) -> int:
    """Send more requests than `expected`, open the gate when so many wait at it, and return how many did at most."""
    calls = asyncio.gather(*(client.caption(FRAMES) for _ in range(expected + 5)))
    await gate.wait_for(expected)
    await client.describe()  # a round trip in which more requests could arrive
    gate.open.set()
    assert [frame_numbers(result) for result in await calls] == [[*range(8)]] * (expected + 5)
    return gate.most_waiting


async def test_no_more_requests_are_in_flight_than_allowed():
    gate = Gate()
    server = FakeTorchServe(gate, description=replace(DESCRIPTION, workers=100))
    async with server, connected(server, requests_in_flight=5) as client:
        calls = asyncio.gather(*(client.caption(FRAMES[k % 8][None]) for k in range(100)))
        await gate.wait_for(5)
        gate.open.set()
        assert [frame_numbers(result) for result in await calls] == [[k % 8] for k in range(100)]
    assert gate.most_waiting == 5


async def test_a_call_with_a_permit_takes_no_other_and_the_next_permit_comes_when_it_is_given_back():
    async with FakeTorchServe() as server, connected(server, requests_in_flight=1) as client:
        with await client.permit() as permit:
            waiting = asyncio.create_task(client.permit())
            for _ in range(2):
                assert frame_numbers(await client.caption(FRAMES, permit)) == [*range(8)]
            assert not waiting.done()
        with await waiting as permit:
            assert frame_numbers(await client.caption(FRAMES, permit)) == [*range(8)]


async def test_to_begin_with_two_requests_are_in_flight_for_each_worker_of_all_servers():
    gate = Gate()
    async with (
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=1)) as one,
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=4)) as other,
        connected(one, other) as client,
    ):
        assert await highest_number_in_flight(client, gate, expected=10) == 10


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [(queue_full(), 6), (refused(503, "CallFull", "try again"), 8), (worker_died(503), 8)],
    ids=["full queue", "full call", "failed call"],
)
async def test_only_a_full_queue_takes_away_a_quarter_of_the_requests_in_flight(refusal, expected):
    gate, responses = Gate(), [refusal]

    async def answer(request):
        return responses.pop() if responses else await captions(request)

    server = FakeTorchServe(answer, description=replace(DESCRIPTION, workers=4))
    async with server, connected(server) as client:  # which begins with 8
        await client.caption(FRAMES)
        server.answer = gate
        assert await highest_number_in_flight(client, gate, expected) == expected


async def test_the_limit_follows_the_workers_that_answer():
    workers = ["1 cuda:0"]

    async def answer(request):
        worker = workers[len(server.received) % len(workers)]
        return await captions(request, headers={wire.WORKER_HEADER: worker})

    server = FakeTorchServe(answer)  # which describes one worker
    async with server, connected(server) as client:
        for named in (["1 cuda:0"], [f"{k} cuda:{k}" for k in range(4)], ["9 cuda:0", "3 cuda:3"]):
            workers[:] = named
            for _ in range(2 * ROUND_ANSWERS * 8):  # of two rounds
                await client.caption(FRAMES)
            assert (client.workers, client.in_flight.limit) == (len(named), 2 * len(named))


async def test_servers_get_requests_as_they_have_workers_and_none_that_is_gone_counts():
    gate = Gate()
    async with (
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=1)) as one,
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=4)) as other,
        connected(one, other) as client,
    ):
        assert (client.workers, client.in_flight.limit) == (5, 10)
        calls = asyncio.gather(*(client.caption(FRAMES) for _ in range(10)))
        await gate.wait_for(10)
        assert (len(one.received), len(other.received)) == (2, 8)
        gate.open.set()
        await calls
        other.refusals = [404] * 1000
        other.answer = broken
        await asyncio.gather(*(client.caption(FRAMES) for _ in range(10)))
        assert (client.workers, client.in_flight.limit) == (1, 2)


async def test_unlike_servers_get_as_many_requests_as_each_takes():
    gate = Gate()
    async with (
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=8, joined_requests=16, max_frames=512)) as gpus,
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=1, joined_requests=1)) as cpu,
        connected(gpus, cpu) as client,
    ):
        client.expect_requests(8)
        assert (client.in_flight.limit, client.in_flight.most) == (2 * (8 * 16 + 1), 4 * (8 * 16 + 1))
        calls = asyncio.gather(*(client.caption(FRAMES) for _ in range(129)))
        await gate.wait_for(129)
        assert (len(gpus.received), len(cpu.received)) == (128, 1)
        gate.open.set()
        await calls


async def test_cancelled_calls_give_their_permits_back():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server, requests_in_flight=2) as client:
        calls = [asyncio.create_task(client.caption(FRAMES)) for _ in range(5)]
        await gate.wait_for(2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        gate.open.set()
        for _ in range(3):
            assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]


@pytest.mark.parametrize(
    ("status", "captioned"), [(500, [4, "status 500: no luck"]), (422, ["status 422: no luck"] * 2)]
)
async def test_with_one_request_in_flight_requests_are_still_halved_and_black_frames_sent(status, captioned):
    async def answer(request):
        if 5 not in request.names():
            return await captions(request)
        return worker_died() if status == 500 else refused(422, "FramesError", "no luck")

    async with FakeTorchServe(answer) as server, connected(server, requests_in_flight=1) as client:
        results = await asyncio.gather(*(client.caption(FRAMES[4:6]) for _ in range(3)))
    assert [frame_numbers(result) for result in results] == [captioned] * 3


async def test_after_stop_waiting_only_requests_that_were_sent_are_answered():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server, requests_in_flight=2) as client:
        sent = [asyncio.create_task(client.caption(FRAMES)) for _ in range(2)]
        await gate.wait_for(2)
        waiting = asyncio.create_task(client.caption(FRAMES))
        await asyncio.sleep(0)
        client.stop_waiting()
        with pytest.raises(ServerUnreachable, match="the request was not sent"):
            await waiting
        gate.open.set()
        assert [frame_numbers(await request) for request in sent] == [[*range(8)]] * 2
