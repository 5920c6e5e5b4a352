"""Servers of archives that name no GPUs: what a start makes of a machine with GPUs, which are emulated."""

import asyncio
import json
from collections import Counter

import aiohttp
import numpy as np
import pytest
from typer.testing import CliRunner

from reelscribe import wire
from reelscribe.cli import app
from servers.emulated import Emulated, serve_all_emulated
from servers.torchserve import CONFIG, Serving
from support.servers import quick_java

GPUS = 4
FRAME = b"".join(wire.pack({"frames": np.zeros((1, 224, 224, 3), np.uint8)}))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory):
    """An emulated captioner on a machine with four GPUs, and one whose archive names one of them."""
    models = {"auto": Emulated(1000, workers=None, call_seconds=1), "one": Emulated(1000)}
    with serve_all_emulated(tmp_path_factory.mktemp("gpus"), CONFIG, models, GPUS, **quick_java()) as servings:
        yield servings["auto"]


async def workers_of_answers(serving: Serving, requests: int) -> Counter[str]:
    """How many of so many requests each worker answered."""
    async with aiohttp.ClientSession(headers=serving.headers) as session:

        async def answer() -> str:
            async with session.post(
                serving.predictions, data=FRAME, headers={"Content-Type": "application/octet-stream"}
            ) as response:
                assert response.status == 200, await response.text()
                return response.headers[wire.WORKER_HEADER]

        return Counter(await asyncio.gather(*(answer() for _ in range(requests))))


def test_each_gpu_has_a_worker_and_a_call_takes_what_the_handler_does(serving):
    settings = serving.instance.settings()
    assert (settings["number_of_gpu"], settings["job_queue_size"]) == ("4", "128")
    command = ["models", "describe", "auto", "--json", "--directory", str(serving.instance.directory)]
    described = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).output)
    assert (described["batch_size"], described["queue_capacity"], len(described["workers"])) == (16, 128, GPUS)
    assert (described["handler"]["joined_requests"], described["handler"]["workers"]) == (16, GPUS)
    answers = asyncio.run(workers_of_answers(serving, 16 * GPUS))
    assert {name.split()[1] for name in answers} == {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}
