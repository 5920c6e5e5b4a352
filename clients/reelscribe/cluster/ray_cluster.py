"""The nodes of a Ray cluster: one actor on each, which Ray places, and through which messages go.

This is the only module that knows Ray. An actor is pinned to its node and asks for as many CPUs as it has decode
processes, or for all of a smaller node. Ray starts no actor again: the driver does, because it knows which sources an
actor had, and gives up a node that is lost again and again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reelscribe.cluster.messages import Message
from reelscribe.cluster.node import Node, NodeSpec
from reelscribe.cluster.session import NodeLost
from reelscribe.errors import UsageError

LOOK_SECONDS = 1.0
"""Seconds between two looks at the nodes of the cluster."""

PLACE_SECONDS = 10.0
"""Seconds after which the user is told that Ray has no room for an actor."""

END_SECONDS = 20.0
"""Seconds in which an actor must have ended all that it has started, before it is killed."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class RayNode:
    """The actor on one node of the cluster."""

    def __init__(self, name: str, actor: Any, cpus: int) -> None:
        """Take an actor that Ray has been asked to place.

        Args:
            name: Name of the node.
            actor: Handle of the actor, a `Node`.
            cpus: Number of CPUs that it needs.
        """
        self.name = name
        self._actor, self._cpus = actor, cpus

    async def version(self) -> str:
        """Return the version of the node, as soon as Ray has placed its actor."""
        answer = asyncio.ensure_future(_of_ray(self._actor.version.remote()))
        done, _ = await asyncio.wait((answer,), timeout=PLACE_SECONDS)
        if not done:
            _log.warning("waiting for the cluster: node %s has no room for %d CPUs", self.name, self._cpus)
        return str(await answer)

    async def begin(self, spec: NodeSpec) -> None:
        """Open the models."""
        await _of_ray(self._actor.begin.remote(spec))

    async def tell(self, mail: Sequence[Message]) -> None:
        """Take messages of the driver."""
        await _of_ray(self._actor.tell.remote(mail))

    async def listen(self) -> list[Message]:
        """Return messages for the driver."""
        return list(await _of_ray(self._actor.listen.remote()))

    async def end(self) -> None:
        """End what the actor has started, and then the actor."""
        try:
            await asyncio.wait_for(_of_ray(self._actor.end.remote()), END_SECONDS)
        except (TimeoutError, NodeLost):
            _log.debug("node %s did not end by itself", self.name)
        ray.kill(self._actor)


class RayCluster:
    """The nodes of a Ray cluster. Use it as an async context manager."""

    def __init__(
        self, address: str, *, processes: int, runtime_env: Mapping[str, Any] | None = None, insecure: bool = False
    ) -> None:
        """Describe how to connect.

        Args:
            address: Address of the head, such as 10.0.0.1:6379, or "auto" for the cluster that this machine is part of.
            processes: Number of decode processes of a node, for which CPUs are asked.
            runtime_env: Ray's runtime environment for the actors; None for that of the nodes.
            insecure: Whether a cluster without token authentication is used, too.
        """
        self._insecure = insecure
        self._address, self._processes, self._runtime_env = address, processes, runtime_env
        self._used: set[str] = set()
        """Names of the nodes that have an actor, or had one and shall have no other."""
        self._told: str | None = None
        """What the user was told last about what the run waits for."""

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(
                ray.init,
                self._address,
                namespace=f"reelscribe-{os.getpid()}",
                logging_level=logging.ERROR,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise UsageError(f"--ray {self._address}: no Ray cluster can be used there: {_first_line(error)}") from None
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(ray.shutdown)

    async def nodes(self) -> AsyncIterator[RayNode]:
        """Yield each node that can be used, as soon as it can; again after `free`."""
        while True:
            alive = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
            usable = {_name(node): node for node in alive if node["Resources"].get("CPU", 0) >= 1}
            for name in usable.keys() - self._used:
                self._used.add(name)
                yield self._place(name, usable[name])
            self._tell("the cluster has no node with a CPU" if not usable else None)
            await asyncio.sleep(LOOK_SECONDS)

    def free(self, name: str) -> None:
        """Note that a node has no actor any more."""
        self._used.discard(name)

    def _place(self, name: str, node: Mapping[str, Any]) -> RayNode:
        """Ask Ray for an actor on a node."""
        cpus = min(self._processes, int(node["Resources"]["CPU"]))
        actor = ray.remote(Node).options(
            num_cpus=cpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            max_restarts=0,
            max_concurrency=16,
            runtime_env=dict(self._runtime_env or {}),
        )
        return RayNode(name, actor.remote(), cpus)

    def _tell(self, waits_for: str | None) -> None:
        if waits_for and waits_for != self._told:
            _log.warning("waiting: %s", waits_for)
        self._told = waits_for


def _name(node: Mapping[str, Any]) -> str:
    """Return what people know a node by: its address, and the beginning of its identity."""
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"


async def _of_ray(answer: Any) -> Any:
    try:
        return await answer
    except RayActorError as error:
        raise NodeLost(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
