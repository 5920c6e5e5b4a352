"""Clients, workers and the server are killed again and again, and the output is that of an undisturbed run."""

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo_server import CONFIG
from reelscribe.server import launcher
from reelscribe.server.options import StartOptions
from support.odd_library import make_library
from support.patience import PATIENCE
from support.servers import RunningServer, record_of, serve_demo_models

MISBEHAVING = Path(__file__).parents[1] / "support" / "misbehaving_decoder"
CLIENT_KILLS = 10
WORKER_KILLS = 5
SOME_FAILED = 3
"""Exit status of a complete run in which some sources have failed, as the broken files of the library do."""


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library") / "odd"
    assert make_library(folder, media) >= 40
    # Only a timeout ends processes that hang, and a short one would end others too on a slow machine. Therefore,
    # tests/decode_pool has these files.
    for path in folder.glob("hang*"):
        path.unlink()
    return folder


@contextmanager
def annotate(running: RunningServer, library: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client whose decode processes crash where names of files say so, and kill it in the end."""
    command = running.command(library, "--out", out, "--stall-seconds", str(PATIENCE), name="annotate")
    paths = [str(MISBEHAVING), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    out.mkdir(exist_ok=True)
    with (
        (out / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def annotate_all(running: RunningServer, library: Path, out: Path) -> bytes:
    """Run a client to its end, and return the records that it has written."""
    with annotate(running, library, out) as run:
        run.wait(timeout=PATIENCE)
    assert run.returncode == SOME_FAILED, log_of(out)
    assert "SIGSEGV" in record_of(out, "crash-always.avi")["error"]["message"]
    return (out / "annotations.jsonl").read_bytes()


def log_of(out: Path) -> str:
    return (out / "log").read_text()


def lives(run: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether the client still runs after so long."""
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def restart(running: RunningServer, store: Path) -> None:
    addresses = {name: value for name, value in running.settings.items() if "address" in name or "port" in name}
    launcher.stop(running.instance)
    options = StartOptions(CONFIG, store, load_seconds=PATIENCE, overrides=addresses)
    launcher.start(running.instance, options)


def kill_a_worker(running: RunningServer, chance: random.Random) -> bool:
    workers = running.processes()["workers"]
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
    return bool(workers)


@pytest.mark.parametrize("seed", range(int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "1"))))
def test_whatever_is_killed_the_output_is_that_of_an_undisturbed_run(library, tmp_path, seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    blows = ["client"] * CLIENT_KILLS + ["worker"] * WORKER_KILLS + ["server"]
    chance.shuffle(blows)
    out = tmp_path / "out"
    with serve_demo_models(tmp_path) as running:
        undisturbed = annotate_all(running, library, tmp_path / "undisturbed")
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
                        blows.insert(0, blow)  # the worker that was killed last is not back yet
            if run.returncode == SOME_FAILED:  # A fast machine was done before the next blow, which is for a new run.
                assert (out / "annotations.jsonl").read_bytes() == undisturbed
                shutil.rmtree(out)
                continue
            # A run that begins while there is no server, or no key file, reports that and ends; the next one goes on.
            began_without_server = blow == "server" and run.returncode in (1, 2)
            assert began_without_server or run.returncode == -signal.SIGKILL, f"it ended early: {log_of(out)}"
        assert annotate_all(running, library, out) == undisturbed
