"""An owned server as far as it needs no TorchServe: its guard, and starts that are refused; the rest is in e2e/."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from reelscribe.errors import StartupError, UsageError
from reelscribe.server.config_properties import free_ports
from reelscribe.server.owned_server import guarded, owned_server
from support.patience import PATIENCE

OWNER = """
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from reelscribe.server.instance import INSTANCE_VARIABLE
from reelscribe.server.owned_server import guarded

async def own(directory, end):
    async with guarded(directory):
        directory.mkdir()
        # A worker that ignores SIGTERM, and keeps what it inherits from its owner open.
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
        environment = {**os.environ, INSTANCE_VARIABLE: str(directory)}
        worker = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        worker.stdout.readline()
        print(worker.pid, flush=True)
        sys.stdin.readline()
        exec(end)
        await asyncio.Event().wait()

asyncio.run(own(Path(sys.argv[1]), sys.argv[2]))
"""
"""Owns a server that is only one process, until it gets a line; then it runs `end`, which ends it."""


def guards(directory: Path) -> list[psutil.Process]:
    """The processes that guard a directory."""

    def guards_it(process: psutil.Process) -> bool:
        try:
            words = process.cmdline()
        except psutil.Error:
            return False
        return words[-1:] == [str(directory)] and "reelscribe.server.guard_process" in words

    return list(filter(guards_it, psutil.process_iter()))


@pytest.fixture
def mar(tmp_path) -> Path:
    """An archive that looks whole."""
    with zipfile.ZipFile(tmp_path / "x.mar", "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {}}))
    return tmp_path / "x.mar"


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """The folder for temporary files, in which nothing may be left."""
    folder = tmp_path_factory.mktemp("t")  # a short name, as servers make sockets there
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os.killpg(0, signal.SIGINT)"])
def test_a_guard_removes_the_server_of_an_owner_that_ends_without_doing_so(tmp_path, end):
    directory = tmp_path / "server"
    command = [sys.executable, "-c", OWNER, str(directory), end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as owner:
        worker = psutil.Process(int(owner.stdout.readline()))
        (guard,) = guards(directory)
        guard.terminate()  # which is ignored, as a guard ends with its owner only
        assert os.getsid(guard.pid) != os.getsid(owner.pid)
        assert guard not in psutil.Process(owner.pid).children(recursive=True)
        owner.communicate(b"\n", timeout=PATIENCE)  # returns at the owner's end, as the guard has no end of its pipes
    assert psutil.wait_procs([worker, guard], timeout=PATIENCE)[1] == []
    assert not directory.exists()


async def test_a_guard_that_is_killed_is_replaced(tmp_path, caplog):
    directory = tmp_path / "server"
    async with guarded(directory) as guard:
        (first,) = guards(directory)
        first.kill()
        assert psutil.wait_procs([first], timeout=PATIENCE)[1] == []
        replaced = asyncio.create_task(guard.keep_alive())
        while not guards(directory):
            await asyncio.wait([replaced], timeout=0.1)
        replaced.cancel()
        await asyncio.wait([replaced])
    assert psutil.wait_procs(guards(directory), timeout=PATIENCE)[1] == []
    assert "has ended before its time" in caplog.text


async def test_a_guard_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "psutil.py").write_text("raise ImportError('no psutil here')")
    with pytest.raises(StartupError, match="ended with status 1 at its start: ImportError: no psutil here"):
        async with guarded(tmp_path / "server"):
            pass


async def test_a_start_that_is_refused_leaves_nothing(mar, tmp_path, temporary):
    (tmp_path / "bad.mar").write_text("not an archive")
    for archives, reason in (
        ([tmp_path / "bad.mar"], "bad.mar: not a model archive, or a damaged one"),
        ([tmp_path / "none.mar"], "none.mar: expected a model archive: .*No such file"),
        ([mar, mar], "expected archives with different names"),
        ([], "no archive to serve"),
    ):
        with pytest.raises(StartupError, match=reason):
            async with owned_server(archives):
                pass
    with pytest.raises(UsageError, match="TS_INFERENCE_ADDRESS: TorchServe's settings belong in"):
        async with owned_server([mar], environment={"TS_INFERENCE_ADDRESS": "http://0.0.0.0:8080"}):
            pass
    assert list(temporary.iterdir()) == []


async def test_other_ports_are_tried_three_times_if_one_is_taken(mar, monkeypatch, temporary, caplog):
    tried = []
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def unlucky_ports() -> dict[str, str]:
            tried.append(1)
            return {**free_ports(), "metrics_address": f"http://127.0.0.1:{taken.getsockname()[1]}"}

        monkeypatch.setattr("reelscribe.server.owned_server.free_ports", unlucky_ports)
        with pytest.raises(StartupError, match=r"metrics_address: port .* of 127.0.0.1 is taken"):
            async with owned_server([mar]):
                pass
    assert len(tried) == 3
    assert caplog.text.count("started again with others") == 2
    assert list(temporary.iterdir()) == []
