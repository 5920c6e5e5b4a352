"""The nodes of a Ray cluster: one actor on each, which Ray places, and through which messages go.

This is the only module that knows Ray. An actor is pinned to its node and asks for as many CPUs as it has decode
processes, or for all of a smaller node. Where cores decide how many these are, it asks for all CPUs that no other
program holds. Ray starts no actor again: the driver does, because it knows which sources an actor had, and gives up a
node that is lost again and again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import grpc
import ray
from ray._private import state
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayActorError, RayError, RayTaskError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reelscribe._cores import LEAST_PROCESSES
from reelscribe._web_addresses import parse_web_address
from reelscribe.cluster.mail import Message
from reelscribe.cluster.remote_node import NodeSpec, RemoteNode
from reelscribe.cluster.serving import Archive
from reelscribe.errors import NodeRefused, ReelscribeError, UsageError
from reelscribe.run.lost_nodes import NodeLost

LOOK_SECONDS = 1.0
"""Seconds between two looks at the nodes of the cluster."""

PLACE_SECONDS = 10.0
"""Seconds after which the user is told that Ray has no room for an actor."""

FREE_SECONDS = 10.0
"""Seconds for which CPUs of a node are waited for that are not free. Those of a run or an actor that has just ended are
free soon; those of other programs may be taken for days."""

END_SECONDS = 20.0
"""Seconds in which an actor must have ended all that it has started, before it is killed."""

PROBE_SECONDS = 10.0
"""Timeout, in seconds, of the question whether a cluster demands a token."""

_PROBED_METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A method of Ray's head that does nothing; its request may be empty."""

_log = logging.getLogger(__name__)


class NodeActor:
    """The actor on a node: a `RemoteNode` whose mail is pickled here, which is faster than what Ray does with it."""

    def __init__(self, *, own_threads: bool) -> None:
        """Begin with nothing to do.

        Args:
            own_threads: Whether the user has chosen OMP_NUM_THREADS. Otherwise Ray has, and a server of the node's own
                would compute on as many cores as the actor has asked for, which are those for decoding.
        """
        if not own_threads:
            os.environ.pop("OMP_NUM_THREADS", None)
        self._node = RemoteNode()

    async def version(self) -> str:
        """Return the version of the node."""
        return await self._node.version()

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Return the digests of the archives that the machine does not have."""
        return await self._node.archives.lacking(digests)

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        """Take the next bytes of an archive."""
        await self._node.archives.receive(archive, chunk)

    async def begin(self, spec: bytes) -> None:
        """Open the models."""
        with suppress(PermissionError):  # Ray gives actors a low priority, which is inherited by what they start
            for thread in os.listdir("/proc/self/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)
        await self._node.begin(pickle.loads(spec))  # noqa: S301 - who may send it may run programs anyway

    async def tell(self, mail: bytes) -> None:
        """Take messages of the driver."""
        await self._node.tell(pickle.loads(mail))  # noqa: S301 - likewise

    async def listen(self) -> bytes:
        """Return messages for the driver."""
        return pickle.dumps(await self._node.listen())

    async def end(self) -> None:
        """End all that the node has started."""
        await self._node.end()


class RayNode:
    """The actor on one node of the cluster, as the driver reaches it."""

    def __init__(self, name: str, actor: Any, cpus: int) -> None:
        """Take an actor that Ray has been asked to place.

        Args:
            name: Name of the node.
            actor: Handle of the actor, a `NodeActor`.
            cpus: Number of CPUs that it needs.
        """
        self.name = name
        self._actor, self._cpus = actor, cpus
        self._is_placed = False

    async def version(self) -> str:
        """Return the version of the node, as soon as Ray has placed its actor."""
        waiting = "waiting for the cluster: node %s has not had room for %d CPUs"
        notice = asyncio.get_running_loop().call_later(PLACE_SECONDS, _log.warning, waiting, self.name, self._cpus)
        try:
            version = str(await _answered(self._actor.version.remote()))
        finally:
            notice.cancel()
        self._is_placed = True
        return version

    async def lacking(self, digests: Sequence[str]) -> list[str]:
        """Return the digests of the archives that its machine does not have."""
        return list(await _answered(self._actor.lacking.remote(digests)))

    async def receive(self, archive: Archive, chunk: bytes) -> None:
        """Take the next bytes of an archive, which pass through Ray's object store."""
        await _answered(self._actor.receive.remote(archive, chunk))

    async def begin(self, spec: NodeSpec) -> None:
        """Open the models."""
        await _answered(self._actor.begin.remote(pickle.dumps(replace(spec, most_cores=self._cpus))))

    async def tell(self, mail: Sequence[Message]) -> None:
        """Take messages of the driver."""
        await _answered(self._actor.tell.remote(pickle.dumps(mail)))

    async def listen(self) -> list[Message]:
        """Return messages for the driver."""
        mail: list[Message] = pickle.loads(await _answered(self._actor.listen.remote()))  # noqa: S301 - of our own actor
        return mail

    async def end(self) -> None:
        """End what the actor has started, and then the actor."""
        if self._is_placed:  # else it has started nothing, and would not answer
            with suppress(TimeoutError, NodeLost, ReelscribeError):
                await asyncio.wait_for(_answered(self._actor.end.remote()), END_SECONDS)
        with suppress(RayError, ValueError):  # there is no connection any more
            ray.kill(self._actor)


