"""Runs over a real Ray cluster, with real servers: the records are those of one machine, whatever is killed."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ray_nodes import MARK, RayCluster, ray_cluster
from support.odd_library import make_library
from support.patience import PATIENCE
from support.servers import RunningServer, serve_demo_models

MISBEHAVING = Path(__file__).parents[1] / "support" / "misbehaving_decoder"
RUNS = int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "0"))
BLOWS = {"node": 6, "join": 2, "driver": 2, "worker": 3} if RUNS else {"node": 2, "join": 1, "driver": 1, "worker": 1}
SOME_FAILED = 3
"""Exit status of a complete run in which some sources have failed, as the broken files of the library do."""


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library") / "odd"
    make_library(folder, media)
    for path in folder.glob("hang*"):  # only a timeout ends processes that hang; tests/decode_pool has these files
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[RunningServer]:
    with serve_demo_models(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(running, library, tmp_path_factory) -> dict[str, bytes]:
    """The files of results of a run on one machine."""
    out = tmp_path_factory.mktemp("undisturbed")
    with annotate(running, library, out) as run:
        assert run.wait(timeout=PATIENCE) == SOME_FAILED, (out / "log").read_text()
    return results_in(out)


PATHS = os.pathsep.join([str(MISBEHAVING), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2, PYTHONPATH=PATHS) as cluster:
        yield cluster


@contextmanager
def annotate(
    running: RunningServer, library: Path, out: Path, cluster: RayCluster | None = None, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client whose decode processes crash where names of files say so, and kill it in the end."""
    command = running.command(library, "--out", out, "--stall-seconds", str(PATIENCE), *options, name="annotate")
    environment = {**os.environ, "PYTHONPATH": str(MISBEHAVING)}
    if cluster:
        command += ["--ray", cluster.address]
        environment = {name: value for name, value in cluster.environment.items() if name != MARK}
    out.mkdir(exist_ok=True)
    with (
        (out / "log").open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def results_in(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("annotations.jsonl", "run.json", "failures.txt")}


def lives(run: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether the client still runs after so long."""
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.parametrize("nodes", [1, 4] if RUNS else [])
def test_records_do_not_depend_on_the_number_of_nodes(running, library, undisturbed, tmp_path, nodes):
    with ray_cluster(nodes, PYTHONPATH=PATHS) as cluster, annotate(running, library, tmp_path / "out", cluster) as run:
        assert run.wait(timeout=PATIENCE) == SOME_FAILED, (tmp_path / "out" / "log").read_text()
    assert results_in(tmp_path / "out") == undisturbed


def test_records_are_those_of_one_machine(running, library, undisturbed, cluster, tmp_path):
    with annotate(running, library, tmp_path / "out", cluster) as run:
        assert run.wait(timeout=PATIENCE) == SOME_FAILED, (tmp_path / "out" / "log").read_text()
    assert results_in(tmp_path / "out") == undisturbed


def ended(cluster: RayCluster) -> None:
    """Wait until nothing of a run is left on the nodes: 30 s at most, as operations.md says."""
    deadline = time.monotonic() + 30
    while left := cluster.work():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_node_can_serve_the_models_by_itself_and_ends_with_its_run(running, library, undisturbed, cluster, tmp_path):
    served = ["--serve-nodes", "1", "--model-store", str(running.instance.directory.parent / "store")]
    with annotate(running, library, tmp_path / "out", cluster, *served) as run:
        assert run.wait(timeout=PATIENCE) == SOME_FAILED, (tmp_path / "out" / "log").read_text()
    assert results_in(tmp_path / "out") == undisturbed
    ended(cluster)
    for signal_, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        with annotate(running, library, tmp_path / "again", cluster, *served) as run:
            while not any("java" in command for command in cluster.work()):
                assert lives(run, 0.1), (tmp_path / "again" / "log").read_text()
            run.send_signal(signal_)
            assert run.wait(timeout=PATIENCE) == status
        ended(cluster)


def strike(blow: str, cluster: RayCluster, running: RunningServer, chance: random.Random) -> bool:
    """Kill something, or let a node join; returns whether there was something."""
    if blow == "node":
        if len(cluster.nodes) < 2:
            return False
        cluster.kill(chance.choice(cluster.nodes))
    elif blow == "join":
        cluster.join()
    elif workers := running.processes()["workers"]:
        os.kill(chance.choice(workers), signal.SIGKILL)
    else:
        return False
    return True


@pytest.mark.parametrize("seed", range(max(1, RUNS)))
def test_whatever_is_killed_the_records_are_those_of_one_machine(
    running, library, undisturbed, cluster, tmp_path, seed
):
    print(f"seed {seed}")
    chance = random.Random(seed)
    blows = [blow for blow, count in BLOWS.items() for _ in range(count)]
    chance.shuffle(blows)
    while len(cluster.nodes) < 2 + BLOWS["node"] - BLOWS["join"]:
        cluster.join()
    out = tmp_path / "out"
    while blows:
        with annotate(running, library, out, cluster) as run:
            while blows and lives(run, chance.uniform(1, 4)):
                blow = blows.pop()
                if blow == "driver":
                    break
                if not strike(blow, cluster, running, chance):
                    blows.insert(0, blow)  # what was killed last is not back yet
        if run.returncode == SOME_FAILED:  # it was done before the next blow, which is for a new run
            assert results_in(out) == undisturbed
            shutil.rmtree(out)
            continue
        assert run.returncode == -signal.SIGKILL, f"it ended early: {(out / 'log').read_text()}"
    with annotate(running, library, out, cluster) as run:
        assert run.wait(timeout=PATIENCE) == SOME_FAILED, (out / "log").read_text()
    assert results_in(out) == undisturbed
