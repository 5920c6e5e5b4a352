"""The real server from outside: what strangers send, and how it starts and stops."""

import asyncio
import pickle
import subprocess
import sys

import numpy as np
import psutil
import pytest

from demo_server import free_ports
from e2e.conftest import CONFIG, ROOT, post, settings_file, wait_until
from reelscribe.archive import build as archive
from reelscribe.contract.frames import InputSize
from reelscribe.contract.model import CaptionerDescription
from reelscribe.errors import AccessRefused, StartupError
from reelscribe.management.client import ManagementClient
from reelscribe.server import launcher as server
from reelscribe.server.instance import Instance
from reelscribe.server.options import StartOptions

FRAME = np.full((120, 160, 3), (40, 70, 220), np.uint8)  # blue
BLUE = "a plain blue background"


async def test_describe(running):
    async with running.client() as client:
        description = await client.describe()
    assert description.frame == InputSize(224, 224)
    assert description.revision.startswith("sha256:")


async def test_management_knows_the_model_and_its_worker(running):
    key = running.instance.key("management")
    async with ManagementClient(running.instance.address("management_address"), key) as management:
        (model,) = await management.models()
    assert (model.name, model.version, model.is_default, model.ready) == ("captioner", "1.0", True, True)
    assert [worker.pid for worker in model.workers] == running.workers()


async def test_managements_describe_says_the_same(running):
    key = running.instance.key("management")
    async with ManagementClient(running.instance.address("management_address"), key) as management:
        told = await management.handler_description("captioner")
    async with running.client() as client:
        assert CaptionerDescription.from_json(told) == await client.describe()


async def test_the_wrong_key_does_not_manage(running):
    async with ManagementClient(running.instance.address("management_address"), running.token) as management:
        with pytest.raises(AccessRefused, match="status 400"):
            await management.models()


async def test_without_a_token_nothing_is_answered(running):
    status, text = await post(running, pickle.dumps(FRAME), {"Authorization": ""})
    assert status == 400
    assert "oken" in text


async def test_frames_of_every_size(running):
    sides = [(1, 1), (1, 32), (320, 10), (224, 224), (1080, 1920), (3, 7)]
    answers = await asyncio.gather(*(post(running, pickle.dumps(np.full((*s, 3), 245, np.uint8))) for s in sides))
    assert answers == [(200, "a plain white background")] * len(sides)


def test_a_second_server_in_the_same_place_is_refused_and_the_first_goes_on(running):
    before = {p.pid for p in running.instance.processes()}
    with pytest.raises(StartupError, match="a server is running there already"):
        server.start(running.instance, StartOptions(CONFIG, ROOT / "model_store", load_seconds=1))
    assert {p.pid for p in running.instance.processes()} == before


def test_a_start_that_is_interrupted_leaves_nothing(tmp_path, demo_model):
    archive.build("captioner", "caption", demo_model, tmp_path / "store", handlers=ROOT / "handlers")
    config = settings_file(tmp_path, free_ports())
    command = [sys.executable, "-m", "reelscribe.cli", "server", "start", "--directory", str(tmp_path / "instance")]
    command += ["--config", str(config), "--model-store", str(tmp_path / "store")]
    instance = Instance(tmp_path / "instance")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as start:
        wait_until(instance.processes, start)
        left = instance.processes()
        start.terminate()
        output, _ = start.communicate(timeout=60)
    assert start.returncode == 130, output
    assert psutil.wait_procs(left, timeout=10)[1] == []
    assert instance.processes() == []
