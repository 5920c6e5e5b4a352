"""A server that lies: the client ends or waits with a clear word, in bounded memory, and believes no wrong answer."""

import asyncio
import gzip
import json
import re
from dataclasses import replace
from functools import partial

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.contract.clips import Clip
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import AccessRefused, NothingAnswered, ServerError, ServerUnreachable
from support.fake_torchserve import CLIPS, SPEECH, description_of, transcript
from support.lying_server import LyingServer, as_json, response, then_close, write_without_end
from support.memory import peak_memory
from support.patience import PATIENCE, LoopClock
from support.sending import FRAMES, connected, frame_numbers

GOOD = [{"text": f"frame {k}", "avg_logprob": -0.25} for k in range(8)]
CHUNK = transcript(1).to_json()
SEGMENT = CHUNK["segments"][0]
WORD = {"start": 0.0, "end": 1.0, "text": "a", "probability": 0.5}
CLIP = description_of(1).to_json()
BOMB = gzip.compress(bytes(2**26), compresslevel=1)
HUGE = 10**400
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def json_with(item: str) -> bytes:
    """An answer of eight captions, of which the last one is the text of some JSON."""
    return response(f"[{', '.join([json.dumps(GOOD[0])] * 7 + [item])}]")


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        pytest.param(response("<html>hello"), "expected JSON, got '<html>hello'", id="no JSON"),
        pytest.param(response(b"[\xff]"), "expected JSON", id="no UTF-8"),
        pytest.param(response("[" * 100_000), "expected JSON", id="nested too deeply"),
        pytest.param(json_with('{"text": "a", "avg_logprob": NaN}'), "expected JSON", id="not a number"),
        pytest.param(json_with('{"text": "a", "avg_logprob": -1e999}'), "avg_logprob: expected", id="infinite"),
        pytest.param(json_with(f'{{"text": "a", "avg_logprob": -{HUGE}}}'), "avg_logprob: expected", id="huge"),
        pytest.param(json_with(f'{{"text": "a", "avg_logprob": {"9" * 9999}}}'), "expected JSON", id="long number"),
        pytest.param(json_with('{"text": "a", "avg_logprob": true}'), "avg_logprob: expected", id="true"),
        pytest.param(json_with('{"text": ["a"], "avg_logprob": 0}'), "a caption: expected", id="text in a list"),
        pytest.param(as_json(GOOD[:7]), "expected a list of 8 captions", id="one too few"),
        pytest.param(as_json([*GOOD, GOOD[0]]), "expected a list of 8 captions", id="one too many"),
        pytest.param(as_json({"0": GOOD}), "expected a list of 8 captions", id="an object"),
        pytest.param(response("", length=10**10), "at most 16 MiB", id="content length of 10 GB"),
        pytest.param(response(BOMB, "Content-Encoding: gzip"), "not compressed, got .*'gzip'", id="gzip bomb"),
        pytest.param(response(b"x", "Content-Encoding: zip"), "not compressed, got .*'zip'", id="other compression"),
    ],
)
async def test_an_answer_that_is_none_ends_the_request_with_one_line(lie, words):
    async with LyingServer(lie) as server, connected(server) as client:
        with peak_memory() as peak, pytest.raises(ServerError, match=words) as error:
            await client.caption(FRAMES)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600
    assert peak() < 2**20
    assert len(server.heads) == 1


@pytest.mark.parametrize("status", ["200 OK", "400 No", "503 Busy"])
async def test_a_gigabyte_of_text_is_read_up_to_16_mib(status):
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    endless = partial(write_without_end, head=head, block=b"10000\r\n" + b"x" * 2**16 + b"\r\n")
    async with LyingServer(endless) as server, connected(server) as client:
        with peak_memory() as peak, pytest.raises(ServerError, match="at most 16 MiB, got a larger one"):
            await client.caption(FRAMES)
    assert peak() < 24 * 2**20


