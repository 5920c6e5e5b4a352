"""Clients, workers and the server are killed again and again, and the output is that of an undisturbed run."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from reelscribe.server import launcher
from reelscribe.server.start_options import StartOptions
from servers.torchserve import CONFIG
from support.odd_runs import SOME_FAILED, annotate, complete, kill_a_worker, library_without_hangs, lives, log_of
from support.patience import PATIENCE
from support.servers import RunningServer, record_of, serve_demo_models

RUNS = int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "0"))
CLIENT_KILLS, WORKER_KILLS = (10, 5) if RUNS else (5, 2)


@pytest.fixture(scope="module")
def library(media, tmp_path_factory) -> Path:
    return library_without_hangs(tmp_path_factory.mktemp("library") / "odd", media)


def annotate_all(running: RunningServer, library: Path, out: Path) -> bytes:
    """Run a client to its end, and return the records that it has written."""
    with annotate(running, library, out) as run:
        complete(run, out)
    assert "SIGSEGV" in record_of(out, "crash-always.avi")["error"]["message"]
    return (out / "annotations.jsonl").read_bytes()


def restart(running: RunningServer, store: Path) -> None:
    settings = running.settings
    launcher.stop(running.instance)
    options = StartOptions(CONFIG, store, load_seconds=PATIENCE, overrides=settings)
    launcher.start(running.instance, options)


@pytest.mark.parametrize("seed", range(max(1, RUNS)))
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
