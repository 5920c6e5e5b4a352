"""The state of a server on this machine: stopped, starting, loading, ready, degraded or failing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Literal

import psutil

from reelscribe.client.credentials import Credentials
from reelscribe.errors import AccessRefused, ServerError, UsageError
from reelscribe.management.management_client import ManagementClient
from reelscribe.management.model_version import ModelVersion, Worker
from reelscribe.server.instance import Instance
from reelscribe.server.logs import WorkerHistory, best_explanation, worker_histories
from reelscribe.server.sizes import idle_gpus

State = Literal["stopped", "starting", "loading", "ready", "degraded", "failing"]
WORST_FIRST: tuple[State, ...] = ("failing", "degraded", "loading", "ready")
"""The state of a version is that of its worst worker; the state of a server is that of its worst version."""

STARTING_SECONDS = 300.0
"""Seconds that a server may take until it answers, because it unpacks archives first; then it counts as failing."""


@dataclass(frozen=True)
class ModelState:
    """The state of a version of a model."""

    name: str
    version: str
    state: State
    ready: int
    """Number of workers that take requests."""
    wanted: int
    """Number of workers that the version should have."""
    error: str | None
    """Last error from the log if the version is failing; advice if it has no workers, or if they are not spread evenly
    over its GPUs; None otherwise."""


@dataclass(frozen=True)
class ServerState:
    """The state of a server.

    - stopped: no process of it runs.
    - starting: it does not answer yet.
    - loading: a worker has not been READY yet.
    - ready: every worker of every model is READY.
    - degraded: a worker that was READY is restarting, a model has no workers, or there is no model.
    - failing: a worker cannot load its model, or the server does not answer or refuses its own key.
    """

    state: State
    models: tuple[ModelState, ...] = ()
    error: str | None = None
    """The reason why the server itself, and not one of its models, is failing or degraded; or which GPUs no model uses;
    None otherwise."""


def state_of(instance: Instance) -> ServerState:
    """Determine the state of the server in a directory.

    This runs an event loop, so it cannot be called from a coroutine.

    Args:
        instance: Where the server lives.

    Returns:
        Its state, with that of each version of each model if the server answers.
    """
    if not instance.runs():
        return ServerState("stopped")
    processes = instance.processes()
    try:
        versions = asyncio.run(versions_of(instance, instance.management_credentials()))
    except AccessRefused as error:
        return ServerState("failing", error=str(error))
    except (OSError, ValueError, KeyError, UsageError, ServerError) as error:
        if time.time() - min(map(_started, processes), default=0.0) < STARTING_SECONDS:
            return ServerState("starting")
        return ServerState("failing", error=f"{error}; last in its log: {best_explanation(instance)}")
    histories = [] if all(version.ready for version in versions) else worker_histories(instance)
    state = state_from(versions, histories, instance.gpus)
    return replace(state, error=state.error or idle_gpus(instance.gpus, versions))


def state_from(versions: list[ModelVersion], histories: list[WorkerHistory], gpus: int = 0) -> ServerState:
    """Derive the state of a server that answers.

    Args:
        versions: Every registered version, as the server describes it.
        histories: The workers that the server's log mentions.
        gpus: Number of GPUs of the server; 0 if it is not known.
    """
    if not versions:
        return ServerState("degraded", error="it has no model; `reelscribe models register` adds one")
    models = tuple(_model_state(version, histories, gpus) for version in versions)
    return ServerState(_worst([model.state for model in models]), models)


async def versions_of(instance: Instance, credentials: Credentials | None) -> list[ModelVersion]:
    """Ask a server for every version of every model.

    Args:
        instance: Where the server lives.
        credentials: Its `management_credentials`. Pass the same object to each call, so that it renews a token once.

    Raises:
        OSError: No server was started in the directory.
        ValueError: TorchServe has not finished writing its key file.
        KeyError: The settings hold no management address.
        UsageError: The key file or the address cannot be used.
        ServerError: The server does not answer, or answers unexpectedly.
    """
    address = instance.address("management_address")
    async with ManagementClient(address, credentials, ssl_context=instance.tls()) as management:
        return await management.models()


def _model_state(version: ModelVersion, histories: list[WorkerHistory], gpus: int) -> ModelState:
    known = {history.id: history for history in histories if history.model == f"{version.name}_{version.version}"}
    states = [_worker_state(worker, known.get(worker.id)) for worker in version.workers]
    if len(version.workers) < version.min_workers:
        states.append("loading")
    errors = [known[worker.id].failure for worker in version.workers if not worker.ready and worker.id in known]
    state = _worst(states)
    error = next(filter(None, errors), None) if state == "failing" else version.advice(gpus)
    if not states:
        state, error = "degraded", "it has no workers; `reelscribe models scale` adds some"
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


def _started(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return time.time()
