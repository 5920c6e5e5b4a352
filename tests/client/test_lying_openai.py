"""A server with OpenAI's API that lies: the same as for TorchServe, as far as its answers are others."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient, SpeechClient
from reelscribe.client.openai_endpoint import MOST_RETRY_SECONDS
from reelscribe.contract.clips import Clip
from reelscribe.errors import AccessRefused, RequestRefused, ServerError
from support.fake_openai import chat
from support.lying_server import LyingOpenAI, as_json, response, then_close, write_without_end
from support.memory import peak_memory
from support.patience import PATIENCE
from support.sending import no_waiting

CLIP = Clip(np.zeros((2, 32, 64, 3), np.uint8), [0.0, 0.5])
BOMB = gzip.compress(bytes(2**26), compresslevel=1)
HUGE = "9" * 400
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def connected(server, client_type=ClipClient, **options):
    with no_waiting():
        async with asyncio.timeout(PATIENCE), client_type([Server(server.url)], "m", **options) as client:
            await client.describe()
            yield client


def choice(**fields):
    """An answer whose only choice has other fields."""
    return as_json({"choices": [{**chat()["choices"][0], **fields}]})


def usage(tokens):
    """An answer that counts its tokens with the text of some JSON."""
    return response(json.dumps(chat()).replace('"completion_tokens": 2', f'"completion_tokens": {tokens}'))


def logprobs(value):
    """An answer with the text of some JSON as the log-probability of a token."""
    return response(json.dumps(chat()).replace("-0.5", value))


LIES = [
    pytest.param(response("<html>hello"), "expected JSON, got '<html>hello'", id="no JSON"),
    pytest.param(response(b"[\xff]"), "expected JSON", id="no UTF-8"),
    pytest.param(response("[" * 100_000), "expected JSON", id="nested too deeply"),
    pytest.param(logprobs("NaN"), "expected JSON", id="not a number"),
    pytest.param(logprobs("-1e999"), "logprob: expected", id="infinite"),
    pytest.param(logprobs(f"-{HUGE}"), "logprob: expected", id="huge"),
    pytest.param(logprobs("true"), "logprob: expected", id="true"),
    pytest.param(logprobs("0.5"), "logprob: expected", id="a probability above 1"),
    pytest.param(usage("-1"), "completion_tokens: expected", id="tokens below 0"),
    pytest.param(usage("2.5"), "completion_tokens: expected", id="half a token"),
    pytest.param(usage('"2"'), "completion_tokens: expected", id="tokens as text"),
    pytest.param(as_json([chat()]), "expected an object", id="a list"),
    pytest.param(as_json(chat() | {"choices": chat()["choices"] * 2}), "choices: expected one, got 2", id="two"),
    pytest.param(as_json(chat() | {"choices": {"0": 1}}), "choices: expected", id="choices in an object"),
    pytest.param(choice(message=["a"]), "message: expected an object", id="a message that is a list"),
    pytest.param(choice(message={"content": ["a"]}), "content: expected", id="text in a list"),
    pytest.param(response("", length=10**10), "at most 16 MiB", id="content length of 10 GB"),
    pytest.param(response(BOMB, "Content-Encoding: gzip"), "not compressed, got .*'gzip'", id="gzip bomb"),
    pytest.param(
        partial(write_without_end, head=CHUNKED, block=b"10000\r\n" + b"x" * 2**16 + b"\r\n"),
        "at most 16 MiB",
        id="text without end",
    ),
]


@pytest.mark.parametrize(("lie", "words"), LIES)
async def test_an_answer_that_is_none_ends_the_request_with_one_line(lie, words):
    async with LyingOpenAI(lie) as server, connected(server) as client:
        with peak_memory() as peak, pytest.raises(ServerError, match=words) as error:
            await client.describe_clips([CLIP])
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600
    assert peak() < 40 * 2**20
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "segment",
    [
        *({"start": 0.0, "text": "a"}, {"start": "0", "end": 1.0, "text": "a"}, {"start": 0, "end": 1, "text": None}),
        *(7, {"start": 0.0, "end": 1.0, "text": "a", "avg_logprob": "high"}),
    ],
)
async def test_every_field_of_a_transcript_is_checked(segment):
    lie = as_json({"text": "a", "segments": [segment]})
    async with LyingOpenAI(lie) as server, connected(server, SpeechClient) as client:
        with pytest.raises(ServerError, match="answer of openai"):
            await client.transcribe([np.zeros(16_000, np.int16)], 16_000)


async def test_times_of_segments_lie_within_their_chunk():
    segments = [{"start": -5, "end": 1e9, "text": "a"}, {"start": 9, "end": 3, "text": "b"}]
    lie = as_json({"text": "a b", "segments": segments})
    async with LyingOpenAI(lie) as server, connected(server, SpeechClient) as client:
        (transcript,) = await client.transcribe([np.zeros(16_000, np.int16)], 16_000)
    assert [(each.start, each.end) for each in transcript.segments] == [(0.0, 1.0), (1.0, 1.0)]


@pytest.mark.parametrize("length", [10_000, 9])
async def test_a_part_of_an_answer_is_none(length):
    lie = partial(then_close, content=response(json.dumps(chat()), length=length))
    async with LyingOpenAI(lie) as server, connected(server) as client:
        client.stop_waiting()
        with pytest.raises(ServerError, match=r"is the server running|expected JSON"):
            await client.describe_clips([CLIP])


@pytest.mark.parametrize("status", ["301 Moved", "307 Temporary Redirect", "308 Permanent Redirect"])
async def test_the_key_does_not_follow_a_redirection(status):
    async with LyingOpenAI(as_json(chat())) as other:
        lie = response("", f"Location: {other.url.removeprefix('openai+')}", status=status)
        async with LyingOpenAI(lie) as server, connected(server) as client:
            with pytest.raises(AccessRefused, match=r"redirects to 'http://127.0.0.1:.*, which is not followed"):
                await client.describe_clips([CLIP])
        assert other.heads == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (as_json({"data": [{"id": "m" * 2**24}]}), "at most 16 MiB"),
        (as_json({"data": [{"id": f"\x1b[2J{k}"} for k in range(10**4)]}), r"expected a model 'm', got \\x1b\[2J0"),
        (as_json({"data": [{"id": 7}]}), "id: expected"),
        (as_json({"data": {"id": "m"}}), "data: expected"),
        (as_json([]), "answer of openai"),
        (response("<html>"), "expected JSON"),
    ],
)
async def test_a_list_of_models_that_is_none_ends_the_command(told, words):
    async with LyingOpenAI(b"", models=told) as server:
        with pytest.raises(ServerError, match=words) as error:
            async with connected(server):
                pass
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("told", [b'{"version": 7}', b"[]", b"<html>", b"\x1b[2J", b"x" * 2**21])
async def test_a_version_and_metrics_that_are_none_are_not_known(told):
    async with LyingOpenAI(as_json(chat()), version=response(told), metrics=response(told)) as server:
        answers = []
        async with connected(server) as client:
            client.on_answer = answers.append
            await client.describe_clips([CLIP])
    assert [answer.queued for answer in answers] == [None]


@pytest.mark.parametrize("seconds", ["1e99", "inf", "nan", "-5", "86400", "Wed, 21 Oct 2065 07:28:00 GMT", "\x0f"])
@pytest.mark.parametrize("status", ["429 Too Many", "503 Busy"])
async def test_no_server_makes_a_run_wait_for_long(seconds, status):
    lie = response("slow", f"Retry-After: {seconds}", status=status)
    async with LyingOpenAI(lie) as server, connected(server, outage_seconds=0.05) as client:
        with pytest.raises(RequestRefused) as refusal:
            await client.describe_clips([CLIP])
    assert refusal.value.retry_after is None or refusal.value.retry_after <= MOST_RETRY_SECONDS


async def test_a_refusal_is_shown_in_few_printable_characters():
    lie = response(json.dumps({"error": {"message": "\x1b[2J" * 10**5}}), status="400 No")
    async with LyingOpenAI(lie) as server, connected(server) as client:
        with pytest.raises(ServerError) as error:
            await client.describe_clips([CLIP])
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 5000
