"""Runs that make a transcript and its translation into English of the same requests."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from aiohttp import web

import reelscribe
from reelscribe import Run, Server, SpeechClient, TranscriptTrack, Translation, Utterance
from reelscribe._values import SavedRecord
from reelscribe.contract.speech import BOTH, ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.errors import ServerError, UsageError
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.fake_torchserve import SPEECH, FakeTorchServe, Received, transcript, transcripts
from support.patience import PATIENCE

TRANSLATES = replace(SPEECH, tasks=("transcribe", "translate", BOTH))
OPTIONS = SpeechOptions(TranscriptionOptions("fr", BOTH), chunks_per_request=1)
IN_ENGLISH = ChunkTranscript(
    "Good morning.",
    "fr",
    (SpeechSegment(0.25, 0.75, "Good morning.", (Word(0.25, 0.5, "Good"), Word(0.5, 0.75, "morning.")), -1.5),),
    no_speech_prob=0.75,
)


async def translations(request: Received) -> web.Response:
    """The transcript of each chunk, with a doubtful translation."""
    answers = [replace(transcript(name), language="fr", translation=IN_ENGLISH) for name in request.names()]
    return web.json_response([answer.to_json() for answer in answers])


@pytest.fixture
async def server():
    async with FakeTorchServe(translations, description=TRANSLATES) as server:
        yield server


async def run(server, media, out, options=OPTIONS) -> bytes:
    """Transcribe demo speech; return the record."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(SpeechClient([Server(server.url)], "speech"))
        running = Run([TranscriptTrack(client, options)], out).run([str(media / "phrases.ogg")])
        await asyncio.wait_for(running, PATIENCE)
    return (out / "annotations.jsonl").read_bytes()


async def test_a_record_has_the_translation_beside_what_is_said(server, media, tmp_path):
    line = await run(server, media, tmp_path)
    record = json.loads(line)
    assert {request.tree["task"] for request in server.received} == {BOTH}
    assert len(record["segments"]) == len(record["translations"]) == len(server.received) > 2
    for said, translated in zip(record["segments"], record["translations"], strict=True):
        assert translated["start"] == pytest.approx(said["start"] + 0.25)
        assert (translated["text"], translated["language"]) == ("Good morning.", "fr")
        assert [word["text"] for word in translated["words"]] == ["Good", "morning."]
        assert (said["flags"], translated["flags"]) == ([], ["no-speech", "low-probability"])
    saved = SavedRecord.from_line(line)
    assert saved.translations[0].text == "Good morning."
    assert saved.to_dict() == record


async def test_what_was_not_asked_for_is_in_no_record(server, media, tmp_path):
    server.answer = transcripts
    record = json.loads(await run(server, media, tmp_path, SpeechOptions()))
    assert record["segments"]
    assert "translations" not in record


async def test_a_run_that_is_continued_gives_the_same_bytes(server, media, tmp_path):
    undisturbed = await run(server, media, tmp_path / "undisturbed")
    answers = [translations]

    async def lies_after_one(request: Received) -> web.Response:
        return await answers.pop()(request) if answers else web.json_response("nonsense")

    server.answer = lies_after_one
    with pytest.raises(ServerError, match="transcripts"):
        await run(server, media, tmp_path / "out")
    server.answer = translations
    server.received.clear()
    assert await run(server, media, tmp_path / "out") == undisturbed
    assert 0 < len(server.received) < undisturbed.count(b"Good morning.")
    server.received.clear()
    assert await run(server, media, tmp_path / "out") == undisturbed
    assert server.received == []


async def test_results_of_a_file_are_utterances_and_translations_in_the_order_of_time(server, media):
    results = await reelscribe.transcribe_async(media / "phrases.ogg", server=server.url, options=OPTIONS)
    assert [type(result) for result in results[:4]] == [Utterance, Translation] * 2
    assert [result.start for result in results] == sorted(result.start for result in results)
    assert str(results[1]).endswith("Good morning.")


def test_a_model_or_server_that_cannot_do_both_is_refused():
    OPTIONS.check(TRANSLATES)
    with pytest.raises(UsageError, match=r"task: expected one that .* can do, transcribe, translate; got 'both'"):
        OPTIONS.check(SPEECH)
