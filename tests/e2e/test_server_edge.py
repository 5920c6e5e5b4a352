"""The real server from outside: descriptions, management and unusual requests."""

import asyncio
import pickle

import numpy as np
import pytest

from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import InputSize
from reelscribe.errors import AccessRefused, ModelApiOff, StartupError
from reelscribe.management.management_client import ManagementClient
from reelscribe.server import launcher
from reelscribe.server.start_options import StartOptions
from servers.torchserve import CONFIG, ROOT
from support.servers import caption_texts

FRAME = np.full((120, 160, 3), (40, 70, 220), np.uint8)  # blue
BLUE = "a plain blue background"


async def test_describe(server):
    async with server.client() as client:
        description = await client.describe()
    assert description.input_size == InputSize(224, 224)
    assert description.revision.startswith("sha256:")


async def test_management_knows_the_model_and_its_worker(server):
    key = server.instance.key("management")
    async with ManagementClient(server.instance.address("management_address"), key) as management:
        model = await management.describe("captioner")
    assert (model.name, model.version, model.is_default, model.ready) == ("captioner", "1.0", True, True)
    assert [worker.pid for worker in model.workers] == server.workers()


async def test_managements_describe_says_the_same(server):
    key = server.instance.key("management")
    async with ManagementClient(server.instance.address("management_address"), key) as management:
        described = await management.handler_description("captioner")
    async with server.client() as client:
        assert CaptionerDescription.from_json(described) == await client.describe()


async def test_a_server_that_was_not_started_for_it_registers_nothing(server):
    key = server.instance.key("management")
    async with ManagementClient(server.instance.address("management_address"), key) as management:
        with pytest.raises(ModelApiOff, match="--model-api"):
            await management.register("captioner.mar")
        with pytest.raises(ModelApiOff, match="--model-api"):
            await management.unregister("captioner")


async def test_the_wrong_key_does_not_manage(server):
    async with ManagementClient(server.instance.address("management_address"), server.token) as management:
        with pytest.raises(AccessRefused, match="status 400"):
            await management.models()


async def test_without_a_token_nothing_is_answered(server):
    status, text = await server.post(pickle.dumps(FRAME), {"Authorization": ""})
    assert status == 400
    assert "oken" in text


async def test_frames_of_every_size(server):
    sides = [(1, 1), (1, 32), (320, 10), (224, 224), (1080, 1920), (3, 7)]
    answers = await asyncio.gather(*(server.post(pickle.dumps(np.full((*s, 3), 245, np.uint8))) for s in sides))
    assert [status for status, _ in answers] == [200] * len(sides)
    assert {caption_texts(text) for _, text in answers} == {"a plain white background"}


def test_a_second_server_in_the_same_place_is_refused_and_the_first_goes_on(server):
    before = {p.pid for p in server.instance.processes()}
    with pytest.raises(StartupError, match="a server is running there already"):
        launcher.start(server.instance, StartOptions(CONFIG, ROOT / "model_store", load_seconds=1))
    assert {p.pid for p in server.instance.processes()} == before
