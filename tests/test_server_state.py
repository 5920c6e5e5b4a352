"""How a server gets on, from what it says of its workers and what its log tells of them."""

import subprocess
import sys

import pytest

from reelscribe.instance import INSTANCE_VARIABLE, Instance
from reelscribe.model_version import ModelVersion
from reelscribe.server_log import WorkerHistory
from reelscribe.server_state import state_from, state_of


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
        ([], [], "ready"),
        ([version(True, True)], [], "ready"),
        ([version(minimum=0)], [], "ready"),
        ([version(minimum=1)], [], "loading"),
        ([version(True, False)], [history(9001, state="WORKER_STARTED")], "loading"),
        ([version(True, False)], [], "loading"),
        ([version(True, False)], [history(9001, was_ready=True)], "degraded"),
        ([version(False)], [history(was_ready=True)], "degraded"),
        ([version(False)], [history(was_ready=True, failed=True)], "failing"),
        ([version(False)], [history(said="OSError: x")], "failing"),
        ([version(False), version(True, name="speech")], [history(was_ready=True)], "degraded"),
        ([version(True, False, False)], [history(9001, was_ready=True), history(9002, failed=True)], "failing"),
    ],
)
def test_a_server_is_as_well_as_its_worst_worker(versions, histories, state):
    assert state_from(versions, histories).state == state


def test_a_version_that_fails_says_why_and_how_many_workers_it_has():
    (model,) = state_from([version(True, False)], [history(9001, failed=True, error="OSError: x")]).models
    assert (model.state, model.ready, model.wanted, model.error) == ("failing", 1, 2, "OSError: x")


def test_the_history_of_another_version_is_not_taken_for_its_own():
    other = WorkerHistory("9000", "captioner_2.0", failed=True)
    assert state_from([version(False)], [other]).state == "loading"


def test_a_server_that_has_just_begun_is_starting_and_one_without_processes_stopped(tmp_path):
    instance = Instance(tmp_path)
    assert state_of(instance).state == "stopped"
    environment = {INSTANCE_VARIABLE: str(tmp_path.resolve())}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        launcher.stdout.readline()
        assert state_of(instance).state == "starting"
        launcher.communicate(b"\n")
    assert state_of(instance).state == "stopped"
