"""Runs that tell speakers apart: records, exports, interruptions, failures, and answers that are none."""

import json
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe._values import SavedRecord
from reelscribe.contract.voices import SpeakerBounds
from reelscribe.errors import ServerError
from reelscribe.export.formats import export
from reelscribe.results.annotations import NAME
from support.audio import RATE
from support.fake_torchserve import refused
from support.speaker_models import voices
from support.speaker_runs import answers, speaker_server, tell_apart, voices_of, write_talk

TURNS = [
    {"start": 0.0, "end": 6.0, "speaker": "speaker 1"},
    {"start": 6.0, "end": 11.0, "speaker": "speaker 2"},
    {"start": 11.0, "end": 16.0, "speaker": "speaker 1"},
]
"""Who speaks in the talk."""


@pytest.fixture
def talk(tmp_path) -> Path:
    return write_talk(tmp_path / "talk.flac", (1, 6), (0, 5), (1, 5))


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def record_in(out: Path) -> dict:
    return json.loads((out / NAME).read_text())


async def test_the_record_has_the_turns_and_exports_show_them(talk, out):
    async with speaker_server() as server:
        summary = await tell_apart(out, [talk], server)
    record = record_in(out)
    assert (record["status"], record["turns"], record["audio"]["seconds"]) == ("ok", TURNS, 16.0)
    assert SavedRecord.from_line((out / NAME).read_bytes()).to_dict() == record
    assert summary.snapshot.tracks[0].done == 16
    settings = json.loads((out / "run.json").read_text())["settings"][record["speaker_settings"]]["settings"]
    assert (settings["speakers"], settings["clustering"], settings["chunk_seconds"]) == ("auto", "1", 4.0)
    (out / "speakers.toml").write_text('[speakers]\n"speaker 2" = "Ms Okafor"\n')
    export(out / NAME, out, ["rttm"])
    lines = (out / "rttm" / "talk.flac.rttm").read_text().splitlines()
    assert [[*line.split()[3:5], line.split()[7]] for line in lines] == [
        ["0.000", "6.000", "speaker_1"],
        ["6.000", "5.000", "Ms_Okafor"],
        ["11.000", "5.000", "speaker_1"],
    ]


async def test_the_number_of_speakers_makes_another_job(talk, out):
    async with speaker_server() as server:
        await tell_apart(out, [talk], server)
        await tell_apart(out, [talk], server, speakers=SpeakerBounds(1, 1))
    assert {turn["speaker"] for turn in record_in(out)["turns"]} == {"speaker 1"}


async def test_an_interrupted_run_continues_to_the_same_bytes(talk, out, tmp_path):
    async with speaker_server() as server:
        await tell_apart(tmp_path / "quiet", [talk], server)
    count = 0

    async def fails_at_third(request):
        nonlocal count
        count += 1
        return web.json_response("no voices") if count == 3 else await answers(request)

    async with speaker_server(fails_at_third) as server:
        with pytest.raises(ServerError):
            await tell_apart(out, [talk], server)
    async with speaker_server() as server:
        await tell_apart(out, [talk], server)
        assert 0 < len(server.received) < 4
    assert (out / NAME).read_bytes() == (tmp_path / "quiet" / NAME).read_bytes()


async def test_a_chunk_that_fails_is_tried_again_with_retry_failed(talk, out):
    async def refuse_two_voices(request):
        chunk = request.tree["chunks"][0]
        alike = voices_of(chunk[:RATE]) == voices_of(chunk[-RATE:])
        return await answers(request) if alike else refused(422, "SpeechError", "two voices")

    async with speaker_server(refuse_two_voices) as server:
        await tell_apart(out, [talk], server)
    assert record_in(out)["error"]["message"] == "2 chunks of audio have no voices: status 422: two voices"
    async with speaker_server() as server:
        await tell_apart(out, [talk], server, retry_failed=True)
    assert (record_in(out)["status"], record_in(out)["turns"]) == ("ok", TURNS)


@pytest.mark.parametrize("answer", [{"times": [0, 1], "embeddings": "AAA="}, {"times": [1]}, None])
async def test_answers_that_are_none_end_the_run(talk, out, answer):
    async def lie(request):
        return web.json_response([answer for _ in request.tree["chunks"]])

    async with speaker_server(lie) as server:
        with pytest.raises(ServerError):
            await tell_apart(out, [talk], server)


async def test_voices_beyond_their_chunk_are_its_failure(talk, out):
    async def reach_beyond(request):
        heard = [voices_of(chunk) for chunk in request.tree["chunks"]]
        return web.json_response([{**each, "times": [*each["times"][:-1], 4.5]} for each in heard])

    async with speaker_server(reach_beyond) as server:
        await tell_apart(out, [talk], server)
    why = "speaker model: expected times within the 4 s of the chunk, got 4.5"
    assert record_in(out)["error"]["message"] == f"4 chunks of audio have no voices: {why}"
    assert record_in(out)["turns"] == []


async def test_more_voices_than_anybody_has_are_the_failure_of_their_chunk(talk, out):
    async def crowd(request):
        return web.json_response([voices(*[0] * 161, seconds=0.001).to_json() for _ in request.tree["chunks"]])

    async with speaker_server(crowd) as server:
        await tell_apart(out, [talk], server)
    why = "speaker model: expected at most 160 parts in the chunk, got 161"
    assert record_in(out)["error"]["message"] == f"4 chunks of audio have no voices: {why}"
    assert record_in(out)["turns"] == []


async def test_where_the_model_tells_speakers_apart_turns_overlap(talk, out):
    async def two_at_once(request):
        """Speaker 1 speaks, but for a breath, for the whole chunk of 4 s, and speaker 0 for a second of it."""
        heard = {**voices(1, 0, 1).to_json(), "times": [0, 2, 1, 2.2, 2.3, 4], "speakers": [1, 0, 1]}
        return web.json_response([heard for _ in request.tree["chunks"]])

    async with speaker_server(two_at_once) as server:
        await tell_apart(out, [talk], server)
    others = [{"start": at + 1.0, "end": at + 2.2, "speaker": "speaker 2"} for at in (0, 4, 8, 12)]
    assert record_in(out)["turns"] == [{"start": 0.0, "end": 16.0, "speaker": "speaker 1"}, *others]


async def test_who_goes_on_after_somebody_else_has_a_turn_of_their_own(talk, out):
    async def interrupted(request):
        times = [0, 1.9, 2, 2.2, 2.3, 4, 2.8, 4]
        heard = {**voices(0, 1, 0, 1).to_json(), "times": times, "speakers": [0, 1, 0, 1]}
        return web.json_response([heard for _ in request.tree["chunks"]])

    async with speaker_server(interrupted) as server:
        await tell_apart(out, [talk], server)
    turns = [(turn["start"], turn["end"], turn["speaker"]) for turn in record_in(out)["turns"]]
    assert turns[:3] == [(0, 1.9, "speaker 1"), (2, 2.2, "speaker 2"), (2.3, 5.9, "speaker 1")]
    assert turns[3] == (2.8, 4.0, "speaker 2")
