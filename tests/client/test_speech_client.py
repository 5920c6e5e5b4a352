"""Sound in, words out; what is the same for frames and for sound is in test_client.py and test_client_outages.py."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import NothingAnswered, RequestRefused, ServerError, UsageError
from support.fake_torchserve import DESCRIPTION, SPEECH, FakeTorchServe, refused, transcript, transcripts, worker_died
from support.sending import no_waiting

RATE = 16_000
CHUNKS = [np.full(1000 + name, name, np.int16) for name in range(1, 9)]
"""Chunk 7 is all sevens, and no two are equally long."""


def speech_server(answer=transcripts, **changes) -> FakeTorchServe:
    return FakeTorchServe(answer, description=replace(SPEECH, **changes))


@asynccontextmanager
async def connected(*servers: FakeTorchServe, **options):
    """A client that knows what the servers serve. A test that hangs is cancelled."""
    limit = asyncio.get_running_loop().call_later(60, asyncio.current_task().cancel)
    with no_waiting():
        async with SpeechClient([Server(server.url) for server in servers], "speech", **options) as client:
            await client.describe()
            yield client
    limit.cancel()


def told(result) -> list[int | str]:
    """The number of each chunk that was heard, and for others the reason."""
    return [str(what) if isinstance(what, RequestRefused) else int(what.text.removeprefix("chunk ")) for what in result]


async def test_chunks_arrive_whole_with_their_rate_and_what_is_asked():
    noise = np.random.default_rng(0).integers(-32768, 32768, 200_000).astype(np.int16)
    chunks = [noise, noise[:1], noise[5:80_000:2]]
    async with speech_server() as server, connected(server) as client:
        assert len(await client.transcribe(chunks, RATE, TranscriptionOptions("fr", "translate", word_times=True))) == 3
    (request,) = server.received
    tree = request.tree
    arrived = tree.pop("chunks")
    assert tree == {"sample_rate": RATE, "language": "fr", "task": "translate", "word_times": True}
    assert {chunk.dtype for chunk in arrived} == {np.dtype(np.int16)}
    assert len(arrived) == 3
    assert all(map(np.array_equal, arrived, chunks))


async def test_what_is_not_asked_is_left_to_the_model():
    async with speech_server() as server, connected(server) as client:
        await client.transcribe(CHUNKS, RATE)
        await client.transcribe(CHUNKS, RATE, TranscriptionOptions())
    nothing, defaults = (set(request.tree) - {"chunks", "sample_rate"} for request in server.received)
    assert nothing == set()
    assert "language" not in defaults


async def test_each_chunk_gets_its_own_transcript():
    async with speech_server() as server, connected(server) as client:
        assert await client.transcribe(CHUNKS, RATE) == [transcript(name) for name in range(1, 9)]


async def test_what_passes_is_tried_again():
    steps = [500, 503, 504]

    async def answer(request):
        return worker_died(steps.pop()) if steps else await transcripts(request)

    async with speech_server(answer) as server, connected(server) as client:
        assert told(await client.transcribe(CHUNKS, RATE)) == [*range(1, 9)]
    assert [request.names() for request in server.received] == [[*range(1, 9)]] * 4


def deadly(*bad: int):
    """Workers die of some chunks."""

    async def answer(request):
        return worker_died(500) if set(bad) & set(request.names()) else await transcripts(request)

    return answer


async def test_a_chunk_that_kills_workers_is_found_and_its_neighbours_are_heard():
    async with speech_server(deadly(6)) as server, connected(server) as client:
        result = await client.transcribe(CHUNKS, RATE)
    assert told(result) == [1, 2, 3, 4, 5, "status 500: no luck", 7, 8]
    halves = [8, 8, 4, 4, 4, 2, 2, 1, 1, 1, 1, 2]  # and a second of silence, to see that it is not the server
    assert [len(request.names()) for request in server.received] == halves


async def test_a_server_whose_workers_die_of_everything_ends_the_run():
    async with speech_server(deadly(*range(9))) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed .*, and then a second of silence too .*log"):
            await client.transcribe(CHUNKS, RATE)


async def test_what_our_handler_refuses_comes_back_for_each_chunk_at_once():
    async def answer(request):
        return await transcripts(request) if request.names() == [0] else refused(422, "SpeechError", "no good")

    async with speech_server(answer) as server, connected(server) as client:
        result = await client.transcribe(CHUNKS, 8000, TranscriptionOptions("fr"))
    assert told(result) == ["status 422: no good"] * 8
    _, probe = server.received
    (silence,) = probe.tree["chunks"]
    assert (silence.shape, silence.dtype, silence.any()) == ((8000,), np.int16, False)
    assert (probe.tree["sample_rate"], probe.tree["language"]) == (8000, "fr")  # asked just as the refused one was


async def test_a_model_that_refuses_what_is_asked_ends_the_run():
    async def answer(_):
        return refused(422, "SpeechError", "language: expected en")

    async with speech_server(answer) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"422: language: expected en\), and then a second of silence too"):
            await client.transcribe(CHUNKS, RATE, TranscriptionOptions("xx"))


GOOD = transcript(1).to_json()
SEGMENT = GOOD["segments"][0]


@pytest.mark.parametrize(
    "value",
    [
        *([], None, "words", {}, GOOD, [GOOD], [GOOD] * 9, ["chunk"] * 8, [None] * 8, [{}] * 8),
        [{**GOOD, "text": None}] * 8,
        [{**GOOD, "segments": None}] * 8,
        [{**GOOD, "segments": [{**SEGMENT, "start": "soon"}]}] * 8,
        [{**GOOD, "segments": [{**SEGMENT, "words": [{"text": "chunk"}]}]}] * 8,
        [{**GOOD, "more": 1}] * 8,
    ],
    ids=str,
)
async def test_an_answer_that_is_not_one_transcript_a_chunk_is_an_error(value):
    async def answer(_):
        return web.json_response(value)

    async with speech_server(answer) as server, connected(server) as client:
        with pytest.raises(ServerError, match=rf"answer of {server.url}/predictions/speech: .* got "):
            await client.transcribe(CHUNKS, RATE)
    assert len(server.received) == 1


async def test_the_description_is_that_of_the_model_with_the_workers_of_all_servers():
    servers = speech_server(workers=2), speech_server(workers=3, max_chunks=4)
    async with servers[0], servers[1], connected(*servers) as client:
        assert await client.describe() == replace(SPEECH, workers=5, max_chunks=4)


async def test_servers_that_would_hear_differently_are_refused():
    async with speech_server() as one, speech_server(generation={"num_beams": 5}) as two:
        with pytest.raises(UsageError, match="expected the same model on all"):
            async with connected(one, two):
                pass


async def test_a_captioner_is_told_from_a_speech_model():
    async with speech_server() as server:
        server.description = DESCRIPTION
        with pytest.raises(ServerError, match=r"expected the description of a speech handler.* one for speech\?"):
            async with connected(server):
                pass
