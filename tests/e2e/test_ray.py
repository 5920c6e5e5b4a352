"""Runs over a real Ray cluster, with real servers: the records are those of one machine, whatever is killed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table
from typer.testing import CliRunner

from reelscribe.cli import app
from servers.ray_cluster import RayCluster, ray_cluster
from support.alike import assert_alike
from support.commands import reelscribe
from support.odd_runs import (
    MISBEHAVING,
    SOME_FAILED,
    annotate,
    complete,
    kill_a_worker,
    lives,
    log_of,
)
from support.patience import PATIENCE
from support.scraping import scrape_server
from support.servers import RunningServer, read_records, saved_frames, wait_until
from support.stores import ObjectServer, s3_server

RUNS = int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "0"))
BLOWS = (
    {"node": 6, "join": 2, "driver": 2, "worker": 3, "hang": 1}
    if RUNS
    else {"node": 2, "join": 1, "driver": 1, "worker": 1, "hang": 0}
)


@pytest.fixture(scope="module")
def bucket(media, tmp_path_factory) -> Iterator[ObjectServer]:
    """A bucket of videos, with its credentials in the environment, from which the nodes of the cluster have them."""
    films = tmp_path_factory.mktemp("films")
    for name in ("full-chroma.mkv", "old.avi", "same-640x360.webm", "spoken.mp4", "variable-rate.mp4"):
        shutil.copy(media / name, films)
    with pytest.MonkeyPatch.context() as patch, s3_server(patch, films) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def started_cluster(bucket) -> Iterator[RayCluster]:
    with ray_cluster(0, **MISBEHAVING) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster) -> RayCluster:
    """A cluster of two nodes at least."""
    return with_nodes(started_cluster, 2)


def with_nodes(cluster: RayCluster, count: int) -> RayCluster:
    while len(cluster.nodes) < count:
        cluster.join()
    return cluster


@pytest.fixture(scope="module")
def expected(undisturbed) -> dict[str, Any]:
    """The files of results of a run on one machine."""
    return results_in(undisturbed[0])


def over(
    cluster: RayCluster, killed: RunningServer, library: Path, out: Path, *options: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start a run over the nodes of a cluster."""
    return annotate(killed, library, out, "--ray", cluster.address, *options, environment=cluster.environment)


def results_in(out: Path) -> dict[str, Any]:
    """Return the records and all other files of results, with exports of all kinds."""
    formats = [word for name in ("vtt", "srt", "chapters", "parquet") for word in ("--format", name)]
    exported = CliRunner().invoke(app, ["export", str(out), "--to", str(out / "exports"), *formats])
    assert exported.exit_code == 0, exported.output
    files = [out / name for name in ("run.json", "failures.txt")]
    files += sorted(path for path in (out / "exports").rglob("*") if path.is_file())
    return {"records": read_records(out), **{str(path.relative_to(out)): content_of(path) for path in files}}


def content_of(path: Path) -> Any:
    return read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_bytes()


def thumbnails_in(out: Path) -> dict[str, bytes]:
    """Return all thumbnails."""
    return {str(path.relative_to(out)): path.read_bytes() for path in (out / "thumbnails").rglob("*.webp")}


@pytest.mark.parametrize("nodes", [1, 2, 4] if RUNS else [1])
def test_results_and_thumbnails_do_not_depend_on_the_number_of_nodes(
    killed, library, undisturbed, expected, started_cluster, tmp_path, nodes
):
    cluster = with_nodes(started_cluster, nodes)
    with over(cluster, killed, library, tmp_path / "out") as run:
        complete(run, tmp_path / "out")
    with over(cluster, killed, library, tmp_path / "out", "--dry-run") as run:
        assert run.wait(timeout=PATIENCE) == 0
    assert_alike(results_in(tmp_path / "out"), expected)
    assert thumbnails_in(tmp_path / "out") == thumbnails_in(undisturbed[0]) != {}


@pytest.mark.skipif(not RUNS, reason="a count of what is lost; REELSCRIBE_TORTURE_RUNS=1 makes it")
def test_a_killed_node_costs_what_was_in_flight_there(killed, library, undisturbed, expected, cluster, tmp_path):
    frames, before = ("reelscribe_device_items_total", "captioner"), scrape_server(killed)
    once = undisturbed[1][frames]
    with over(cluster, killed, library, tmp_path / "out") as run:
        wait_until(lambda: (scrape_server(killed) - before)[frames] > once / 4, run)
        cluster.kill(cluster.nodes[0])
        complete(run, tmp_path / "out")
    assert_alike(results_in(tmp_path / "out"), expected)
    again = (scrape_server(killed) - before)[frames] - once
    print(f"{again:.0f} frames were captioned twice, {once:.0f} once")
    assert "was lost" in log_of(tmp_path / "out")
    assert again <= 8 * 8  # half of the 16 requests in flight were of that node, of 8 frames each
    cluster.join()


