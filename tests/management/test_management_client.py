"""The management client reads models and versions, and changes them."""

import pytest

from reelscribe.errors import UsageError
from reelscribe.management.management_client import ManagementClient
from reelscribe.management.model_version import Worker
from support.fake_management import FakeVersion


async def test_a_model_is_described(client):
    described = await client.describe("captioner")
    assert (described.name, described.version, described.archive) == ("captioner", "1.0", "captioner.mar")
    assert described.workers == (Worker("9000", "READY", 100, gpu=3, memory=2**20),)
    assert (described.min_workers, described.max_workers) == (1, 1)
    assert (described.queue_pending, described.queue_capacity) == (0, 16)
    assert (described.response_seconds, described.startup_seconds, described.device_ids) == (120, 600, (2, 3))
    assert (described.batch_size, described.batch_delay_ms) == (1, 1)


async def test_all_versions_of_all_models_are_listed_page_by_page(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    for k in range(100):
        server.add(f"other{k}", "1.0", FakeVersion(f"{k}.mar"))
    models = await client.models()
    assert len(models) == 102
    assert [(m.version, m.is_default) for m in models if m.name == "captioner"] == [("1.0", True), ("2.0", False)]


async def test_versions_are_in_the_order_of_their_numbers(server, client):
    for version in ("10.0", "9.0"):
        server.add("captioner", version, FakeVersion(f"captioner-{version}.mar"))
    assert [described.version for described in await client.versions("captioner")] == ["1.0", "9.0", "10.0"]


async def test_each_version_is_described_once_although_that_is_a_look_at_every_gpu(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    server.add("speech", "1.0", FakeVersion("speech.mar"))
    server.defaults["captioner"] = "2.0"
    models = await client.models()
    assert [model.version for model in models if model.is_default] == ["2.0", "1.0"]
    assert server.requests[1:] == ["GET /models/captioner/all", "GET /models/speech/all"]


async def test_the_default_of_two_versions_from_one_archive_is_known(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner.mar"))
    server.defaults["captioner"] = "2.0"
    assert [model.is_default for model in await client.models()] == [False, True]


async def test_a_model_that_is_unregistered_while_models_are_listed_is_left_out(server, client):
    server.gone = {"another"}
    assert [model.name for model in await client.models()] == ["captioner"]


async def test_one_version_of_several_is_described(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar", ready=[False]))
    assert (await client.describe("captioner")).version == "1.0"
    second = await client.describe("captioner", "2.0")
    assert (second.archive, second.is_default, second.ready) == ("captioner-2.0.mar", False, False)


async def test_the_handler_describes_itself(client):
    assert await client.handler_description("captioner") == {"name": "a/b"}


async def test_ping_says_whether_it_is_healthy(server, client):
    assert await client.ping()
    server.healthy = False
    assert not await client.ping()


async def test_metrics_are_the_text_of_prometheus(client):
    assert "ts_inference_requests_total" in await client.metrics()


async def test_an_api_without_an_address_is_named(server):
    async with ManagementClient(server.url) as client:
        with pytest.raises(UsageError, match="no address of the inference API"):
            await client.ping()


async def test_waiting_ends_when_all_workers_are_ready(server, client):
    server.models["captioner"]["1.0"] = FakeVersion("captioner.mar", min_workers=2, ready=[True, False])
    asked = []

    def when_asked_why(*version: str) -> None:
        asked.append(version)
        server.models["captioner"]["1.0"].ready = [True, len(asked) == 2]

    assert (await client.wait_ready("captioner", why=when_asked_why)).ready
    assert asked == [("captioner", "1.0")] * 2


async def test_another_version_becomes_the_default(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.set_default("captioner", "2.0")
    assert (await client.describe("captioner")).version == "2.0"
