"""Runs against servers that lie: nothing wrong is recorded, and the next run, with an honest server, does all of it."""

import asyncio
import json
import sys
from functools import partial

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import ServerError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.wire import IDENTITY_HEADER
from support.fake_torchserve import FakeTorchServe
from support.lying_server import LyingServer, as_json, write_without_end
from support.patience import PATIENCE
from support.sending import no_waiting
from support.videos import write_pictures

CAPTION = {"text": "a lie", "avg_logprob": -0.25}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIES = [
    pytest.param(as_json([CAPTION] * 3), "expected a list of 4 captions", id="one caption too few"),
    pytest.param(as_json([CAPTION] * 3 + [{**CAPTION, "text": 7}]), "a caption: expected", id="wrong type"),
    pytest.param(
        partial(write_without_end, head=CHUNKED, block=b"10000\r\n" + b"x" * 2**16 + b"\r\n"),
        "expected an answer of at most 16 MiB",
        id="text without end",
    ),
]


@pytest.fixture
def video(tmp_path) -> str:
    """A video of four frames."""
    path = tmp_path / "a.mkv"
    write_pictures(path, "libx264", [np.full((16, 16, 3), level, np.uint8) for level in (40, 80, 120, 160)])
    return str(path)


async def run(url: str, video: str, out) -> None:
    with no_waiting():
        async with asyncio.timeout(PATIENCE), CaptionClient([Server(url)], "captioner") as client:
            await Run([CaptionTrack(client, CaptionOptions(Sampling(every=1)))], out).run([video])


def saved_texts(out) -> list[str]:
    with LedgerReader(out) as ledger:
        return [getattr(result, "text", None) for result in ledger.frame_results(1)]


@pytest.mark.parametrize(("lie", "words"), LIES)
async def test_a_lie_ends_the_run_and_an_honest_server_does_all_of_it(video, tmp_path, lie, words):
    out = tmp_path / "out"
    async with LyingServer(lie) as server:
        with pytest.raises(ServerError, match=words) as error:
            await run(server.url, video, out)
    assert str(error.value).isprintable()
    assert saved_texts(out) == []
    assert "a lie" not in (out / "annotations.jsonl").read_text()
    async with FakeTorchServe() as honest:
        await run(honest.url, video, out)
    assert len(saved_texts(out)) == 4
    assert all(text.startswith("frame ") for text in saved_texts(out))


async def test_an_answer_of_another_model_is_not_recorded(video, tmp_path):
    async with LyingServer(as_json([CAPTION] * 4, f"{IDENTITY_HEADER}: {'0' * 16}")) as server:
        with pytest.raises(ServerError, match="another model answers there now"):
            await run(server.url, video, tmp_path / "out")
    assert saved_texts(tmp_path / "out") == []


async def test_the_command_ends_with_one_line(video, tmp_path):
    async with LyingServer(as_json([{"text": "\x1b[2J"}] * 4)) as server:
        words = ["caption", video, "--all-frames", "--out", str(tmp_path / "out"), "--server", server.url]
        words += ["--model", "captioner", "--quiet"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reelscribe.cli", *words, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
    (line,) = errors.decode().splitlines()
    assert process.returncode == 1, line
    assert line.isprintable()
    assert line.startswith(f"reelscribe: answer of {server.url}/predictions/captioner: ")
    records = (tmp_path / "out" / "annotations.jsonl").read_text().splitlines()
    assert all(json.loads(record)["captions"] == [] for record in records)