@pytest.mark.parametrize(
    ("head", "block"),
    [
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4096, id="answers before the answer"),
        pytest.param(CHUNKED + b"1;", b"x" * 2**16, id="a chunk extension without end"),
        pytest.param(CHUNKED, (b"1;" + b"x" * 2**12 + b"\r\n \r\n") * 16, id="chunk extensions"),
        pytest.param(CHUNKED, b"1\r\n \r\n" * 2**14, id="chunks of one byte"),
        pytest.param(CHUNKED, b"0" * 2**16, id="the size of a chunk without end"),
    ],
)
async def test_what_http_puts_around_an_answer_counts_as_the_answer_does(head, block, monkeypatch):
    monkeypatch.setattr("reelscribe.client.http_session.MAX_ANSWER_BYTES", 2**20)
    endless = partial(write_without_end, head=head, block=block)
    async with LyingServer(endless) as server, connected(server) as client:
        with pytest.raises(ServerError, match="at most 1 MiB, got a larger one"):
            await client.caption(FRAMES)


async def test_a_connection_that_is_used_again_may_receive_as_much_for_each_answer(monkeypatch):
    monkeypatch.setattr("reelscribe.client.http_session.MAX_ANSWER_BYTES", 2**12)
    async with LyingServer(as_json(GOOD)) as server, connected(server) as client:
        for _ in range(20):
            assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]


async def test_headers_without_end_are_cut_off():
    endless = partial(write_without_end, head=b"HTTP/1.1 200 OK\r\n", block=b"X: " + b"x" * 2**16)
    async with LyingServer(endless) as server, connected(server) as client:
        client.stop_waiting()
        with peak_memory() as peak, pytest.raises(ServerUnreachable, match=f"{server.url}/predictions/captioner: "):
            await client.caption(FRAMES)
    assert peak() < 4 * 2**20


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(response(json.dumps(GOOD), length=10_000), id="longer than the body"),
        pytest.param(response(json.dumps(GOOD), length=99), id="shorter"),
        pytest.param(response(json.dumps(GOOD), "Content-Length: 5"), id="two"),
        pytest.param(response(json.dumps(GOOD), "Transfer-Encoding: chunked"), id="and chunked"),
        pytest.param(response(json.dumps(GOOD)).replace(b"Length: ", b"Length: -"), id="negative"),
        pytest.param(b"\x1b[2J\n\n", id="no HTTP"),
        pytest.param(b"", id="nothing"),
    ],
)
async def test_an_answer_with_another_content_length_is_none(lie):
    async with LyingServer(partial(then_close, content=lie)) as server, connected(server) as client:
        client.stop_waiting()
        with pytest.raises(ServerError, match=r"is the server running|expected JSON") as error:
            await client.caption(FRAMES)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


async def test_an_answer_of_one_byte_now_and_then_is_given_up_after_the_time_of_a_request(monkeypatch):
    async def drip(writer):
        writer.write(response("", length=1000))
        while True:
            writer.write(b" ")
            await asyncio.sleep(1)  # of the clock that the test moves

    clock = LoopClock(monkeypatch)
    async with LyingServer(drip) as server, connected(server, request_seconds=100) as client:
        client.stop_waiting()
        request = asyncio.create_task(client.caption(FRAMES))
        await server.arrivals.get()
        await clock.advance(101)
        with pytest.raises(ServerUnreachable, match="no connection or no answer in time"):
            await request


