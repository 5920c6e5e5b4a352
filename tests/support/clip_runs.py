"""Runs that describe clips, for tests: videos whose clips tell their names, and what became of them."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient
from reelscribe.decode.clips import ClipCutting
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.clips import ClipOptions, ClipTrack
from support.fake_torchserve import CLIPS, Answer, FakeTorchServe, descriptions
from support.patience import PATIENCE
from support.sending import no_waiting
from support.videos import write

WINDOWS = ClipCutting("windows", window_seconds=1.0)
NAMES = (40, 80, 120, 160)
"""The names of clips are grey levels, which come through a codec as they are."""


def write_clips(path: Path, names: Iterable[int] = NAMES) -> Path:
    """Write a video of a clip of one second for each name."""
    write(path, "libx264", [name for name in names for _ in range(10)])
    return path


def clip_server(answer: Answer = descriptions, **changes) -> FakeTorchServe:
    """A server of the clip model, with changes to its description."""
    return FakeTorchServe(answer, description=replace(CLIPS, **changes))


def options_of(**options) -> ClipOptions:
    """Options that describe windows of one second, unless others are given."""
    return ClipOptions(**{"cutting": WINDOWS, **options})


async def describe(out: Path, paths: Iterable[Path], *servers: FakeTorchServe, **options) -> Summary:
    """Describe the clips of sources with the model of these servers. A run that hangs fails."""
    with no_waiting():
        async with ClipClient([Server(server.url) for server in servers], "clips") as client:
            run = Run([ClipTrack(client, options_of(**options))], out)
            return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)


def records(out: Path) -> dict[str, dict]:
    lines = (out / "annotations.jsonl").read_text().splitlines()
    return {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}


def sent(*servers: FakeTorchServe) -> list[int]:
    """The names of all clips that were sent, in order of their size; black clips check whether a server works."""
    return sorted(name for server in servers for request in server.received for name in request.names() if name)
