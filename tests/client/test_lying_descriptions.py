"""Descriptions of models that are wrong, or that change: nothing is sent to such a model, or nothing believed."""

import asyncio
import math
from dataclasses import replace

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient, SpeechClient
from reelscribe.errors import AccessRefused, ServerError
from reelscribe.wire import IDENTITY_HEADER
from support.fake_torchserve import CLIPS, DESCRIPTION, SPEECH, FakeTorchServe, captions
from support.lying_server import LyingServer
from support.memory import peak_memory
from support.sending import FRAMES, connected

CLIENTS = {"caption": CaptionClient, "speech": SpeechClient, "clip": ClipClient}
DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]

CAPTION_LIES = {
    **{
        name: [0, -1, 1.5, "8", None, True, 2**40]
        for name in ("max_frames", "max_side", "device_batch", "workers", "cpu_threads")
    },
    "response_seconds": [-1, math.inf, 1e9, "long"],
    "name": [7, None, "x" * 5000],
    "revision": [["a"]],
    "generation": [None, [], {"deep": DEEP * 3}],
    "mean": [["a"], 5],
    "engine": [7],
    "machine": [{}],
    "devices": [[7]],
    "frame": [
        None,
        [],
        {},
        {"width": 8},
        {"width": 0, "height": 8},
        {"width": 10**9, "height": 10**9},
        {"width": 8.5, "height": 8},
        {"width": 8, "height": 8, "resample": "magic"},
        {"width": 60000, "height": 60000},
        {"factor": 0, "min_pixels": 1, "max_pixels": 9},
        {"factor": 8, "min_pixels": 9, "max_pixels": 10**12},
    ],
}
SPEECH_LIES = {
    "sample_rate": [0, -16_000, 10**12, 16_000.5, "16000"],
    "chunk_seconds": [0, -30, 1e300, math.inf, "30", 1e7],
    "max_chunks": [0, None],
    "languages": ["en", [7]],
    "language": [7],
    "word_times": [1, "yes"],
}
BUDGET = CLIPS.budget.to_json()
CLIP_LIES = {
    "budget": [
        None,
        [],
        {},
        {**BUDGET, "factor": 0},
        {**BUDGET, "fps": 0},
        {**BUDGET, "fps": "2"},
        {**BUDGET, "frame_factor": 0},
        {**BUDGET, "min_frames": 10**30},
        {**BUDGET, "resample": 7},
        {**BUDGET, "resized_width": 60000, "resized_height": 60000},
    ],
    "allow_prompts": ["no"],
    "prompt": [None],
}
LIES = [
    pytest.param(honest, field, value, id=f"{honest.kind} {field} {str(value)[:40]}")
    for honest, lies in ((DESCRIPTION, CAPTION_LIES), (SPEECH, SPEECH_LIES), (CLIPS, CLIP_LIES))
    for field, values in lies.items()
    for value in values
]


@pytest.mark.parametrize(("honest", "field", "value"), LIES)
async def test_every_field_of_a_description_is_checked(honest, field, value):
    async with LyingServer(b"", description={**honest.to_json(), field: value}) as server:
        client = CLIENTS[honest.kind]([Server(server.url)], server.model)
        with peak_memory() as peak, pytest.raises(ServerError, match=r"describe: expected|expected JSON") as error:
            async with client:
                await client.describe()
    assert len(str(error.value)) < 1000
    assert peak() < 2**20


async def test_a_model_that_is_another_one_when_it_answers_is_not_believed(messages):
    """A description that changes between two questions: the identity in the answer is no longer that of the first."""

    async def lie(request):
        return await captions(request, headers={IDENTITY_HEADER: "0" * 16})

    async with FakeTorchServe(lie) as server, connected(server) as client:
        server.description = replace(DESCRIPTION, revision="456")
        client.stop_waiting()
        with pytest.raises(AccessRefused, match="another model answers there now, or one with other settings"):
            await client.caption(FRAMES)


async def test_a_model_that_was_replaced_during_an_outage_is_not_used(messages):
    async def lie(request):
        return await captions(request, headers={IDENTITY_HEADER: "0" * 16})

    async with FakeTorchServe(lie) as server, connected(server) as client:
        server.description = replace(DESCRIPTION, name="a/\x1b[2J", revision="456")
        request = asyncio.create_task(client.caption(FRAMES))
        for _ in range(4):  # the first when the client began; when a third probe comes, the second one was answered
            await server.described.get()
        assert client.waiting_for.endswith(r"it serves another model now, a/\x1b[2J")
        client.stop_waiting()
        with pytest.raises(ServerError):
            await request
    assert len(server.received) == 1
