"""Workers are added and removed until there are as many as wanted, evenly on all GPUs, also while the queue is full."""

import pytest

from reelscribe.errors import StartupError, UsageError
from support.fake_management import FakeManagement, FakeVersion


@pytest.fixture
def on_gpus(server: FakeManagement) -> FakeVersion:
    """The captioner, with four workers on four GPUs."""
    version = FakeVersion("captioner.mar", 4, 4, [True] * 4, devices=(0, 1, 2, 3), gpus=[0, 1, 2, 3])
    server.models["captioner"]["1.0"] = version
    return version


async def test_scaling_sets_both_bounds_and_waits(server, client):
    assert len((await client.scale("captioner", 3)).workers) == 3
    assert len((await client.scale("captioner", 1, 2)).workers) == 2
    assert (await client.scale("captioner", 0)).workers == ()
    assert server.changes == [
        "PUT /models/captioner/1.0?min_worker=3&max_worker=3",
        "PUT /models/captioner/1.0?min_worker=1&max_worker=2",
        "PUT /models/captioner/1.0?min_worker=1&max_worker=1",  # the last worker is removed alone
        "PUT /models/captioner/1.0?min_worker=0&max_worker=0",
    ]


@pytest.mark.parametrize("numbers", [(-1, None), (2, 1), (0, 2)])
async def test_impossible_numbers_of_workers_are_refused(server, client, numbers):
    with pytest.raises(UsageError, match="0 <= minimum <= maximum, both 0 or neither"):
        await client.scale("captioner", *numbers)
    assert server.requests == []


@pytest.mark.parametrize("numbers", [(3, 4), (1, 4), (2, 3, 4), (6, 1, 3, 8), (3, 6)])
async def test_workers_that_are_scaled_down_and_up_are_on_all_gpus(client, on_gpus, numbers):
    for number in numbers:
        scaled = await client.scale("captioner", number)
        each = [on_gpus.gpus.count(gpu) for gpu in on_gpus.devices]
        assert (len(scaled.workers), sum(each)) == (number, number)
        assert max(each) - min(each) <= 1
        assert (on_gpus.min_workers, on_gpus.max_workers) == (number, number)


async def test_workers_on_the_right_gpus_are_not_moved(server, client, on_gpus):
    on_gpus.gpus, on_gpus.turn = [0, 1, 2, 0], 1
    await client.scale("captioner", 4)
    assert on_gpus.gpus == [0, 1, 2, 3]
    assert not any("min_worker=2" in request for request in server.changes)


async def test_workers_that_cannot_be_spread_are_scaled_all_the_same(client, on_gpus):
    on_gpus.gpus, on_gpus.gpu_usage = None, "gpuId::0 usage::0"
    scaled = await client.scale("captioner", 3)
    assert (len(scaled.workers), on_gpus.min_workers) == (3, 3)
    assert scaled.advice() == (
        "its workers are on GPUs 0, 0, 0; `reelscribe models scale captioner 3` spreads them evenly"
    )


async def test_a_model_that_cannot_load_is_not_moved_for_ever(client, on_gpus):
    on_gpus.gpus = [0, 0, 0, 0]
    with pytest.raises(StartupError, match=r"captioner 1\.0 cannot be loaded: no weights"):
        await client.scale("captioner", 4, why=lambda *_: "no weights")


@pytest.mark.parametrize("number", [1, 0])
async def test_scaling_down_goes_on_when_torchserve_ends_halfway(server, client, on_gpus, number):
    server.halfway = 2
    assert len((await client.scale("captioner", number)).workers) == number
    assert (server.halfway, server.orphans) == (0, 0)


async def test_a_version_with_a_full_queue_is_unregistered_with_all_of_its_workers(server, client, on_gpus):
    server.halfway = 4
    await client.unregister("captioner", drain_seconds=0)
    assert (server.models, server.halfway, server.orphans) == ({}, 0, 0)
