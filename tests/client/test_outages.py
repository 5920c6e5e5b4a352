"""Outages: servers that go away, refuse a token or come back, one or several of them."""

import asyncio
import signal
import sys
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
from aiohttp import web

from reelscribe.client.balancer import OUTAGE_SECONDS
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.frames import FrameCaption
from reelscribe.errors import AccessRefused, ServerUnreachable, UsageError
from reelscribe.wire import IDENTITY_HEADER
from support.fake_torchserve import (
    DESCRIPTION,
    Answer,
    Broken,
    FakeTorchServe,
    Gate,
    captions,
    worker_died,
    write_key_file,
)
from support.patience import PATIENCE, LoopClock
from support.sending import FRAMES, connected, frame_numbers, no_waiting

FOUR_WORKERS = replace(DESCRIPTION, workers=4)
OTHER_MODEL = replace(DESCRIPTION, name="a/other")


def eight_at_once(answer: Answer = captions, **options: Any) -> FakeTorchServe:
    """A server to which the client sends eight requests at once from the start: two for each worker."""
    return FakeTorchServe(answer, description=FOUR_WORKERS, **options)


async def each_alone(client: CaptionClient) -> list[int | str]:
    """All frames at once, each in a request of its own."""
    results = await asyncio.gather(*(client.caption(FRAMES[k : k + 1]) for k in range(8)))
    return [frame_numbers(result)[0] for result in results]


async def test_a_server_that_is_gone_for_a_while_is_waited_for(messages):
    async with eight_at_once() as server, connected(server) as client:
        await server.stop()
        request = asyncio.create_task(each_alone(client))
        await messages.arrived.wait()
        await server.start()
        assert await request == [*range(8)]
    waiting, back = messages.lines
    assert waiting.startswith(f"waiting for a server: {server.url}")
    assert back == f"{server.url}/predictions/captioner answers again"


async def test_a_server_that_comes_back_at_another_address_is_found_there(messages):
    old, new = eight_at_once(), eight_at_once(key="new")
    async with new:
        moved = Server(new.url, "new")
        await old.start()
        with no_waiting():
            async with CaptionClient([Server(old.url, None, lambda: moved)], "captioner") as client:
                await client.describe()
                await old.stop()
                assert await each_alone(client) == [*range(8)]
    assert messages.lines[1:] == [
        f"{old.url}: the server is at {new.url} now",
        f"{new.url}/predictions/captioner answers again",
    ]


async def test_a_server_that_goes_away_while_it_answers_gets_the_requests_again():
    async def hang(_):
        return await asyncio.Event().wait()

    async with eight_at_once(hang) as server, connected(server) as client:
        request = asyncio.create_task(each_alone(client))
        for _ in range(8):
            await server.arrivals.get()
        await server.stop()
        server.answer = captions
        await server.start()
        assert await request == [*range(8)]


async def test_connections_that_break_again_and_again_lose_nothing():
    async def break_every_other(request):
        if len(server.received) % 2:
            raise Broken
        return await captions(request)

    async with eight_at_once(break_every_other) as server, connected(server) as client:
        for _ in range(10):
            assert await each_alone(client) == [*range(8)]


async def test_a_server_that_is_gone_for_too_long_ends_the_run(messages, monkeypatch):
    clock = LoopClock(monkeypatch)
    async with FakeTorchServe() as server, connected(server, outage_seconds=100) as client:
        await server.stop()
        request = asyncio.create_task(client.caption(FRAMES))
        await messages.arrived.wait()
        await server.start()
        await request  # that outage was short enough
        await server.stop()
        messages.arrived.clear()
        with no_waiting(attempts=2):
            request = asyncio.create_task(client.caption(FRAMES))
            await messages.arrived.wait()
            await clock.advance(100)
            with pytest.raises(ServerUnreachable, match=r"no server could be used for 100 s: .*running"):
                await request
        assert len(messages.lines) == 3


def test_without_a_choice_a_server_is_waited_for_a_quarter_of_an_hour():
    assert OUTAGE_SECONDS == signature(CaptionClient).parameters["outage_seconds"].default == 15 * 60


async def test_without_a_server_the_run_does_not_start():
    async with CaptionClient([Server("http://127.0.0.1:9")], "captioner") as client:
        with pytest.raises(ServerUnreachable, match="is the server running"):
            await client.describe()


