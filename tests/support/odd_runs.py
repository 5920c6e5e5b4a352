"""Runs of the `reelscribe` command over good and bad sources, which tests disturb."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.odd_library import make_library
from support.patience import PATIENCE
from support.servers import RunningServer

SOME_FAILED = 3
"""Exit status of a complete run in which some sources have failed, as the broken files of the library do."""

_MISBEHAVING = Path(__file__).parent / "misbehaving_decoder"

MISBEHAVING = {"PYTHONPATH": os.pathsep.join([str(_MISBEHAVING), *filter(None, [os.environ.get("PYTHONPATH")])])}
"""Environment in which decode processes crash where names of files say so."""


def library_without_hangs(folder: Path, media: Path) -> Path:
    """Make a library of good and bad sources.

    Only a timeout ends processes that hang, and a short one would end others too on a slow machine. Therefore,
    tests/decode_pool has these files.
    """
    assert make_library(folder, media) >= 40
    for path in folder.glob("hang*"):
        path.unlink()
    return folder


@contextmanager
def annotate(
    running: RunningServer, library: Path, out: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a client whose decode processes crash where names of files say so, and kill it in the end.

    It makes captions and transcripts, and tells speakers apart.
    """
    fixed = ("--speakers", "auto", "--stall-seconds", str(PATIENCE))
    command = running.command(library, "--out", out, *fixed, *options, name="annotate")
    out.mkdir(exist_ok=True)
    with (
        (out / "log").open("wb") as log,
        subprocess.Popen(
            command, env={**os.environ, **(environment or {}), **MISBEHAVING}, stdout=log, stderr=subprocess.STDOUT
        ) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def complete(run: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for the end of a run that does all sources."""
    assert run.wait(timeout=PATIENCE) == SOME_FAILED, log_of(out)


def log_of(out: Path) -> str:
    """Return what the last run has printed."""
    return (out / "log").read_text()


def lives(run: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a run still runs after so long."""
    try:
        run.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def kill_a_worker(running: RunningServer, chance: random.Random) -> bool:
    """Kill a worker of the server. Returns False if there is none, as one that was killed is not back yet."""
    workers = running.processes()["workers"]
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
    return bool(workers)
