"""The wheel, in environments outside of a clone that have one extra each, does what the documents say."""

import os
import random
import subprocess

import pytest

from servers.ray_cluster import ray_cluster
from support.alike import assert_alike
from support.installed import build_wheel, install
from support.servers import assert_same_records, read_records, record_of


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def reelscribe(wheel, tmp_path, tmp_path_factory):
    """Return a function that installs an extra, and gives one that runs `reelscribe` of this environment."""

    def installed(extra):
        programs = install(wheel, extra, tmp_path / extra)
        folder = tmp_path_factory.mktemp("user")  # a short name, as a server makes sockets there

        def run(*words, **options):
            command = [programs / "reelscribe", *map(str, words)]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
            assert done.returncode == 0, done.stderr
            return done.stdout

        run.folder, (run.supplied_config,) = folder, programs.parent.rglob("reelscribe/server/config.properties")
        return run

    return installed


def annotate(server, media):
    """The words of a run over all frames with the models of a server."""
    keys = ["--server", server.url, "--key-file", server.instance.key_file]
    return ["annotate", media, "--all-frames", *keys, "--out", "out"]


def test_a_client_annotates_exports_and_shows(reelscribe, server, media, annotated):
    run = reelscribe("client")
    assert "annotate" in run("--help")
    run(*annotate(server, media))
    assert_same_records(run.folder / "out", annotated)
    run("export", "out", "--format", "html")
    assert (run.folder / "out" / "html" / "index.html").exists()


def test_a_client_and_nodes_of_ray_annotate(reelscribe, server, media, annotated):
    run = reelscribe("ray")
    with ray_cluster(1) as cluster:
        run(*annotate(server, media), "--ray", cluster.address, env={**os.environ, **cluster.environment})
    assert_same_records(run.folder / "out", annotated)


def test_a_server_packs_serves_and_captions(reelscribe, media, demo_model, annotated):
    run = reelscribe("server")
    run("archive", "demo", "--handler", "caption", "--weights", demo_model)
    host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"  # where no port is used
    (run.folder / "config.properties").write_text(run.supplied_config.read_text().replace("127.0.0.1", host))
    run("server", "start")
    try:
        run("caption", media / "old.avi", "--all-frames", "--out", "out")
    finally:
        run("server", "stop")
    (record,) = read_records(run.folder / "out")
    assert record["captions"]
    assert_alike(record["captions"], record_of(annotated, "old.avi")["captions"])
