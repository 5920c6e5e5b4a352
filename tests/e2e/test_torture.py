"""Everything breaks, again and again, and the output is that of a quiet run."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.conftest import CONFIG, Running, serving_both
from reelscribe.server import launcher as server
from reelscribe.server.options import StartOptions
from support.odd_library import make_library

MISBEHAVING = Path(__file__).parents[1] / "misbehaving_decoder"
CLIENT_KILLS = 10
WORKER_KILLS = 5


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library") / "odd"
    assert make_library(folder, media) >= 40
    return folder


@pytest.fixture(scope="module")
def quiet(both, library, tmp_path_factory) -> bytes:
    out = tmp_path_factory.mktemp("quiet")
    with annotate(both, library, out) as run:
        run.wait(timeout=300)
    assert run.returncode == 3, log_of(out)
    return (out / "annotations.jsonl").read_bytes()


@contextmanager
def annotate(running: Running, library: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A client of its own, whose decode processes hang and crash where files say so."""
    command = running.command(library, "--out", out, "--stall-seconds", "4", name="annotate")
    environment = {**os.environ, "PYTHONPATH": str(MISBEHAVING)}
    out.mkdir(exist_ok=True)
    with (
        (out / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def log_of(out: Path) -> str:
    return (out / "log").read_text()


def lives(run: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it still runs after so long."""
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def restart(running: Running, store: Path) -> None:
    addresses = {name: value for name, value in running.settings.items() if "address" in name or "port" in name}
    server.stop(running.instance)
    options = StartOptions(CONFIG, store, load_seconds=120, overrides=addresses)
    server.start(running.instance, options)


def kill_a_worker(running: Running, chance: random.Random) -> bool:
    workers = running.workers()
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
    return bool(workers)


@pytest.mark.parametrize("seed", range(int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "1"))))
def test_whatever_is_killed_the_output_is_that_of_a_quiet_run(quiet, library, demo_model, demo_speech, tmp_path, seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    blows = ["client"] * CLIENT_KILLS + ["worker"] * WORKER_KILLS + ["server"]
    chance.shuffle(blows)
    out = tmp_path / "out"
    with serving_both(tmp_path, demo_model, demo_speech) as running:
        while blows:
            blow = ""
            with annotate(running, library, out) as run:
                while blows and lives(run, chance.uniform(0.3, 3)):
                    blow = blows.pop()
                    if blow == "client":
                        break
                    if blow == "server":
                        restart(running, tmp_path / "store")
                    elif not kill_a_worker(running, chance):
                        blows.insert(0, blow)  # the last one is not back yet
            # A run that begins while no server is there says so and ends; whoever started it starts it again.
            began_without_server = blow == "server" and run.returncode == 1
            assert began_without_server or run.returncode == -signal.SIGKILL, f"it ended early: {log_of(out)}"
        with annotate(running, library, out) as run:
            run.wait(timeout=300)
        assert run.returncode == 3, log_of(out)
    assert (out / "annotations.jsonl").read_bytes() == quiet
