"""A run goes on with the ledger of an older version: what is saved there is neither done again nor changed."""

import asyncio
import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.contract.frames import FrameCaption
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from support.fake_torchserve import SPEECH, FakeTorchServe

OLD_LEDGER = Path(__file__).parents[1] / "data" / "ledger-half-done" / "ledger.sqlite"
SOURCES = ("phrases.ogg", "spoken.mp4", "old.avi")
TRANSCRIPT = ChunkTranscript("after", "en", (SpeechSegment(0.0, 1.0, "after"),), no_speech_prob=0.25)


async def caption(request):
    return web.json_response([FrameCaption("after").to_json()] * len(request.names()))


async def transcribe(request):
    return web.json_response([TRANSCRIPT.to_json()] * len(request.names()))


@pytest.fixture
def out(tmp_path) -> Path:
    shutil.copy(OLD_LEDGER, tmp_path)
    return tmp_path


def select(out: Path, query: str) -> list:
    with closing(sqlite3.connect(out / "ledger.sqlite")) as database:
        return database.execute(query).fetchall()


def texts(record: dict) -> tuple[list[str], list[str]]:
    return [caption["text"] for caption in record["captions"]], [segment["text"] for segment in record["segments"]]


async def test_only_what_is_missing_is_done(out, media):
    saved = select(out, "SELECT * FROM parts")
    async with FakeTorchServe(caption) as captioner, FakeTorchServe(transcribe, description=SPEECH) as speech:
        words = ["annotate", *(str(media / name) for name in SOURCES), "--out", str(out), "--all-frames", "--quiet"]
        servers = ["--server", captioner.url, "--speech-server", speech.url]
        run = await asyncio.create_subprocess_exec(sys.executable, "-m", "reelscribe.cli", *words, *servers)
        assert await run.wait() == 0
        frames = sum(len(request.names()) for request in captioner.received)
        chunks = sum(len(request.names()) for request in speech.received)
    lines = (out / "annotations.jsonl").read_text().splitlines()
    records = {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}
    # Saved were: two of the three chunks of phrases.ogg, which has no pictures; 80 of the 120 frames of spoken.mp4, and
    # its audio; all frames of old.avi, which has no audio.
    assert [texts(records[name]) for name in SOURCES] == [
        ([], ["before"] * 2 + ["after"]),
        (["before"] * 80 + ["after"] * 40, ["before"]),
        (["before"] * 90, []),
    ]
    assert (frames, chunks) == (40, 1)
    assert set(saved) <= set(select(out, "SELECT * FROM parts"))
    assert select(out, "SELECT count(*) FROM settings") == [(2,)]
