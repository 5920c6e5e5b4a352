"""Archives that name no GPUs: what a start, and a registration, make of a machine with GPUs. These are emulated."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from typer.testing import CliRunner

from reelscribe import wire
from reelscribe.cli import app
from reelscribe.server import launcher, sizes
from reelscribe.server.start_options import StartOptions
from reelscribe.server.state import state_of
from servers.emulated import HANDLER, Emulated, serve_all_emulated
from servers.torchserve import CONFIG, Serving, handler_modules, pack_handler, serve
from support.servers import quick_java

GPUS = 4
AUTO = Emulated(1000, workers=None, call_seconds=1)
FRAME = b"".join(wire.pack({"frames": np.zeros((1, 224, 224, 3), np.uint8)}))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """An emulated captioner on a machine with four GPUs."""
    settings = {"enable_model_api": "true", **quick_java()}
    with serve_all_emulated(tmp_path_factory.mktemp("gpus"), CONFIG, {"auto": AUTO}, GPUS, **settings) as servings:
        yield servings["auto"]


def models(serving: Serving, *words: str) -> str:
    """What a command of `reelscribe models` prints."""
    command = ["models", *words, "--directory", str(serving.instance.directory)]
    return CliRunner().invoke(app, command, catch_exceptions=False).output


async def workers_of_answers(serving: Serving, requests: int) -> Counter[str]:
    """How many of so many requests each worker answers."""
    async with aiohttp.ClientSession(headers=serving.headers) as session:

        async def answer() -> str:
            content = {"Content-Type": "application/octet-stream"}
            async with session.post(serving.predictions, data=FRAME, headers=content) as response:
                assert response.status == 200, await response.text()
                return response.headers[wire.WORKER_HEADER]

        return Counter(await asyncio.gather(*(answer() for _ in range(requests))))


def test_each_gpu_has_a_worker_and_a_call_takes_what_the_handler_does(serving):
    described = json.loads(models(serving, "describe", "auto", "--json"))
    assert (described["batch_size"], described["queue_capacity"], len(described["workers"])) == (16, 128, GPUS)
    assert (described["handler"]["joined_requests"], described["handler"]["workers"]) == (16, GPUS)
    answers = asyncio.run(workers_of_answers(serving, 16 * GPUS))
    assert {name.split()[1] for name in answers} == {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}


def test_a_model_that_is_registered_gets_the_same(serving):
    store = serving.instance.directory.parent / "store"
    pack_handler(HANDLER, "later", store, settings=AUTO.settings(), modules=handler_modules())
    assert "4 of 4 workers ready" in models(serving, "register", "later.mar")
    described = json.loads(models(serving, "describe", "later", "--json"))
    assert (described["batch_size"], described["handler"]["workers"]) == (16, GPUS)
    models(serving, "unregister", "later", "--now")


def test_gpus_that_no_model_uses_are_named_until_they_are_used(serving):
    assert "no model uses" not in models(serving, "list")
    models(serving, "scale", "auto", "2")
    assert "no model uses GPUs 0, 3: `reelscribe models scale MODEL" in models(serving, "list")
    assert json.loads(models(serving, "describe", "auto", "--json"))["handler"]["workers"] == 2
    models(serving, "scale", "auto", "4")
    assert "no model uses" not in models(serving, "describe", "auto")


SMI = """#!/bin/sh
if test -e "$0-server/tmp"; then printf '9000\\n9000\\n'; else printf '81000\\n81000\\n'; fi
"""
"""An nvidia-smi that tells the free memory of two GPUs, most of which the server takes while it runs."""


def test_a_gpu_with_room_has_a_second_worker_also_after_a_restart(tmp_path: Path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o700)
    program.with_name("nvidia-smi-server").symlink_to("instance")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    settings = {"parameters": 3_744_761_856, "handler": AUTO.settings()["handler"]}
    pack_handler(HANDLER, "auto", tmp_path / "store", settings=settings, modules=handler_modules())
    monkeypatch.setattr(sizes, "_memory", lambda: 2**39)
    with serve(tmp_path, "auto", CONFIG, **quick_java()) as serving:
        launcher.restart(serving.instance, StartOptions.load(serving.instance.options))
        workers = json.loads(models(serving, "describe", "auto", "--json"))["workers"]
        assert sorted(worker["gpu"] for worker in workers) == [0, 0, 1, 1]
        assert (state_of(serving.instance).state, state_of(serving.instance).models[0].error) == ("ready", None)
