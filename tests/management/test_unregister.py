"""A version is unregistered after it has answered what it was sent."""

import asyncio

import pytest

from reelscribe.errors import ModelApiOff, ServerError
from support.fake_management import FakeVersion, refused


async def test_a_version_answers_what_waits_before_it_is_unregistered(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.unregister("captioner", "2.0")
    path = "/models/captioner/2.0"
    assert [line for line in server.requests if "customized" in line or not line.startswith("GET")] == [
        "POST /models",  # whether models can be unregistered at all
        f"GET {path}?customized=true",
        f"PUT {path}?min_worker=0&max_worker=0",  # so that no worker puts requests back into a queue that is full
        f"DELETE {path}",
    ]


async def test_several_workers_may_compute_to_their_end_before_they_are_unregistered(server, client, monkeypatch):
    several = FakeVersion("c.mar", min_workers=2, max_workers=2, ready=[True, True], response_seconds=900)
    server.models["captioner"]["1.0"] = several
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append((seconds, server.changes))

    monkeypatch.setattr("reelscribe.management.management_client.asyncio.sleep", sleep)
    await client.unregister("captioner")
    assert (900, ["POST /models"]) in waits  # and no DELETE yet
    assert server.models == {}


async def test_without_the_model_api_an_unregistration_fails_at_once(server, client):
    several = FakeVersion("c.mar", min_workers=4, max_workers=4, ready=[True] * 4, response_seconds=900)
    server.models["captioner"]["1.0"] = several
    server.refuse["POST"] = refused(405, "MethodNotAllowedException", "Requested method is not allowed")
    with pytest.raises(ModelApiOff, match="--model-api"):
        await client.unregister("captioner")
    assert server.changes == ["POST /models"]
    assert (several.min_workers, several.ready) == (4, [True] * 4)


async def test_a_refused_unregistration_costs_no_worker(server, client):
    several = FakeVersion("c.mar", min_workers=4, max_workers=4, ready=[True] * 4)
    server.models["captioner"]["1.0"] = several
    server.refuse["DELETE"] = refused(408, "RequestTimeoutException", "still ending workers")
    with pytest.raises(ServerError, match="still ending workers"):
        await client.unregister("captioner")
    assert (several.min_workers, several.ready) == (4, [True] * 4)


@pytest.mark.parametrize("end", [ServerError("lost"), asyncio.CancelledError()])
async def test_an_unregistration_that_ends_halfway_gives_its_workers_back(server, client, monkeypatch, end):
    several = FakeVersion("c.mar", min_workers=4, max_workers=5, ready=[True] * 4)
    server.models["captioner"]["1.0"] = several
    server.halfway = 1  # one worker is removed, and the client is about to ask again

    async def sleep(_: float) -> None:
        assert len(several.ready) == 3
        raise end

    with monkeypatch.context() as patch, pytest.raises(type(end)):
        patch.setattr("reelscribe.management.management_client.asyncio.sleep", sleep)
        await client.unregister("captioner", drain_seconds=0)
    assert (several.min_workers, several.max_workers, several.ready) == (4, 5, [True] * 4)


async def test_a_version_can_be_unregistered_at_once(server, client):
    await client.unregister("captioner", drain_seconds=0)
    assert server.models == {}
    assert not any("customized" in line for line in server.requests)


async def test_the_default_version_of_several_is_not_drained(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.scale("captioner", 2)
    await client.unregister("captioner", "1.0")  # TorchServe refuses it; the fake does not
    assert server.changes[1:] == ["DELETE /models/captioner/1.0"]