def gone(cluster: RayCluster) -> None:
    """Wait until nothing of a run is left on the nodes, for 30 s at most."""
    deadline = time.monotonic() + 30
    while left := cluster.work():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_nodes_can_serve_the_models_by_themselves(killed, library, expected, cluster, tmp_path):
    served = ["--serve-nodes", "1", "--model-store", str(killed.instance.directory.parent / "store")]
    with over(cluster, killed, library, tmp_path / "out", *served) as run:
        wait_until(lambda: saved_frames(tmp_path / "out"), run)
        cluster.servers()[0].kill()
        complete(run, tmp_path / "out")
    assert "its TorchServe has ended" in log_of(tmp_path / "out")
    assert_alike(results_in(tmp_path / "out"), expected)
    gone(cluster)
    for signal_, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130))[: 1 + bool(RUNS)]:
        with over(cluster, killed, library, tmp_path / "again", *served) as run:
            wait_until(cluster.servers, run)
            run.send_signal(signal_)
            assert run.wait(timeout=PATIENCE) == status
        gone(cluster)


def test_a_cluster_without_tokens_is_used_only_if_the_user_insists(killed, library, tmp_path):
    with ray_cluster(0, RAY_AUTH_MODE="disabled") as cluster:
        with over(cluster, killed, library, tmp_path / "out") as run:
            assert run.wait(timeout=PATIENCE) == 2
        assert "expected a cluster with token authentication" in log_of(tmp_path / "out")
        with over(cluster, killed, library, tmp_path / "out", "--insecure") as run:
            wait_until(lambda: "waiting for the cluster: it has no node with a CPU" in log_of(tmp_path / "out"), run)
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=PATIENCE) == 130


@pytest.mark.skipif(" " in sys.executable, reason="Ray starts no worker with an environment from a path with spaces")
def test_nodes_without_the_package_are_refused_by_name(killed, library, cluster, tmp_path):
    (tmp_path / "reelscribe").mkdir()
    (tmp_path / "reelscribe" / "__init__.py").write_text("raise ImportError('it is not here')")
    environment = tmp_path / "environment.yaml"
    environment.write_text(f"env_vars: {{PYTHONPATH: '{tmp_path}'}}")
    with over(cluster, killed, library, tmp_path / "out", "--ray-runtime-env", str(environment)) as run:
        assert run.wait(timeout=PATIENCE) == 1, log_of(tmp_path / "out")
    assert re.search(r"node 127.0.0.1 \(\w+\): .* cannot be used there: .*it is not here", log_of(tmp_path / "out"))


def strike(blow: str, cluster: RayCluster, killed: RunningServer, chance: random.Random) -> bool:
    """Kill or stop something, or let a node join. Returns whether there was something."""
    if blow == "worker":
        return kill_a_worker(killed, chance)
    if blow == "join":
        cluster.join()
    elif len(cluster.nodes) < 2:
        return False
    else:
        (cluster.kill if blow == "node" else cluster.stop)(chance.choice(cluster.nodes))
    return True


@pytest.mark.parametrize("seed", range(max(1, RUNS)))
def test_whatever_is_killed_the_records_are_those_of_one_machine(killed, library, expected, cluster, tmp_path, seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    blows = [blow for blow, count in BLOWS.items() for _ in range(count)]
    chance.shuffle(blows)
    while len(cluster.nodes) < 2 + BLOWS["node"] + BLOWS["hang"] - BLOWS["join"]:
        cluster.join()
    out = tmp_path / "out"
    while blows:
        with over(cluster, killed, library, out) as run:
            while blows and lives(run, chance.uniform(1, 4)):
                blow = blows.pop()
                if blow == "driver":
                    break
                if not strike(blow, cluster, killed, chance):
                    blows.insert(0, blow)  # what was killed last is not back yet
        if run.returncode == SOME_FAILED:  # it was done before the next blow, which is for a new run
            assert_alike(results_in(out), expected)
            shutil.rmtree(out)
            continue
        assert run.returncode == -signal.SIGKILL, f"it ended early: {log_of(out)}"
    with over(cluster, killed, library, out) as run:
        complete(run, out)
    assert_alike(results_in(out), expected)


def test_nodes_read_a_bucket_by_themselves_also_after_the_driver_was_killed(bucket, cluster, tmp_path):
    command = reelscribe("shots", "s3://bucket/", "--quiet", "--out")
    subprocess.run([*command, tmp_path / "here"], check=True, timeout=PATIENCE)
    bucket.requests.clear()
    over_ray = [*command, tmp_path / "there", "--ray", cluster.address]
    with subprocess.Popen(over_ray, env=cluster.environment) as driver, bucket.asked:
        assert bucket.asked.wait_for(lambda: bucket.requests["spoken.mp4"], PATIENCE)
        driver.kill()
    subprocess.run(over_ray, env=cluster.environment, check=True, timeout=PATIENCE)
    assert sum(bucket.sent.values()) > 0
    here, there = [(tmp_path / name / "annotations.jsonl").read_bytes() for name in ("here", "there")]
    assert there == here