class RayCluster:
    """The nodes of a Ray cluster. Use it as an async context manager."""

    def __init__(
        self,
        address: str,
        *,
        processes: int | None,
        runtime_env: Mapping[str, Any] | None = None,
        insecure: bool = False,
        serve: bool = False,
        most_nodes: int | None = None,
        wanted_nodes: int | None = None,
    ) -> None:
        """Describe how to connect.

        Args:
            address: Address of the head, such as 10.0.0.1:6379, or "auto" for the cluster that this machine is part of.
            processes: Number of decode processes of a node, for which CPUs are asked; None to ask for all that are
                free on a node, and two at least.
            runtime_env: Ray's runtime environment for the run; None for that of the nodes.
            insecure: Whether a cluster without token authentication is used, too.
            serve: Whether nodes serve models by themselves. Then only nodes with GPUs are used, all GPUs of each.
            most_nodes: Use at most so many nodes, also such without GPUs; None for all.
            wanted_nodes: Ask Ray's autoscaler for so many nodes while the run lasts; None for those that there are.
        """
        self._serve, self._most_nodes, self._wanted_nodes = serve, most_nodes, wanted_nodes
        self._address, self._processes, self._runtime_env = address, processes, dict(runtime_env or {})
        self._insecure = insecure
        self._used: set[str] = set()
        """Names of the nodes that have an actor, or had one and shall have no other."""
        self._waited_since: dict[str, float] = {}
        """The time of `time.monotonic` since which the CPUs of a node are waited for, by its name."""
        self._is_told = False
        """True if the user was told that the run waits for a node."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._connect)
        if self._wanted_nodes:
            gpu = {"GPU": 1} if self._needs_gpus else {}
            bundle = {"CPU": self._processes or LEAST_PROCESSES, **gpu}
            await asyncio.to_thread(request_resources, bundles=[bundle] * self._wanted_nodes)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._wanted_nodes:
            await asyncio.to_thread(request_resources, bundles=[])
        await asyncio.to_thread(ray.shutdown)

    async def nodes(self) -> AsyncIterator[RayNode]:
        """Yield each node that can be used, as soon as it can; again after `free`."""
        while True:
            alive = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
            usable = {_name(node): node for node in alive if self._is_usable(node["Resources"])}
            for name in sorted(usable.keys() - self._used):
                may_have_one = self._most_nodes is None or len(self._used & usable.keys()) < self._most_nodes
                if may_have_one and (cpus := await self._cpus_to_ask(name, usable[name])):
                    self._used.add(name)
                    yield self._place(name, usable[name], cpus)
            if not (usable or self._is_told):
                what = (
                    "a GPU; with --serve-nodes N, nodes without one serve the models, too"
                    if self._needs_gpus
                    else "a CPU"
                )
                _log.warning("waiting for the cluster: it has no node with %s", what)
            self._is_told = not usable
            await asyncio.sleep(LOOK_SECONDS)

    def free(self, name: str) -> None:
        """Note that a node has no actor any more."""
        self._used.discard(name)
        self._waited_since.pop(name, None)

    @property
    def _needs_gpus(self) -> bool:
        return self._serve and self._most_nodes is None

    def _is_usable(self, resources: Mapping[str, float]) -> bool:
        return resources.get("CPU", 0) >= 1 and (resources.get("GPU", 0) >= 1 or not self._needs_gpus)

    def _connect(self) -> None:
        try:
            address = canonicalize_bootstrap_address_or_die(self._address)
            parse_web_address(f"http://{address}")  # what is connected to gets the token of the cluster
            if not _demands_token(address):
                self._check_insecure()
            ray.init(address, runtime_env=self._runtime_env, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
            raise UsageError(
                f"--ray {self._address}: no cluster can be used there: {_first_line(error)}; check the address, and"
                " that RAY_AUTH_MODE=token and the token of the cluster (RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH) are set"
                " here"
            ) from None

    def _check_insecure(self) -> None:
        """Raise UsageError unless the user wants a cluster without tokens."""
        if not self._insecure:
            raise UsageError(
                f"--ray {self._address}: expected a cluster with token authentication, got one where whoever reaches it"
                " can run programs; start it with RAY_AUTH_MODE=token, or use it all the same with --insecure"
            )
        if os.environ.get("RAY_AUTH_MODE") == "token":  # then actors would end as soon as they begin
            raise UsageError(
                f"--ray {self._address}: expected no RAY_AUTH_MODE for a cluster without token authentication, got"
                " token; unset it here"
            )

    async def _cpus_to_ask(self, name: str, node: Mapping[str, Any]) -> int:
        """Return for how many CPUs of a node to ask; 0 to look again, because more may be free soon."""
        cpus, now = int(node["Resources"]["CPU"]), time.monotonic()
        if self._processes is not None:
            return min(self._processes, cpus)
        resources = await asyncio.to_thread(state.available_resources_per_node)
        free = int(resources.get(node["NodeID"], {}).get("CPU", 0))
        if free < cpus and now - self._waited_since.setdefault(name, now) < FREE_SECONDS:
            return 0
        return min(cpus, max(free, LEAST_PROCESSES))

    def _place(self, name: str, node: Mapping[str, Any], cpus: int) -> RayNode:
        """Ask Ray for an actor on a node, with so many CPUs."""
        actor = ray.remote(NodeActor).options(
            num_cpus=cpus,
            num_gpus=int(node["Resources"].get("GPU", 0)) if self._serve else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            max_restarts=0,
            max_concurrency=16,
        )
        chosen = self._runtime_env.get("env_vars", {})
        return RayNode(name, actor.remote(own_threads="OMP_NUM_THREADS" in chosen), cpus)


def _demands_token(address: str) -> bool:
    """Return whether the head at an address refuses whoever has no token.

    Ray itself tells only whether this process has one.

    Raises:
        ConnectionError: No head answers there.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_PROBED_METHOD)(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return True
            raise ConnectionError(f"{address}: {error.details()}") from None
    return False


def _name(node: Mapping[str, Any]) -> str:
    """Return what people know a node by: its address, and the beginning of its identity."""
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"


async def _answered(answer: Any) -> Any:
    """Return the answer of an actor.

    Raises:
        NodeLost: The actor has ended, or cannot answer.
        NodeRefused: The actor cannot be started.
        ReelscribeError: What the actor was asked to do has failed.
    """
    try:
        return await answer
    except RayTaskError as error:
        if isinstance(error.cause, ReelscribeError):
            raise error.cause from None
        raise NodeLost(_last_line(error)) from None
    except RuntimeEnvSetupError as error:
        raise NodeRefused(f"its runtime environment cannot be made: {_last_line(error)}") from None
    except RayActorError as error:
        if error.actor_init_failed:
            raise NodeRefused(f"reelscribe with the extra `ray` cannot be used there: {_last_line(error)}") from None
        raise NodeLost(_first_line(error)) from None
    except RayError as error:
        raise NodeLost(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
