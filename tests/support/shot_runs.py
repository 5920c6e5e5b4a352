"""Runs that find shots with a model, for tests: a fake server that sees cuts and fades in grey frames."""

import asyncio
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from aiohttp import web

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.client.models import ModelClient
from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.contract.shots import WindowAnswer, Windowing
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.shots import LearnedShotOptions
from reelscribe.run.tracks.track import Track
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import Answer, FakeTorchServe, Received
from support.patience import PATIENCE
from support.sending import no_waiting
from support.videos import write

WINDOWING = Windowing(width=16, height=12, frames=20, context=5)
"""Windows of which the middle ten frames count."""

SHOTS = ShotModelDescription(
    name="a/transnet",
    revision="123",
    generation={},
    windowing=WINDOWING,
    dtype="float32",
    device_batch=8,
    max_windows=64,
)


def answer_of(window: np.ndarray) -> WindowAnswer:
    """A frame that differs much from the next one ends a shot; one that differs at all is part of a transition.

    The last step of a fade is the largest one.
    """
    levels = window.mean((1, 2, 3))
    steps = [*(abs(other - one) for one, other in pairwise(levels)), 0.0]
    return WindowAnswer(*(tuple(0.9 if step > least else 0.0625 for step in steps) for least in (25, 3)))


async def answers(request: Received) -> web.Response:
    """Respond like the shot handler."""
    return web.json_response([answer_of(window).to_json() for window in request.tree["windows"]])


def shot_server(answer: Answer = answers) -> FakeTorchServe:
    return FakeTorchServe(answer, description=SHOTS)


LEVELS = [40] * 18 + [120] * 27 + [120 + 5 * k for k in range(1, 8)] + [200] * 23
"""A cut after 18 frames, and after 34 more a fade that ends with its largest step."""


def write_video(path: Path, levels: Iterable[int] = LEVELS) -> Path:
    write(path, "ffv1", levels)
    return path


def spec(*servers: FakeTorchServe, **options) -> ModelSpec:
    """Shots by the model of these servers, in requests of two windows."""
    chosen = LearnedShotOptions(**{"windows_per_request": 2, "decode_workers": 1, **options})
    return ModelSpec(chosen, [FoundServer(Server(server.url)) for server in servers], "shots", 8)


async def find_shots(out: Path, paths: Iterable[Path], *servers: FakeTorchServe, **options) -> Summary:
    """Find the shots of sources with the model of these servers. A run that hangs fails."""
    chosen = spec(*servers, **options)
    with no_waiting():
        async with ModelClient([Server(each.url) for each in servers], "shots", ShotModelDescription) as client:
            run = Run([Track(chosen.options, client)], out)
            return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)


def records(out: Path) -> dict[str, dict]:
    lines = (out / "annotations.jsonl").read_text().splitlines()
    return {Path(record["source"]["path"]).name: record for record in map(json.loads, lines)}


def windows_sent(*servers: FakeTorchServe) -> int:
    """How many windows were sent; black ones check whether a server works."""
    sent = [window for server in servers for request in server.received for window in request.tree["windows"]]
    return sum(bool(window.any()) for window in sent)
