"""A real Ray cluster on loopback: a head without CPUs, and nodes that join and are killed with all their processes.

This file is also the program that starts the nodes, because Ray reads its settings from the environment when it is
imported, and nodes pass that environment on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what its name does not tell: 127.0.0.1 is not replaced
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""The environment of every process of the cluster, and of commands that use it."""


MARK = "REELSCRIBE_TEST_CLUSTER"
"""Environment variable of all processes of one cluster, those of TorchServe included."""

WORK = ("ray::NodeActor", "-m reelscribe.", "/bin/java ", "model_service_worker")
"""Parts of the command lines of processes that nodes start for a run; those of Ray itself have none of them."""


@dataclass(frozen=True)
class RayNode:
    """A node with all its processes."""

    raylet: int
    """Process id of its raylet, which has started all others."""

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, those of TorchServe included."""
        with suppress(psutil.NoSuchProcess):
            raylet = psutil.Process(self.raylet)
            return [raylet, *raylet.children(recursive=True)]
        return []

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the node, those that they have started included."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class RayCluster:
    """The cluster, by a process that starts its nodes."""

    def __init__(self, process: subprocess.Popen[str], environment: Mapping[str, str], mark: str) -> None:
        """Wait for the head.

        Args:
            process: A process that runs this file.
            environment: The environment of commands that use the cluster.
            mark: The value of MARK of all processes of the cluster.
        """
        self._process, self._mark = process, mark
        self.environment = dict(environment)
        """The environment of commands that use the cluster."""
        self.address = self._answer()["address"]
        self.nodes: list[RayNode] = []

    def join(self, cpus: int = 1) -> RayNode:
        """Add a node."""
        assert self._process.stdin
        print(json.dumps({"num_cpus": cpus}), file=self._process.stdin, flush=True)
        self.nodes.append(RayNode(self._answer()["raylet"]))
        return self.nodes[-1]

    def kill(self, node: RayNode) -> None:
        """Kill a node, as a loss of power would."""
        self.nodes.remove(node)
        node.send(signal.SIGKILL)

    def stop(self, node: RayNode) -> None:
        """Let a node hang: all its processes are stopped until the cluster ends."""
        self.nodes.remove(node)
        node.send(signal.SIGSTOP)

    def work(self) -> list[psutil.Process]:
        """Return what runs on the nodes besides Ray itself: actors, decode processes and servers with their workers."""
        return [process for process in psutil.process_iter() if self._is_work(process)]

    def servers(self) -> list[psutil.Process]:
        """The frontends of the servers on the nodes."""
        return [process for process in self.work() if _program(process) == "java"]

    def _is_work(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            is_ours = process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
            return is_ours and any(word in _command(process) for word in WORK)
        return False

    def _answer(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the cluster ended")


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _program(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return Path(process.exe()).name
    return ""


@contextmanager
def ray_cluster(nodes: int, **settings: str) -> Iterator[RayCluster]:
    """Run a cluster; at its end, no process of it is left.

    Args:
        nodes: Number of nodes besides the head, of one CPU each.
        settings: Variables of the environment of all its processes.
    """
    environment, mark = {**os.environ, **SETTINGS, **settings}, uuid4().hex
    with subprocess.Popen(
        [sys.executable, __file__],
        env={**environment, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            cluster = RayCluster(process, environment, mark)
            for _ in range(nodes):
                cluster.join()
            yield cluster
        finally:
            started = psutil.Process(process.pid).children(recursive=True)
            process.communicate()
            for left in started:
                with suppress(psutil.NoSuchProcess):
                    left.kill()


def main() -> None:
    """Start a head, and a node for each line of standard input, until it ends."""
    from ray.cluster_utils import Cluster

    local: dict[str, Any] = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
    local["object_store_memory"] = 80 * 2**20  # the least that Ray takes
    cluster = Cluster(initialize_head=True, head_node_args={**local, "num_cpus": 0})
    print(json.dumps({"address": cluster.address}), flush=True)
    for line in sys.stdin:
        node = cluster.add_node(**local, **json.loads(line))
        (raylet,) = node.all_processes["raylet"]
        print(json.dumps({"raylet": raylet.process.pid}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
