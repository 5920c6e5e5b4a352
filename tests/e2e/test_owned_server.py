"""Servers that a process owns: they answer on loopback only, and leave nothing, however they or their owner end."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from reelscribe import CaptionClient
from reelscribe.errors import StartupError
from reelscribe.server.config_properties import Settings, free_ports
from reelscribe.server.instance import Instance, is_java
from reelscribe.server.owned_server import OwnedServer, owned_server
from servers.emulated import HANDLER, Emulated
from servers.torchserve import handler_modules, pack_handler
from support.patience import PATIENCE
from support.servers import quick_java

OWNER = """
import asyncio, sys, threading
from pathlib import Path
from reelscribe.server.owned_server import owned_server

async def own():
    async with owned_server([Path(sys.argv[1])]) as server:
        print(server.instance.directory, flush=True)
        await server.ended

loop = threading.Thread(target=lambda: asyncio.run(own()))  # as in an actor of Ray
loop.start()
loop.join()
"""


@pytest.fixture(scope="module")
def mar(tmp_path_factory) -> Path:
    """The archive of an emulated captioner."""
    folder = tmp_path_factory.mktemp("store")
    settings = Emulated(frames_per_second=1000).settings()
    pack_handler(HANDLER, "emulated", folder, settings=settings, modules=handler_modules())
    return folder / "emulated.mar"


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """The folder for temporary files, with a short name, as the paths of workers' sockets may not be long."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


async def captions(owned: OwnedServer) -> int:
    frames = np.zeros((3, 224, 224, 3), np.uint8)
    async with CaptionClient([owned.found.server], "emulated") as client:
        return len(await client.caption(frames))


def java_of(instance: Instance) -> psutil.Process:
    (java,) = filter(is_java, instance.processes())
    return java


async def test_two_owned_servers_answer_on_loopback_and_one_that_is_killed_says_so(mar, temporary, caplog, monkeypatch):
    chosen: list[Settings] = []

    def first_ports_twice() -> Settings:  # so that the second server must try again
        chosen.append(chosen[0] if len(chosen) == 1 else free_ports())
        return chosen[-1]

    monkeypatch.setattr("reelscribe.server.owned_server.free_ports", first_ports_twice)
    open_to_all = {"inference_address": "http://0.0.0.0:8080", "disable_token_authorization": "true"}
    caplog.set_level("INFO")
    async with (
        owned_server([mar], settings={**open_to_all, **quick_java()}) as first,
        owned_server([mar], settings=quick_java()) as second,
    ):
        assert len(chosen) == 3
        assert "emulated 1.0 is ready" in caplog.text
        assert "another program took a port" in caplog.text
        assert [await captions(each) for each in (first, second)] == [3, 3]
        for each in (first, second):
            assert each.instance.directory.parent == temporary
            assert each.instance.directory.stat().st_mode & 0o777 == 0o700
            sockets = java_of(each.instance).net_connections("inet")
            listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
            assert listening == ["::ffff:127.0.0.1"] * 5 or listening == ["127.0.0.1"] * 5
        java_of(second.instance).kill()
        assert "TorchServe ended: " in await asyncio.wait_for(second.ended, PATIENCE)
        assert not first.ended.done()
        assert await captions(first) == 3
        left = first.instance.processes()
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []
    assert [each.instance.processes() for each in (first, second)] == [[], []]
    assert list(temporary.iterdir()) == []


async def test_a_port_that_an_option_of_java_opens_to_others_ends_the_start(mar, temporary):
    debugger = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=*:0"
    with pytest.raises(StartupError, match=r"port \d+: reachable from other machines.*remove what opens this port"):
        async with owned_server([mar], settings={"vmargs": debugger}):
            pass
    assert list(temporary.iterdir()) == []


async def test_a_start_that_is_cancelled_leaves_nothing(mar, temporary):
    async def own() -> None:
        async with owned_server([mar]):
            raise AssertionError("it was cancelled before it was ready")

    owner = asyncio.create_task(own())
    while not (processes := [p for path in temporary.iterdir() for p in Instance(path).processes()]):
        await asyncio.wait([owner], timeout=0.1)
    owner.cancel()
    with suppress(asyncio.CancelledError):
        await owner
    assert psutil.wait_procs(processes, timeout=PATIENCE)[1] == []
    assert list(temporary.iterdir()) == []


def test_an_owner_that_is_killed_leaves_nothing(mar, temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", OWNER, str(mar)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        instance = Instance(Path(owner.stdout.readline().strip()))
        processes = instance.processes()
        assert len(processes) == 2
        guards = [p for p in psutil.process_iter(["cmdline"]) if str(instance.directory) in (p.info["cmdline"] or [])]
        assert len(guards) == 1
        owner.send_signal(signal.SIGKILL)
    assert psutil.wait_procs([*processes, *guards], timeout=PATIENCE)[1] == []
    assert list(temporary.iterdir()) == []
