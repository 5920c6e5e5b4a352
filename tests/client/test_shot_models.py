"""Shot models: how they are described, what their answers must be, and what a server that lies achieves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ModelClient
from reelscribe.client.operations import finding_shots
from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.contract.shots import WindowAnswer, Windowing
from reelscribe.errors import ServerError
from support.lying_server import LyingServer, as_json
from support.shot_runs import SHOTS, WINDOWING, answer_of, shot_server

WINDOWS = np.arange(3, dtype=np.uint8).repeat(WINDOWING.nbytes).reshape(3, 20, 12, 16, 3)
GOOD = [answer_of(window).to_json() for window in WINDOWS]


def client_of(server) -> ModelClient:
    return ModelClient([Server(server.url)], "shots", ShotModelDescription)


async def test_each_window_has_its_answer():
    async with shot_server() as server, client_of(server) as client:
        answers = await client.request(finding_shots(await client.describe()), WINDOWS)
    assert answers == [WindowAnswer.from_json(each, 20) for each in GOOD]


def test_a_description_is_the_same_after_it_was_sent():
    assert ShotModelDescription.from_json(json.loads(json.dumps(SHOTS.to_json()))) == SHOTS


def test_windows_overlap_and_the_ends_of_a_video_are_repeated():
    windowing = Windowing(width=1, height=1, frames=8, context=2)
    assert [windowing.indices(first, 7).tolist() for first in (0, 4)] == [
        [0, 0, 0, 1, 2, 3, 4, 5],
        [2, 3, 4, 5, 6, 6, 6, 6],
    ]
    assert (windowing.step, windowing.nbytes) == (4, 24)


@pytest.mark.parametrize(
    "value",
    [
        GOOD[:2],
        [*GOOD[:2], 7],
        *([*GOOD[:2], {**GOOD[2], "cut": lie}] for lie in (None, 7, [0.5] * 19, [*[0.5] * 19, None], [2.0] * 20)),
        [*GOOD[:2], {"cut": [0.5] * 20}],
    ],
)
async def test_an_answer_that_is_none_ends_the_request(value):
    async with LyingServer(as_json(value), description=SHOTS) as server, client_of(server) as client:
        with pytest.raises(ServerError, match="answer of http"):
            await client.request(finding_shots(SHOTS), WINDOWS)


WINDOWING_JSON = SHOTS.windowing.to_json()


@pytest.mark.parametrize(
    "windowing",
    [
        None,
        [],
        {},
        *({**WINDOWING_JSON, "frames": lie} for lie in (0, -1, 10.5, "20", 10**6)),
        *({**WINDOWING_JSON, "context": lie} for lie in (-1, 10, None)),
        {**WINDOWING_JSON, "width": 60_000, "height": 60_000},
        {**WINDOWING_JSON, "depth": 1},
    ],
)
async def test_windows_with_which_nothing_can_work_are_refused(windowing):
    async with LyingServer(b"", description={**SHOTS.to_json(), "windowing": windowing}) as server:
        with pytest.raises(ServerError, match="describe: expected the description of a shot handler"):
            async with client_of(server) as client:
                await client.describe()


def test_limits_do_not_change_the_identity_but_windows_do():
    assert replace(SHOTS, max_windows=1, device_batch=1).identity == SHOTS.identity
    assert replace(SHOTS, windowing=replace(WINDOWING, context=4)).identity != SHOTS.identity