async def test_a_model_that_is_loaded_again_is_waited_for(messages):
    async with eight_at_once() as server, connected(server) as client:
        server.model_is_there = False
        request = asyncio.create_task(each_alone(client))
        await messages.arrived.wait()
        server.model_is_there = True
        assert await request == [*range(8)]
    assert "status 404" in messages.lines[0]
    assert "'captioner' built and loaded" in messages.lines[0]


async def test_a_key_file_that_has_changed_is_used_and_nothing_is_lost(messages, tmp_path):
    key_file = write_key_file(tmp_path / "key_file.json", "old")
    async with (
        eight_at_once(key="old") as server,
        connected(server, credentials=Credentials(key_file)) as client,
    ):
        server.key = "new"
        write_key_file(key_file, "new")
        assert await each_alone(client) == [*range(8)]
    assert messages.lines == []
    assert len(server.received) == 8


async def test_without_a_new_key_the_server_is_left_out_until_the_key_file_changes(messages, tmp_path):
    key_file = write_key_file(tmp_path / "key_file.json", "old")
    async with (
        FakeTorchServe(key="old") as server,
        connected(server, credentials=Credentials(key_file)) as client,
    ):
        server.key = "new"
        request = asyncio.create_task(client.caption(FRAMES))
        await messages.arrived.wait()
        write_key_file(key_file, "new")
        assert frame_numbers(await request) == [*range(8)]
    waiting, back = messages.lines
    assert "status 400: Token Authorization failed" in waiting
    assert "--key-file" in waiting
    assert back.endswith("answers again")


async def test_a_wrong_key_is_an_error_when_the_run_starts(messages, tmp_path):
    credentials = Credentials(write_key_file(tmp_path / "key_file.json", "old"))
    async with (
        FakeTorchServe(key="new") as server,
        CaptionClient([Server(server.url, credentials)], "captioner") as client,
    ):
        with pytest.raises(AccessRefused, match="keys expire, and a restart makes new ones"):
            await client.describe()


async def test_a_busy_server_is_asked_again_for_its_description():
    async with FakeTorchServe() as server:
        server.refusals = [503, 500, 503]
        async with connected(server) as client:
            assert await client.describe() == DESCRIPTION
        assert server.described.qsize() == 5


async def test_a_description_of_several_servers_has_all_workers_and_the_smallest_limits():
    small = replace(DESCRIPTION, workers=1, max_frames=64, max_side=8192, device_batch=16)
    large = replace(DESCRIPTION, workers=4, max_frames=512, max_side=4096, response_seconds=300)
    async with (
        FakeTorchServe(description=small) as one,
        FakeTorchServe(description=large) as other,
        connected(one, other) as client,
    ):
        described = await client.describe()
    assert (described.workers, described.max_frames, described.max_side) == (5, 64, 4096)


async def test_servers_that_serve_different_models_are_refused():
    async with FakeTorchServe() as one, FakeTorchServe(description=OTHER_MODEL) as other:
        with pytest.raises(UsageError, match="expected the same model on all, got a/b 123 and a/other 123"):
            async with connected(one, other):
                pass


async def test_the_server_with_fewer_requests_for_its_workers_gets_the_next():
    gate = Gate()
    async with (
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=1)) as small,
        FakeTorchServe(gate, description=replace(DESCRIPTION, workers=3)) as large,
        connected(small, large) as client,
    ):
        request = asyncio.create_task(each_alone(client))
        for server, share in ((small, 2), (large, 6)):
            for _ in range(share):
                await server.arrivals.get()
        gate.open.set()
        assert await request == [*range(8)]
    assert (len(small.received), len(large.received)) == (2, 6)


async def test_when_one_server_goes_away_the_other_answers_what_it_had(messages):
    gate = Gate()
    async with (
        eight_at_once(gate) as one,
        eight_at_once(gate) as other,
        connected(one, other) as client,
    ):
        request = asyncio.create_task(each_alone(client))
        for server in (one, other):
            for _ in range(4):
                await server.arrivals.get()
        await one.stop()
        gate.open.set()
        assert await request == [*range(8)]
        assert len(other.received) == 8
    assert messages.lines[0].startswith(f"waiting for a server: {one.url}")


async def test_a_server_that_is_not_there_at_the_start_is_used_when_it_comes(messages):
    async with eight_at_once() as one, eight_at_once() as other:
        await other.stop()
        async with connected(one, other) as client:
            assert len(messages.lines) == 1
            assert await each_alone(client) == [*range(8)]
            assert len(one.received) == 8
            messages.arrived.clear()
            await other.start()
            await messages.arrived.wait()
            assert await each_alone(client) == [*range(8)]
    assert len(other.received) == 4


