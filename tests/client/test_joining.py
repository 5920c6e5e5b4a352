"""Batches of several sources in one request: which are joined, when they are sent, and what each gets back."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.joining import JoinedRequests
from reelscribe.client.operations import captioning, transcribing
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import NothingAnswered, ServerUnreachable
from support.fake_torchserve import SPEECH, FakeTorchServe, Gate, refused, transcript, transcripts, worker_died
from support.patience import PATIENCE
from support.sending import FRAMES, connected, frame_numbers

LIMITS = {"max_items": 4, "max_bytes": 10**6}


def sizes(server: FakeTorchServe) -> list[int]:
    """The number of items of each request."""
    return [len(request.names()) for request in server.received]


async def test_batches_that_come_while_a_request_is_in_flight_are_joined():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        first = await joined.add(FRAMES[:1])
        await gate.wait_for(1)
        others = [await joined.add(FRAMES[k : k + 1]) for k in (1, 2, 3)]
        gate.open.set()
        assert [frame_numbers(await answers) for answers in (first, *others)] == [[0], [1], [2], [3]]
    assert sizes(server) == [1, 3]


async def test_a_full_request_is_sent_beside_others():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        batches = [await joined.add(FRAMES[:4]), *[await joined.add(FRAMES[k : k + 2]) for k in (4, 6)]]
        await gate.wait_for(2)
        gate.open.set()
        assert [frame_numbers(await answers) for answers in batches] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert sizes(server) == [4, 4]


@pytest.mark.parametrize(
    ("limits", "second"),
    [
        ({"max_items": 4, "max_bytes": 10**6}, FRAMES[3:6]),  # too many
        ({"max_items": 8, "max_bytes": 4 * 8 * 8 * 3}, FRAMES[3:6]),  # too large
        ({"max_items": 8, "max_bytes": 10**6}, np.full((1, 8, 4, 3), 3, np.uint8)),  # of another size
    ],
)
async def test_what_does_not_fit_a_request_is_sent_in_the_next(limits, second):
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **limits)
        batches = [await joined.add(FRAMES[:1])]
        await gate.wait_for(1)
        batches += [await joined.add(FRAMES[1:3]), await joined.add(second)]
        gate.open.set()
        await asyncio.gather(*batches)
    assert sizes(server) == [1, 2, len(second)]


async def answers_of_joined(answer, gate):
    """The answers to a batch that the gate holds, and to two more that are joined meanwhile: frames 1, and 2 and 3."""
    async with FakeTorchServe(answer) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        batches = [await joined.add(FRAMES[:1])]
        await gate.wait_for(1)
        batches += [await joined.add(FRAMES[1:2]), await joined.add(FRAMES[2:4])]
        gate.open.set()
        return [frame_numbers(await answers) for answers in batches]


async def test_what_is_refused_in_one_batch_is_not_refused_in_those_that_were_joined_with_it():
    gate = Gate()

    async def answer(request):
        return refused(422, "FramesError", "no good") if 2 in request.names() else await gate(request)

    assert await answers_of_joined(answer, gate) == [[0], [1], ["status 422: no good"] * 2]


async def test_a_frame_that_kills_workers_costs_its_own_batch_alone():
    gate = Gate()

    async def answer(request):
        return worker_died() if 3 in request.names() else await gate(request)

    assert await answers_of_joined(answer, gate) == [[0], [1], [2, "status 500: no luck"]]


async def test_a_frame_without_a_text_is_asked_about_once():
    gate, asked = Gate(), []

    async def answer(request):
        asked.extend(request.names())
        await gate(request)
        texts = ["" if name == 2 else f"frame {name}" for name in request.names()]
        return web.json_response([{"text": text, "avg_logprob": -0.5} for text in texts])

    no_text = "status 200: expected an answer with a text, got none"
    assert await answers_of_joined(answer, gate) == [[0], [1], [no_text, 3]]
    assert asked == [0, 1, 2, 3]


async def test_an_error_that_ends_a_run_reaches_every_batch():
    async def answer(_):
        return refused(422, "FramesError", "no good")

    async with FakeTorchServe(answer) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        for answers in [await joined.add(FRAMES[k : k + 1]) for k in range(2)]:
            with pytest.raises(NothingAnswered):
                await answers


async def test_a_caller_that_gives_up_takes_nothing_from_the_others():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        batches = [await joined.add(FRAMES[:1])]
        await gate.wait_for(1)
        batches += [await joined.add(FRAMES[k : k + 1]) for k in (1, 2)]
        batches[1].cancel()
        gate.open.set()
        assert [frame_numbers(await batches[k]) for k in (0, 2)] == [[0], [2]]


async def test_after_stop_waiting_only_what_was_sent_is_answered():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        sent = await joined.add(FRAMES[:1])
        await gate.wait_for(1)
        waiting = await joined.add(FRAMES[1:2])
        client.stop_waiting()
        gate.open.set()
        assert frame_numbers(await sent) == [0]
        with pytest.raises(ServerUnreachable):
            await waiting
    assert sizes(server) == [1]


async def test_closing_gives_up_what_is_not_answered():
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        joined = JoinedRequests(client, captioning(None), **LIMITS)
        batches = [await joined.add(FRAMES[:1])]
        await gate.wait_for(1)
        batches.append(await joined.add(FRAMES[1:2]))
        await joined.close()
        assert all(answers.cancelled() for answers in batches)
        assert frame_numbers(await caption_after(gate, client)) == [*range(8)]  # all permits are back


async def caption_after(gate: Gate, client):
    gate.open.set()
    return await client.caption(FRAMES)


async def test_chunks_of_short_recordings_are_joined():
    held = asyncio.Event()

    async def answer(request):
        await held.wait()
        return await transcripts(request)

    chunks = [[np.full(100 + k, k, np.int16)] for k in range(4)]
    async with FakeTorchServe(answer, description=SPEECH) as server, connected(server) as client:
        joined = JoinedRequests(client, transcribing(None, 16_000, TranscriptionOptions()), **LIMITS)
        batches = [await joined.add(chunks[0])]
        await server.arrivals.get()
        batches += [await joined.add(chunk) for chunk in chunks[1:]]
        held.set()
        assert [await answers for answers in batches] == [[transcript(k)] for k in range(4)]
    assert sizes(server) == [1, 3]


async def test_a_request_waits_no_longer_when_nothing_more_is_being_prepared():
    operation = replace(captioning(None), join_seconds=10 * PATIENCE)
    async with FakeTorchServe() as server, connected(server) as client:
        joined = JoinedRequests(client, operation, **LIMITS)
        joined.flush()
        batches = [await joined.add(FRAMES[k : k + 1]) for k in (0, 1)]
        joined.flush()
        answers = await asyncio.wait_for(asyncio.gather(*batches), PATIENCE)
    assert [frame_numbers(each) for each in answers] == [[0], [1]]
    assert sizes(server) == [2]


async def test_a_request_does_not_wait_for_those_of_another_kind():
    """A few items that are asked for in another way must not wait until a busy server has nothing else to do."""
    gate = Gate()
    async with FakeTorchServe(gate) as server, connected(server) as client:
        many, few = (JoinedRequests(client, captioning(None), **LIMITS) for _ in range(2))
        full = await many.add(FRAMES[:4])
        await gate.wait_for(1)
        single = await few.add(FRAMES[4:5])
        await gate.wait_for(1)
        gate.open.set()
        assert [frame_numbers(await answers) for answers in (full, single)] == [[0, 1, 2, 3], [4]]
