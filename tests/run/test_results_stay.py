"""Runs into one folder: what one has done, no other makes disappear."""

import json
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, SpeechClient
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.errors import ServerError, UsageError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionTrack
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from support.fake_torchserve import SPEECH, Answer, FakeTorchServe, Received, captions, refused, transcripts


@pytest.fixture
def library(media, tmp_path) -> Path:
    """Two videos and a recording; old.avi has no audio, and phrases.ogg no video."""
    for name in ("old.avi", "spoken.mp4", "phrases.ogg"):
        shutil.copy(media / name, tmp_path)
    return tmp_path


async def caption(out: Path, *names: Path) -> int:
    """Caption sources; return how many of them failed."""
    async with FakeTorchServe(captions) as server, CaptionClient([Server(server.url)], "captioner") as client:
        summary = await Run([CaptionTrack(client)], out).run([str(name) for name in names])
    return summary.failed


async def transcribe(out: Path, *names: Path, answer: Answer = transcripts, **options: object) -> int:
    """Transcribe sources; return how many of them failed."""
    server = FakeTorchServe(answer, description=SPEECH)
    async with server, SpeechClient([Server(server.url)], "speech") as client:
        run = Run([TranscriptTrack(client, SpeechOptions(**{"silence_db": None, **options}))], out)
        return (await run.run([str(name) for name in names])).failed


async def transcripts_with_words(request: Received) -> web.Response:
    """Respond like the speech handler to a request for the times of words."""
    segments = (SpeechSegment(0.0, 1.0, "three", (Word(0.0, 1.0, "three"),)),)
    return web.json_response([ChunkTranscript("three", "en", segments).to_json() for _ in request.names()])


async def refuse(request: Received) -> web.Response:
    """Respond like the speech handler, and refuse all but silence."""
    loud = any(chunk.any() for chunk in request.tree["chunks"])
    return refused(422, "SpeechError", "no good") if loud else await transcripts(request)


def records(out: Path) -> dict[str, dict]:
    lines = (out / "annotations.jsonl").read_text().splitlines()
    return {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}


def has(record: dict) -> tuple[bool, bool]:
    """Whether a record has captions, and whether it has a transcript."""
    return bool(record["captions"]), bool(record["segments"])


async def test_captions_stay_when_a_transcript_is_made_later(library, tmp_path):
    out = tmp_path / "out"
    await caption(out, library / "spoken.mp4")
    await transcribe(out, library / "spoken.mp4", library / "phrases.ogg")
    assert {name: has(record) for name, record in records(out).items()} == {
        "spoken.mp4": (True, True),
        "phrases.ogg": (False, True),
    }


WORDS = {"answer": transcripts_with_words, "transcription": TranscriptionOptions(word_times=True)}


async def test_the_times_of_words_stay_when_a_later_run_does_not_ask_for_them(library, tmp_path, caplog):
    out, names = tmp_path / "out", [library / "spoken.mp4", library / "phrases.ogg"]
    await transcribe(out, *names, **WORDS)
    before = (out / "annotations.jsonl").read_bytes()
    assert before.count(b'"text":"three"') >= 4  # of segments and of their words
    for options in ({}, {"retry_failed": True}):
        await transcribe(out, *names, answer=refuse, **options)
        assert (out / "annotations.jsonl").read_bytes() == before
    assert caplog.messages == []


async def test_the_times_of_words_are_made_where_there_are_none(library, tmp_path, caplog):
    out = tmp_path / "out"
    await transcribe(out, library / "spoken.mp4")
    await transcribe(out, library / "spoken.mp4", **WORDS)
    assert records(out)["spoken.mp4"]["segments"][0]["words"]
    assert caplog.messages == []  # the new result adds to the old one


async def test_a_run_says_how_many_records_will_show_other_results(library, tmp_path, caplog):
    out = tmp_path / "out"
    await transcribe(out, library / "spoken.mp4")
    await transcribe(out, library / "spoken.mp4", library / "phrases.ogg", transcription=TranscriptionOptions("fr"))
    assert caplog.messages == ["1 record will show other results than now, as other settings were chosen (language)"]


async def test_retrying_touches_failed_sources_alone(library, tmp_path, caplog):
    out, names = tmp_path / "out", [library / "spoken.mp4", library / "phrases.ogg"]
    await transcribe(out, names[0])
    await transcribe(out, names[1], answer=refuse)
    before = records(out)
    assert [before[name.name]["status"] for name in names] == ["ok", "error"]
    await transcribe(out, *names, retry_failed=True, **WORDS)
    after = records(out)
    assert after["spoken.mp4"] == before["spoken.mp4"]
    assert after["phrases.ogg"]["segments"][0]["words"]
    assert caplog.messages == []


async def test_the_order_of_runs_changes_no_byte(library, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    await caption(one, library / "old.avi", library / "spoken.mp4")
    await transcribe(one, library / "spoken.mp4")
    await transcribe(other, library / "spoken.mp4")
    await caption(other, library / "spoken.mp4")
    await caption(other, library / "old.avi")
    for name in ("annotations.jsonl", "run.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


async def test_other_sources_stay_also_when_they_are_gone_from_the_disk(library, tmp_path):
    out = tmp_path / "out"
    await caption(out, library / "old.avi", library / "spoken.mp4")
    (library / "old.avi").unlink()
    await caption(out, library / "spoken.mp4")
    found = records(out)
    assert {name: (has(record)[0], record["source"]["missing"]) for name, record in found.items()} == {
        "old.avi": (True, True),
        "spoken.mp4": (True, False),
    }


async def test_names_that_match_nothing_change_nothing(library, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="no such file or folder"):
        await caption(out, library / "old.avi", library / "typo")
    assert not out.exists()
    await caption(out, library / "old.avi")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="no such file or folder"):
        await caption(out, library / "typo")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


async def test_a_run_has_the_failures_of_its_own_kind_alone(library, tmp_path):
    out = tmp_path / "out"
    assert await caption(out, library / "phrases.ogg") == 1
    assert await transcribe(out, library / "phrases.ogg") == 0
    record = records(out)["phrases.ogg"]
    assert (record["status"], record["error"]) == ("ok", None)


async def test_what_is_done_is_written_when_the_server_fails(library, tmp_path):
    out = tmp_path / "out"

    async def forbidden(request):
        return web.json_response({"type": "InvalidKeyException", "message": "wrong token"}, status=403)

    await caption(out, library / "old.avi")
    server = FakeTorchServe(forbidden)
    async with server, CaptionClient([Server(server.url)], "captioner", outage_seconds=0.1) as client:
        (out / "annotations.jsonl").unlink()
        run = Run([CaptionTrack(client)], out)
        with pytest.raises(ServerError):
            await run.run([str(library / "spoken.mp4")])
    assert list(records(out)) == ["old.avi"]