async def test_a_server_that_comes_back_with_another_model_is_not_used(messages):
    async with eight_at_once() as one, eight_at_once() as other, connected(one, other) as client:
        await other.stop()
        other.description = OTHER_MODEL
        assert await each_alone(client) == [*range(8)]
        await other.start()
        for _ in range(3):  # at the start, and two probes: when the second comes, the first has been judged
            await other.described.get()
        assert await each_alone(client) == [*range(8)]
        assert other.received == []
        messages.arrived.clear()
        other.description = replace(DESCRIPTION, workers=28, max_frames=1)  # the same model
        await messages.arrived.wait()
        assert await each_alone(client) == [*range(8)]
        assert len(other.received) == 7


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_that_refuses_everything_at_once_does_not_draw_all_requests(status):
    arrived = []

    async def refuse(_):
        return worker_died(status)

    async def hold_until_all_are_there(request):
        arrived.append(request)
        if len(arrived) == 8:
            gate.set()
        await gate.wait()
        return await captions(request)

    gate = asyncio.Event()
    async with (
        eight_at_once(refuse) as broken,
        eight_at_once(hold_until_all_are_there) as sound,
        connected(broken, sound) as client,
    ):
        assert await each_alone(client) == [*range(8)]
    assert len(broken.received) == 4


async def test_requests_that_start_while_the_last_server_goes_away_wait_for_it():
    async def break_some(request):
        if len(server.received) % 3 == 0:
            raise Broken
        return await captions(request)

    async def one_after_the_other(client: CaptionClient) -> list[int | str]:
        return [frame_numbers(await client.caption(FRAMES[k : k + 1]))[0] for k in range(8)]

    async with FakeTorchServe(break_some) as server, connected(server) as client:
        for result in await asyncio.gather(*(one_after_the_other(client) for _ in range(20))):
            assert result == [*range(8)]


async def test_answers_of_another_model_are_not_taken_for_the_first_ones(messages):
    async def answer(_):
        identity = server.description.identity
        texts = ["one", "two"] if identity == DESCRIPTION.identity else ["three", "four"]
        captions = [FrameCaption(text).to_json() for text in texts]
        return web.json_response(captions, headers={IDENTITY_HEADER: identity})

    async with FakeTorchServe(answer) as server, connected(server) as client:
        assert await client.caption(FRAMES[:2]) == [FrameCaption("one"), FrameCaption("two")]
        server.description = OTHER_MODEL
        request = asyncio.create_task(client.caption(FRAMES[:2]))
        await messages.arrived.wait()
        server.description = replace(DESCRIPTION, workers=2)  # the same model again
        assert await request == [FrameCaption("one"), FrameCaption("two")]
    assert "another model answers there now" in messages.lines[0]


async def test_a_worker_that_died_is_what_is_waited_for_until_there_is_an_answer():
    asked: asyncio.Queue[str | None] = asyncio.Queue()

    async def answer(request):
        asked.put_nowait(client.waiting_for)
        return await captions(request) if asked.qsize() == 3 else worker_died(500 if asked.qsize() == 1 else 503)

    async with FakeTorchServe(answer) as server, connected(server) as client:
        await client.caption(FRAMES)
        assert client.waiting_for is None
    assert asked.get_nowait() is None
    for _ in range(2):
        assert asked.get_nowait().startswith("a worker died, and there was no answer since (status 500")


async def test_after_stop_waiting_a_request_that_waits_for_a_server_is_an_error_at_once(messages):
    async with FakeTorchServe() as server, connected(server) as client:
        await server.stop()
        request = asyncio.create_task(client.caption(FRAMES))
        await messages.arrived.wait()
        assert server.url in client.waiting_for
        client.stop_waiting()
        with pytest.raises(ServerUnreachable, match="no server can be used"):
            await request
        await server.start()


async def test_an_interrupt_ends_a_run_that_waits_for_a_server(media, tmp_path):
    async def hang(_):
        return await asyncio.Event().wait()

    async with FakeTorchServe(hang) as server:
        command = ["caption", str(media / "old.avi"), "--out", str(tmp_path), "--server", server.url]
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reelscribe.cli", *command, stderr=asyncio.subprocess.PIPE
        )
        assert run.stderr
        await server.arrivals.get()
        await server.stop()
        while b"waiting for a server" not in await run.stderr.readline():
            pass
        run.send_signal(signal.SIGINT)
        output = await asyncio.wait_for(run.stderr.read(), PATIENCE)
        assert await run.wait() == 130
        await server.start()
    assert b"run the same command again" in output
