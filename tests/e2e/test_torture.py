"""Clients, workers and the server are killed again and again, and the output is that of an undisturbed run."""

import os
import random
import shutil
import signal

import pytest

from reelscribe.server import launcher
from reelscribe.server.start_options import StartOptions
from support.odd_runs import SOME_FAILED, annotate, complete, kill_a_worker, lives, log_of
from support.servers import assert_same_records, read_records, record_of

RUNS = int(os.environ.get("REELSCRIBE_TORTURE_RUNS", "0"))
CLIENT_KILLS, WORKER_KILLS = (10, 5) if RUNS else (3, 1)


@pytest.mark.parametrize("seed", range(max(1, RUNS)))
def test_whatever_is_killed_the_output_is_that_of_an_undisturbed_run(killed, library, undisturbed, tmp_path, seed):
    print(f"seed {seed}")
    chance = random.Random(seed)
    blows = ["client"] * CLIENT_KILLS + ["worker"] * WORKER_KILLS + ["server"]
    chance.shuffle(blows)
    out = tmp_path / "out"
    assert "SIGSEGV" in record_of(undisturbed[0], "crash-always.avi")["error"]["message"]
    assert any(record.get("turns") for record in read_records(undisturbed[0]))
    while blows:
        blow = ""
        with annotate(killed, library, out) as run:
            while blows and lives(run, chance.uniform(0.3, 3)):
                blow = blows.pop()
                if blow == "client":
                    break
                if blow == "server":
                    launcher.restart(killed.instance, StartOptions.load(killed.instance.options))
                elif not kill_a_worker(killed, chance):
                    blows.insert(0, blow)  # the worker that was killed last is not back yet
        if run.returncode == SOME_FAILED:  # A fast machine was done before the next blow, which is for a new run.
            assert_same_records(out, undisturbed[0])
            shutil.rmtree(out)
            continue
        # A run that begins while there is no server, or no key file, reports that and ends; the next one goes on.
        began_without_server = blow == "server" and run.returncode in (1, 2)
        assert began_without_server or run.returncode == -signal.SIGKILL, f"it ended early: {log_of(out)}"
    with annotate(killed, library, out) as run:
        complete(run, out)
    assert_same_records(out, undisturbed[0])
