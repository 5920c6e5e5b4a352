"""A registration either ends with a version that is ready, or leaves nothing behind."""

import asyncio

import pytest

from reelscribe.errors import ServerOutOfMemory, StartupError
from support.fake_management import FakeVersion, refused


async def test_a_registration_waits_until_it_is_ready(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar"))
    made = await client.register("new.mar")
    assert (made.name, made.version, made.ready, made.is_default) == ("new", "1.0", True, True)
    assert server.changes == ["POST /models?url=new.mar&initial_workers=0&synchronous=false"]


async def test_a_given_number_of_workers_replaces_that_of_the_archive(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", min_workers=1, max_workers=4))
    assert len((await client.register("new.mar", workers=2)).workers) == 2
    assert server.changes[1] == "PUT /models/new/1.0?min_worker=2&max_worker=2"


async def test_a_new_version_is_joined_as_the_default_version_of_its_model(server, client):
    server.models["captioner"]["1.0"].batch_size = 128
    server.archives["captioner-2.0.mar"] = ("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    assert (await client.register("captioner-2.0.mar")).batch_size == 128
    server.archives["own.mar"] = ("captioner", "3.0", FakeVersion("own.mar", batch_size=4))
    assert (await client.register("own.mar")).batch_size == 4  # as its archive says


async def test_a_new_version_has_the_workers_and_joined_requests_that_are_chosen_for_it(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", min_workers=4, max_workers=4, ready=[True] * 4))
    await client.register("new.mar", sizes={"minWorkers": 4, "maxWorkers": 4, "batchSize": 16, "maxBatchDelay": 5})
    (registration,) = server.changes
    assert registration.endswith("?url=new.mar&initial_workers=4&synchronous=false&batch_size=16&max_batch_delay=5")


async def test_a_new_version_that_says_no_workers_has_as_many_as_the_default_version(server, client):
    await client.scale("captioner", 3)
    server.archives["captioner-2.0.mar"] = ("captioner", "2.0", FakeVersion("captioner-2.0.mar", 0, 0, ready=[]))
    assert len((await client.register("captioner-2.0.mar")).workers) == 3


async def test_a_registration_that_cannot_load_leaves_nothing_and_says_why(server, client):
    server.archives["captioner-2.0.mar"] = ("captioner", "2.0", FakeVersion("captioner-2.0.mar", ready=[False]))
    reasons = {("captioner", "2.0"): "StartupError: no weights"}
    with pytest.raises(StartupError, match=r"^captioner 2\.0 cannot be loaded: StartupError: no weights$"):
        await client.register("captioner-2.0.mar", why=lambda *version: reasons.get(version))
    assert list(server.models["captioner"]) == ["1.0"]


async def test_a_registration_that_takes_too_long_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    with pytest.raises(StartupError, match="0 of 1 workers ready after 0 s"):
        await client.register("new.mar", seconds=0)
    assert "new" not in server.models


async def test_a_registration_without_workers_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", min_workers=0, ready=[]))
    with pytest.raises(StartupError, match=r"has no workers, .* An archive without a valid minWorkers"):
        await client.register("new.mar")
    assert "new" not in server.models


async def test_waiting_for_a_model_that_was_scaled_to_nothing_says_how_to_give_it_workers(client):
    await client.scale("captioner", 0)
    with pytest.raises(StartupError, match=r"^captioner 1\.0 has no workers, .* `reelscribe models scale captioner 1`"):
        await client.wait_ready("captioner")


async def test_a_registration_whose_workers_are_refused_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", max_workers=4))
    server.refuse["PUT"] = refused(507, "OutOfMemoryError", "no room for workers")
    with pytest.raises(ServerOutOfMemory, match="no room for workers"):
        await client.register("new.mar", workers=2)
    assert "new" not in server.models


async def test_a_registration_that_is_given_up_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    waits = asyncio.Event()
    registering = asyncio.ensure_future(client.register("new.mar", why=lambda *_: waits.set()))
    await waits.wait()
    registering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await registering
    assert "new" not in server.models


async def test_a_failing_unregistration_does_not_hide_why_the_registration_failed(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    server.refuse["DELETE"] = refused(408, "RequestTimeoutException", "still ending workers")
    with pytest.raises(StartupError, match="cannot be loaded: OSError: no weights"):
        await client.register("new.mar", why=lambda *_: "OSError: no weights")


async def test_a_registration_need_not_wait(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    assert not (await client.register("new.mar", seconds=None)).ready
    assert "new" in server.models
