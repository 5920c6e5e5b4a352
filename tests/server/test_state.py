"""The state of a server follows from what it says of its workers and from its log."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from reelscribe.management.model_version import ModelVersion, Worker
from reelscribe.server.instance import INSTANCE_VARIABLE, Instance
from reelscribe.server.logs import WorkerHistory
from reelscribe.server.state import ServerState, state_from, state_of
from support.fake_management import FakeManagement, FakeVersion
from support.fake_torchserve import write_key_file


def version(*ready: bool, minimum: int | None = None, name: str = "captioner") -> ModelVersion:
    """A version whose workers 9000, 9001 and so on are READY or not."""
    answer = {
        "modelName": name,
        "modelVersion": "1.0",
        "modelUrl": "x.mar",
        "batchSize": 1,
        "maxBatchDelay": 1,
        "minWorkers": len(ready) if minimum is None else minimum,
        "maxWorkers": 9,
        "responseTimeout": 1,
        "startupTimeout": 1,
        "jobQueueStatus": {"pendingRequests": 0, "remainingCapacity": 1},
        "workers": [
            {"id": str(9000 + i), "status": "READY" if up else "UNLOADING", "pid": 1} for i, up in enumerate(ready)
        ],
    }
    return ModelVersion.from_json(answer, "1.0")


def history(worker: int = 9000, **what: object) -> WorkerHistory:
    return WorkerHistory(str(worker), "captioner_1.0", **what)


@pytest.mark.parametrize(
    ("versions", "histories", "state"),
    [
        ([], [], "degraded"),
        ([version(True, True)], [], "ready"),
        ([version(minimum=0)], [], "degraded"),
        ([version(minimum=0), version(True, name="speech")], [], "degraded"),
        ([version(minimum=1)], [], "loading"),
        ([version(True, False)], [history(9001, state="WORKER_STARTED")], "loading"),
        ([version(True, False)], [], "loading"),
        ([version(True, False)], [history(9001, was_ready=True)], "degraded"),
        ([version(False)], [history(was_ready=True)], "degraded"),
        ([version(False)], [history(was_ready=True, failed=True)], "failing"),
        ([version(False)], [history(reason="OSError: x")], "failing"),
        ([version(False), version(True, name="speech")], [history(was_ready=True)], "degraded"),
        ([version(True, False, False)], [history(9001, was_ready=True), history(9002, failed=True)], "failing"),
    ],
)
def test_the_state_of_a_server_is_that_of_its_worst_worker(versions, histories, state):
    assert state_from(versions, histories).state == state


def test_a_version_that_fails_says_why_and_how_many_workers_it_has():
    (model,) = state_from([version(True, False)], [history(9001, failed=True, error="OSError: x")]).models
    assert (model.state, model.ready, model.wanted, model.error) == ("failing", 1, 2, "OSError: x")


def test_a_version_without_workers_and_a_server_without_models_say_what_they_lack():
    (model,) = state_from([version(minimum=0)], []).models
    assert (model.ready, model.wanted, "no workers; `reelscribe models scale`" in model.error) == (0, 0, True)
    assert "no model; `reelscribe models register`" in state_from([], []).error


def test_a_version_whose_workers_share_a_gpu_while_another_idles_says_so():
    on_gpus = [Worker(f"{9000 + k}", "READY", 1, gpu, 0) for k, gpu in enumerate([0, 1, 2, 0])]
    of_auto = replace(version(*[True] * 4), workers=tuple(on_gpus))
    (model,) = state_from([of_auto], [], gpus=4).models
    assert (model.state, model.error) == (
        "ready",
        "its workers are on GPUs 0, 1, 2, 0; `reelscribe models scale captioner 4` spreads them evenly",
    )
    assert state_from([of_auto], [], gpus=3).models[0].error is None
    assert state_from([replace(of_auto, device_ids=(0, 1, 2, 3))], []).models[0].error == model.error


def test_two_workers_for_each_pair_of_gpus_are_spread_evenly():
    pairs = [Worker(f"{9000 + k}", "READY", 1, gpu, 0) for k, gpu in enumerate([0, 2, 0, 2])]
    staged = replace(version(*[True] * 4), stages=2, device_ids=(4, 5, 6, 7), workers=tuple(pairs))
    assert staged.evenly_spread() == 4
    assert replace(staged, workers=(pairs[0], pairs[2])).evenly_spread() == 1


def test_the_history_of_another_version_is_not_taken_for_its_own():
    other = WorkerHistory("9000", "captioner_2.0", failed=True)
    assert state_from([version(False)], [other]).state == "loading"


@pytest.fixture
def instance(tmp_path) -> Instance:
    return Instance(tmp_path)


@contextmanager
def process_of(instance: Instance, variable: str = INSTANCE_VARIABLE, *words: str) -> Iterator[None]:
    """Run a process that belongs to an instance while the block runs."""
    environment = {variable: str(instance.directory.resolve())}
    command = [sys.executable, "-c", "print(flush=True); input()", *words]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield
        process.communicate(b"\n")


async def state_at(
    instance: Instance,
    url: str,
    expires: str = "2999-01-01T00:00:00Z",
    renewed_by: FakeManagement | None = None,
    gpus: int = 0,
) -> ServerState:
    """Determine the state of a running server with its management API at `url` and a key that expires then."""
    instance.config.write_text(f"management_address={url}\nnumber_of_gpu={gpus}\n")
    write_key_file(instance.key_file, "key", expires)
    if renewed_by:
        renewed_by.key, renewed_by.key_file = "another", instance.key_file
    with process_of(instance):
        return await asyncio.to_thread(state_of, instance)


def test_a_server_that_has_just_started_is_starting_and_one_without_processes_is_stopped(tmp_path):
    instance = Instance(tmp_path)
    assert state_of(instance).state == "stopped"
    with process_of(instance):
        assert state_of(instance).state == "starting"
    assert state_of(instance).state == "stopped"


def test_a_shell_that_has_the_address_of_a_server_is_not_taken_for_one(tmp_path):
    instance = Instance(tmp_path)
    with process_of(instance, "REELSCRIBE_SERVER"):
        assert instance.processes() == []


async def test_an_expired_key_is_renewed_to_determine_the_state(instance):
    async with FakeManagement() as server:
        server.add("captioner", "1.0", FakeVersion("captioner.mar"))
        state = await state_at(instance, server.url, "2020-01-01T00:00:00.123456789Z", renewed_by=server)
        assert (state.state, state.error) == ("ready", None)
        assert "GET /token?type=management" in server.requests


async def test_a_server_that_leaves_gpus_idle_is_ready_and_says_so(instance):
    async with FakeManagement() as server:
        server.add("captioner", "1.0", FakeVersion("captioner.mar", gpu_usage="gpuId::1 "))
        state = await state_at(instance, server.url, gpus=4)
    assert state.state == "ready"
    assert state.error.startswith(
        "no model uses GPUs 0, 2, 3: `reelscribe models scale MODEL 4` gives each GPU a worker"
    )


async def test_a_server_that_refuses_its_own_key_is_failing(instance):
    async with FakeManagement(key="another") as server:
        state = await state_at(instance, server.url)
    assert (state.state, state.models) == ("failing", ())
    assert "keys expire" in state.error
    assert "last in its log" not in state.error


async def test_a_server_that_has_not_answered_for_long_is_failing_with_its_last_error(instance, monkeypatch):
    monkeypatch.setattr("reelscribe.server.state.STARTING_SECONDS", 0)
    instance.logs.mkdir()
    (instance.logs / "console.log").write_text("java.lang.OutOfMemoryError: Java heap space\n")
    state = await state_at(instance, "http://127.0.0.1:9")
    assert state.state == "failing"
    assert "is the server running?; last in its log: java.lang.OutOfMemoryError: Java heap space" in state.error
