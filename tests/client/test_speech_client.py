"""A speech model's client. What it shares with a captioner's is tested in test_models.py and test_outages.py."""

from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import NothingAnswered, RequestRefused, ServerError, UsageError
from support.fake_torchserve import DESCRIPTION, SPEECH, FakeTorchServe, refused, transcript, transcripts, worker_died
from support.sending import connected

RATE = 16_000
CHUNKS = [np.full(1000 + name, name, np.int16) for name in range(1, 9)]
"""Eight chunks of different lengths; each sample of chunk 7 is 7."""


def speech_server(answer=transcripts, **changes) -> FakeTorchServe:
    return FakeTorchServe(answer, description=replace(SPEECH, **changes))


def chunk_numbers(result) -> list[int | str]:
    """The number of each chunk that was transcribed, and the error's message of each other one."""
    return [str(what) if isinstance(what, RequestRefused) else int(what.text.removeprefix("chunk ")) for what in result]


async def test_chunks_arrive_whole_with_their_rate_and_the_options():
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


async def test_options_that_are_not_given_are_left_to_the_model():
    async with speech_server() as server, connected(server) as client:
        await client.transcribe(CHUNKS, RATE)
        await client.transcribe(CHUNKS, RATE, TranscriptionOptions())
    nothing, defaults = (set(request.tree) - {"chunks", "sample_rate"} for request in server.received)
    assert nothing == set()
    assert "language" not in defaults


async def test_each_chunk_gets_its_own_transcript():
    async with speech_server() as server, connected(server) as client:
        assert await client.transcribe(CHUNKS, RATE) == [transcript(name) for name in range(1, 9)]


async def test_a_failure_that_may_pass_is_retried():
    steps = [500, 503, 504]

    async def answer(request):
        return worker_died(steps.pop()) if steps else await transcripts(request)

    async with speech_server(answer) as server, connected(server) as client:
        assert chunk_numbers(await client.transcribe(CHUNKS, RATE)) == [*range(1, 9)]
    assert [request.names() for request in server.received] == [[*range(1, 9)]] * 4


def deadly(*bad: int):
    """Kill the worker of a request that holds one of the chunks `bad`."""

    async def answer(request):
        return worker_died(500) if set(bad) & set(request.names()) else await transcripts(request)

    return answer


async def test_a_chunk_that_kills_workers_is_found_and_its_neighbours_are_transcribed():
    async with speech_server(deadly(6)) as server, connected(server) as client:
        result = await client.transcribe(CHUNKS, RATE)
    assert chunk_numbers(result) == [1, 2, 3, 4, 5, "status 500: no luck", 7, 8]
    halves = [8, 8, 4, 4, 4, 2, 2, 1, 1, 1, 1, 2]  # and a second of silence, to see that it is not the server
    assert [len(request.names()) for request in server.received] == halves


async def test_a_server_whose_workers_die_of_everything_ends_the_run():
    async with speech_server(deadly(*range(9))) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=r"a request failed .*, and then a second of silence too .*log"):
            await client.transcribe(CHUNKS, RATE)


async def test_what_the_handler_refuses_is_not_retried_and_comes_back_for_each_chunk():
    async def answer(request):
        return await transcripts(request) if request.names() == [0] else refused(422, "SpeechError", "no good")

    async with speech_server(answer) as server, connected(server) as client:
        result = await client.transcribe(CHUNKS, 8000, TranscriptionOptions("fr"))
    assert chunk_numbers(result) == ["status 422: no good"] * 8
    _, probe = server.received
    (silence,) = probe.tree["chunks"]
    assert (silence.shape, silence.dtype, silence.any()) == ((8000,), np.int16, False)
    assert (probe.tree["sample_rate"], probe.tree["language"]) == (
        8000,
        "fr",
    )  # the same options as those of the refused request


async def test_a_model_that_refuses_the_options_ends_the_run():
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
async def test_an_answer_without_one_transcript_for_each_chunk_is_an_error(value):
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


async def test_servers_with_different_settings_are_refused():
    async with speech_server() as one, speech_server(generation={"num_beams": 5}) as two:
        with pytest.raises(UsageError, match="expected the same model on all"):
            async with connected(one, two):
                pass


async def test_a_captioner_is_refused_as_a_speech_model():
    async with speech_server() as server:
        server.description = DESCRIPTION
        with pytest.raises(ServerError, match="expected a speech model, got the caption model"):
            async with connected(server):
                pass