async def test_the_character_set_that_an_answer_names_is_not_used():
    lie = as_json(GOOD).replace(b"application/json", b"application/json; charset=bz2")
    async with LyingServer(lie) as server, connected(server) as client:
        assert frame_numbers(await client.caption(FRAMES)) == [*range(8)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_the_token_does_not_follow_a_redirection(status):
    other = LyingServer(as_json(GOOD))
    async with other, LyingServer(b"") as server, connected(server, credentials="secret") as client:
        where = f"Location: {other.url.replace('127.0.0.1', 'localhost')}/predictions/captioner"
        server.lie = response("", where, status=f"{status} Moved")
        with pytest.raises(AccessRefused, match=r"redirects to 'http://localhost:.*, which is not followed"):
            await client.caption(FRAMES)
    assert "Bearer secret" in server.heads[0]
    assert other.heads == []


async def test_a_client_keeps_no_cookies():
    async with LyingServer(as_json(GOOD, "Set-Cookie: id=1", "Set-Cookie: no=2")) as server:
        address = Server(server.url.replace("127.0.0.1", "localhost"))
        async with asyncio.timeout(PATIENCE), CaptionClient([address], "captioner") as client:
            await client.caption(FRAMES)
            await client.caption(FRAMES)
    assert not any("cookie" in head.lower() for head in server.heads)
    assert all("Accept-Encoding: identity" in head for head in server.heads)


async def test_a_refusal_is_shown_in_few_printable_characters():
    refusal = {"error": {"type": "FramesError", "message": "\x1b[2J\u202e" + "x" * 2**20}}
    lie = response(json.dumps(refusal), status="422 No")
    async with LyingServer(lie) as server, connected(server) as client:
        with pytest.raises(NothingAnswered, match=re.escape(r"\x1b[2J\u202exxx")) as error:
            await client.caption(FRAMES)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2500


SPEECH_LIES = {
    "language": [["en"], "xx", 7],
    "language_probability": [2, -1, "0.5", True],
    "text": [None, 7],
    "no_speech_prob": [2, -1, "0.5", True],
    "avg_logprob": [1, "x"],
    "compression_ratio": ["x", -1, HUGE],
    "temperature": [[], False],
    "segments": [None, 7, [7], [{}], {}, [{**SEGMENT, "more": 1}]],
    "start": [None, "0", True, HUGE, -HUGE],
    "end": [[], "soon", HUGE],
    "words": [
        7,
        [7],
        [{**WORD, "start": HUGE}],
        [{**WORD, "end": "x"}],
        [{**WORD, "text": 7}],
        [{**WORD, "probability": 1.5}],
        [{"text": "a"}],
    ],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name in SPEECH_LIES for value in SPEECH_LIES[name]])
async def test_every_field_of_a_transcript_is_checked(field, value):
    lie = {**CHUNK, "segments": [{**SEGMENT, field: value}]} if field in SEGMENT else {**CHUNK, field: value}
    if field in ("segments", "text", "avg_logprob"):
        lie = {**CHUNK, field: value}
    async with LyingServer(as_json([lie]), description=SPEECH) as server, connected(server) as client:
        with pytest.raises(ServerError, match=r"answer of http.*expected|answer of http.*argument"):
            await client.transcribe([FRAMES[0, 0, :, 0].astype("int16")], 16_000)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("transcribe", {**CHUNK, "translation": CHUNK}),
        ("both", CHUNK),
        ("both", {**CHUNK, "translation": {**CHUNK, "language": "xx"}}),
        ("both", {**CHUNK, "translation": {**CHUNK, "translation": CHUNK}}),
        ("both", {**CHUNK, "language": "de", "translation": CHUNK}),  # which the model knows, but nobody asked for
    ],
)
async def test_a_translation_is_the_one_that_was_asked_for(task, answer):
    knows = replace(SPEECH, languages=("en", "de"), tasks=("transcribe", "translate", "both"))
    options = TranscriptionOptions(language="en", task=task)
    async with LyingServer(as_json([answer]), description=knows) as server, connected(server) as client:
        with pytest.raises(ServerError, match=r"answer of http.*expected"):
            await client.transcribe([FRAMES[0, 0, :, 0].astype("int16")], 16_000, options)


CLIP_LIES = [("status", ["complete"]), ("status", "done"), ("text", 7), ("tokens", 1.5), ("tokens", HUGE)]


@pytest.mark.parametrize(("field", "value"), [*CLIP_LIES, ("tokens", True), ("avg_logprob", 0.5)])
async def test_every_field_of_a_description_of_a_clip_is_checked(field, value):
    async with LyingServer(as_json([{**CLIP, field: value}]), description=CLIPS) as server, connected(server) as client:
        with pytest.raises(ServerError, match=r"answer of http.*expected"):
            await client.describe_clips([Clip(FRAMES, [float(k) for k in range(8)])])
