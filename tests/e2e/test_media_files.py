"""Videos and recordings that are posted to the real server get the fields of their records in a run."""

import asyncio
import io
import json
import os
import random
import time
from pathlib import Path

import aiohttp
import pytest
import soundfile

from support.alike import assert_alike
from support.odd_library import make_library
from support.servers import RunningServer, read_records
from synthetic.phrases import SAMPLE_RATE, recording

FIELDS = {
    "captions": ("status", "error", "media", "captions", "caption_spans", "caption_failures"),
    "speech": ("status", "error", "audio", "segments", "silences", "speech_failures"),
}


@pytest.fixture(scope="module")
def library(media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind that a library of videos holds, good and bad."""
    folder = tmp_path_factory.mktemp("odd") / "library"
    make_library(folder, media)
    for path in folder.iterdir():
        # Pipes and links to nothing cannot be posted, and a record does not say what a name is that is no text.
        if not path.is_file() or b"\xe9" in os.fsencode(path):
            path.unlink()
    return folder


def content(record: dict) -> bytes:
    return Path(record["source"]["absolute_path"]).read_bytes()


async def check(server: RunningServer, records: list[dict], fields: tuple[str, ...], **headers: str) -> list[str]:
    """Post the file of each record, and return the names of those that were refused."""
    refused = []
    for at in range(0, len(records), 8):
        some = records[at : at + 8]
        answers = await asyncio.gather(*(server.post(content(record), headers) for record in some))
        for record, (status, text) in zip(some, answers, strict=True):
            name, answer = Path(record["source"]["path"]).name, json.loads(text)
            if status == 200:
                assert_alike({name: [answer[field] for field in fields]}, {name: [record[field] for field in fields]})
                continue
            refused.append(name)
            if answer["error"]["message"].startswith("NoAudio"):  # in a folder of videos, that is no error
                assert (name, record["audio"], record["segments"]) == (name, None, [])
                continue
            assert record["error"], f"{name} was refused: {text}"
            if answer["error"]["type"] == "FileRefused":
                reason = "{type}: {message}".format(**record["error"])
                assert (name, status, answer["error"]["message"]) == (name, 422, reason)
            else:  # nothing about it looks like a media file
                assert (name, status in (400, 415)) == (name, True)
    return refused


def test_captions_are_those_of_a_run(server, library, tmp_path):
    assert server.run("caption", library, "--out", tmp_path, "--fps", "2", "--end", "5").exit_code == 3
    workers = server.workers()
    headers = {"X-Reelscribe-Fps": "2", "X-Reelscribe-End": "5"}
    refused = asyncio.run(check(server, read_records(tmp_path), FIELDS["captions"], **headers))
    assert {"text.mp4", "zeros.mov", "zero.mp4", "sound-only.mp4"} <= {*refused}
    assert "spoken.mp4" not in refused
    assert server.workers() == workers


def test_transcripts_are_those_of_a_run(server, library, tmp_path):
    assert server.run("transcribe", library, "--out", tmp_path, "--word-times").exit_code == 3
    speech, words = server.with_model("speech"), {"X-Reelscribe-Word-Times": "true"}
    refused = asyncio.run(check(speech, read_records(tmp_path), FIELDS["speech"], **words))
    assert not {"spoken.mp4", "sound-only.mp4"} & {*refused}


async def test_the_health_check_is_answered_while_long_files_are_read(server):
    file = io.BytesIO()
    soundfile.write(file, recording(random.Random(1), 60).samples, SAMPLE_RATE, format="FLAC")
    speech, began, pings = server.with_model("speech"), time.monotonic(), []
    async with aiohttp.ClientSession(headers=server.headers) as session:
        answers = [asyncio.create_task(speech.post(file.getvalue())) for _ in range(8)]
        while not all(answer.done() for answer in answers):
            asked = time.monotonic()
            async with session.get(f"{server.url}/ping") as response:
                assert (response.status, await response.json()) == (200, {"status": "Healthy"})
            pings.append(time.monotonic() - asked)
            await asyncio.sleep(0)
    assert {answer.result()[0] for answer in answers} == {200}
    p99 = sorted(pings)[len(pings) * 99 // 100]
    assert p99 < (time.monotonic() - began) / 10  # however fast the machine is: nobody waits for the files


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X-Reelscribe-Fps": "many"}, "expected numbers"),
        ({"X-Reelscribe-Fps": "0"}, "fps: expected more than 0"),
        ({"X-Reelscribe-Fps": "1", "X-Reelscribe-Frames": "3"}, "expected one of"),
        ({"X-Reelscribe-Prompt": "What is it?"}, "expected one of X-Reelscribe-End"),
    ],
)
async def test_options_that_cannot_be_used_are_refused(server, media, headers, reason):
    status, text = await server.post((media / "old.avi").read_bytes(), headers)
    assert (status, json.loads(text)["error"]["type"]) == (422, "FileRefused")
    assert reason in text


async def test_a_file_has_no_more_frames_than_it_has(server, media):
    body = (media / "same-480x270.mp4").read_bytes()
    status, text = await server.post(body, {"X-Reelscribe-Fps": "1000"})
    assert status == 200  # a video of 80 frames has no more
    assert len(json.loads(text)["captions"]) == 80
