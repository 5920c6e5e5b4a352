"""Requests that a server never answers: retries end at their limit, and the run's folder says what became of them."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import RequestRefused, ServerUnreachable
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from support.fake_torchserve import Answer, Broken, FakeTorchServe, Received, captions, worker_died
from support.patience import PATIENCE
from support.sending import no_waiting
from support.videos import write


def never_answer_bright_frames(status: int | None) -> Answer:
    """Answer like the caption handler, but bright frames always like TorchServe, with this status or not at all."""

    async def answer(request: Received) -> web.Response:
        if max(request.names()) < 200:
            return await captions(request)
        if status is None:
            raise Broken
        return worker_died(status)

    return answer


@pytest.fixture
def library(tmp_path) -> Path:
    """A video of four dark frames and one of four bright ones."""
    for name, level in (("dark.mp4", 20), ("bright.mp4", 250)):
        write(tmp_path / name, "libx264", [level] * 4)
    return tmp_path


async def caption(server: FakeTorchServe, library: Path, **options: float) -> None:
    """Caption both videos, each in a request of its own."""
    async with CaptionClient([Server(server.url)], "captioner", **options) as client:
        run = Run([CaptionTrack(client, CaptionOptions(Sampling(every=1), frames_per_request=4))], library / "out")
        await asyncio.wait_for(run.run([str(library)]), PATIENCE)


def outcomes(library: Path) -> dict[str, tuple[str, int, int]]:
    """Of each source that has a record: its status, and how many frames have captions and how many failed."""
    records = map(json.loads, (library / "out" / "annotations.jsonl").read_text().splitlines())
    return {
        Path(record["source"]["path"]).name: (
            record["status"],
            len(record["captions"]),
            len(record["caption_failures"]),
        )
        for record in records
    }


async def test_retries_of_what_kills_workers_end_with_a_recorded_failure_of_its_source(library):
    with no_waiting():
        async with FakeTorchServe(never_answer_bright_frames(500)) as server:
            await caption(server, library)
    assert outcomes(library) == {"dark.mp4": ("ok", 4, 0), "bright.mp4": ("error", 0, 4)}


@pytest.mark.parametrize(
    ("status", "error"), [(503, RequestRefused), (None, ServerUnreachable)], ids=["refused", "connection lost"]
)
async def test_other_retries_end_the_run_at_their_limit_and_the_next_one_does_the_rest(library, status, error):
    async with FakeTorchServe(never_answer_bright_frames(status)) as server:
        with pytest.raises(error):
            await caption(server, library, outage_seconds=0.3)
        assert "bright.mp4" not in outcomes(library)
        server.answer = captions
        await caption(server, library)
    assert outcomes(library) == {"dark.mp4": ("ok", 4, 0), "bright.mp4": ("ok", 4, 0)}
