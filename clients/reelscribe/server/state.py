"""How a server on this machine gets on: stopped, starting, loading, ready, degraded or failing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from reelscribe.client.credentials import Credentials
from reelscribe.errors import AccessRefused, ServerError, UsageError
from reelscribe.management.client import ManagementClient
from reelscribe.management.model_version import ModelVersion, Worker
from reelscribe.server.instance import Instance, is_java
from reelscribe.server.logs import WorkerHistory, best_explanation, worker_histories

State = Literal["stopped", "starting", "loading", "ready", "degraded", "failing"]
WORST_FIRST: tuple[State, ...] = ("failing", "degraded", "loading", "ready")
"""A version is as well as its worst worker, a server as its worst version."""

STARTING_SECONDS = 300.0
"""Archives with weights in them take a while to be unpacked; a server that is silent for longer has a reason."""


@dataclass(frozen=True)
class ModelState:
    """How a version of a model gets on."""

    name: str
    version: str
    state: State
    ready: int
    """Workers that take requests."""
    wanted: int
    """Workers that it should have."""
    error: str | None
    """Where it fails: the last error from the log; where it has no workers: what to do."""


@dataclass(frozen=True)
class ServerState:
    """How a server gets on.

    starting: it does not answer yet. loading: a worker has not been READY yet. degraded: one that was is restarting, or
    a model has none, or there is no model. failing: one could not load the model since it was READY, or the server does
    not answer, or refuses its own key.
    """

    state: State
    models: tuple[ModelState, ...] = ()
    error: str | None = None
    """Why the server as such is failing or degraded."""


def state_of(instance: Instance) -> ServerState:
    """How the server of a directory gets on. Not to be called from a coroutine: it runs its own."""
    processes = instance.processes()
    if not processes:
        return ServerState("stopped")
    java = [process for process in processes if is_java(process)]
    if not java and all(_is_worker(process) for process in processes):
        return ServerState("stopped")  # workers outlive a killed server by a second
    try:
        versions = asyncio.run(versions_of(instance, instance.management_credentials()))
    except AccessRefused as error:
        return ServerState("failing", error=str(error))
    except (OSError, ValueError, KeyError, UsageError, ServerError) as error:
        if time.time() - min(map(_started, processes)) < STARTING_SECONDS:
            return ServerState("starting")
        return ServerState("failing", error=f"{error}; last in its log: {best_explanation(instance)}")
    histories = [] if all(version.ready for version in versions) else worker_histories(instance)
    return state_from(versions, histories)


def state_from(versions: list[ModelVersion], histories: list[WorkerHistory]) -> ServerState:
    """What follows from what a server says of its models, and its log of their workers."""
    if not versions:
        return ServerState("degraded", error="it has no model; `reelscribe models register` gives it one")
    models = tuple(_model_state(version, histories) for version in versions)
    return ServerState(_worst([model.state for model in models]), models)


async def versions_of(instance: Instance, credentials: Credentials | None) -> list[ModelVersion]:
    """Every version that the server of a directory has registered.

    Whoever asks again and again keeps the `management_credentials`, so that a key is renewed once. Raises OSError,
    ValueError, KeyError, UsageError or ServerError.
    """
    address = instance.address("management_address")
    async with ManagementClient(address, credentials, ssl_context=instance.tls()) as management:
        return await management.models()


def _model_state(version: ModelVersion, histories: list[WorkerHistory]) -> ModelState:
    known = {history.id: history for history in histories if history.model == f"{version.name}_{version.version}"}
    states = [_worker_state(worker, known.get(worker.id)) for worker in version.workers]
    if len(version.workers) < version.min_workers:
        states.append("loading")
    errors = [known[worker.id].failure for worker in version.workers if not worker.ready and worker.id in known]
    state = _worst(states)
    error = next(filter(None, errors), None) if state == "failing" else None
    if not states:
        state, error = "degraded", "it has no workers; `reelscribe models scale` gives it some"
    return ModelState(
        name=version.name,
        version=version.version,
        state=state,
        ready=sum(worker.ready for worker in version.workers),
        wanted=max(version.min_workers, len(version.workers)),
        error=error,
    )


def _worker_state(worker: Worker, history: WorkerHistory | None) -> State:
    if worker.ready:
        return "ready"
    if history is None:
        return "loading"
    if history.failure:
        return "failing"
    return "degraded" if history.was_ready else "loading"


def _worst(states: list[State]) -> State:
    return next((state for state in WORST_FIRST if state in states), "ready")


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("model_service_worker" in word for word in process.cmdline())
    except psutil.Error:
        return True


def _started(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return time.time()
