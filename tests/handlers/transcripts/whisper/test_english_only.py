"""English-only models (`*.en`), with both engines, from the handler over a client to the records."""

import json
from functools import partial

import pytest
from aiohttp import web
from transformers import AutoProcessor

import speech_handler
from reelscribe import Run, Server, SpeechClient, TranscriptTrack
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import UsageError
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.alike import assert_alike
from support.fake_context import FakeContext, parsed
from support.fake_torchserve import FakeTorchServe
from support.tiny_models import save_whisper
from transcripts.whisper.ctranslate2_conversion import convert

GUESSES = {"temperatures": [0.0], "no_speech_threshold": None}


@pytest.fixture(scope="module")
def english_only(tmp_path_factory, demo_speech) -> str:
    processor, folder = AutoProcessor.from_pretrained(demo_speech), tmp_path_factory.mktemp("whisper.en")
    return save_whisper(folder, processor, 10, is_multilingual=False, lang_to_id=None, task_to_id=None)


@pytest.fixture(params=["torch", "ctranslate2"])
def handler(request, english_only, tmp_path) -> FakeContext:
    """The context of a worker that has loaded the model."""
    settings = {"model": english_only, **GUESSES}
    if request.param == "ctranslate2":
        convert(english_only, str(tmp_path / "converted"), "auto")
        settings |= {"engine": "ctranslate2", "converted": str(tmp_path / "converted")}
    context = FakeContext(settings)
    speech_handler.handle(None, context)
    return context


def described(handler: FakeContext) -> SpeechDescription:
    handler.headers = [{"describe": "True"}]
    return SpeechDescription.from_json(parsed(speech_handler.handle([{"body": b""}], handler))[0])


async def answer(request, handler: FakeContext) -> web.Response:
    handler.headers, handler.statuses = [dict(request.headers)], {}
    (body,) = speech_handler.handle([{"body": request.body}], handler)
    return web.Response(body=body, status=handler.statuses.get(0, 200))


@pytest.mark.parametrize("language", ["en", None])
async def test_records_say_en_whether_or_not_the_language_is_given(handler, media, tmp_path, language):
    options = SpeechOptions(TranscriptionOptions(language=language, word_times=True))
    server = FakeTorchServe(partial(answer, handler=handler), description=described(handler))
    async with server, SpeechClient([Server(server.url)], "speech") as client:
        await Run([TranscriptTrack(client, options)], tmp_path / "out").run([str(media / "phrases.ogg")])
    (line,) = (tmp_path / "out" / "annotations.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["status"] == "ok"
    assert {segment["language"] for segment in record["segments"]} == {"en"}
    assert any(segment["words"] for segment in record["segments"])


def test_en_is_all_that_it_knows_and_giving_it_makes_no_other_transcript(handler):
    description = described(handler)
    assert (description.languages, description.language, description.tasks) == (("en",), "en", ("transcribe",))
    given, not_given = SpeechOptions(TranscriptionOptions(language="en")), SpeechOptions()
    given.check(description)
    assert given.settings(description) == not_given.settings(description)
    with pytest.raises(UsageError, match="got 'de'; it knows en"):
        SpeechOptions(TranscriptionOptions(language="de")).check(description)


def test_a_request_may_name_en_alone(handler, media):
    body = (media / "phrases.ogg").read_bytes()
    transcripts = []
    for headers in ({}, {"X-Reelscribe-Language": "en"}, {"X-Reelscribe-Language": "de"}):
        handler.headers, handler.statuses = [headers], {}
        transcripts += parsed(speech_handler.handle([{"body": body}], handler))
    assert_alike(transcripts[0], transcripts[1])
    assert (transcripts[0]["language"], handler.statuses) == ("en", {0: 422})
    assert "language: expected one of en; got" in transcripts[2]["error"]["message"]
