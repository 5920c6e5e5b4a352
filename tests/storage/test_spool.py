"""Copies of sources: complete and checked however the connection behaves, bounded, and gone at the end."""

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reelscribe.errors import MediaError, OutputError, SourceChanged
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.spool import Spool, SpoolOptions
from support.patience import PATIENCE
from support.stores import cut, every_third, stalled, status, web_server

CONTENT = random.Random(1).randbytes(1_000_000)


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "one.mp4").write_bytes(CONTENT)
    with web_server(folder) as (server, address):
        server.folder, server.address = folder, address
        yield server


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


async def copy_of(address: str, folder: Path, **options) -> bytes:
    """The content of the copy of a source, whose digest is right."""
    async with Spool(SpoolOptions(folder, **options)) as spool:
        stored = await spool.info(address)
        async with spool.fetch(stored) as copy:
            content = read_bytes(copy.path)
            assert copy.sha256 == hashlib.sha256(content).hexdigest()
            return content


async def test_a_copy_is_read_once_and_leaves_nothing(served, tmp_path):
    (spool := tmp_path / "spool").mkdir()
    assert await copy_of(f"{served.address}/one.mp4", spool) == CONTENT
    assert served.sent["one.mp4"] <= 1.05 * len(CONTENT)
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize("fault", [status(503, times=3), every_third(503), cut(1), cut(2), stalled])
async def test_a_copy_is_complete_however_often_the_server_fails(served, tmp_path, fault):
    served.faults["one.mp4"] = fault
    assert await copy_of(f"{served.address}/one.mp4", tmp_path, stall_seconds=0.5) == CONTENT
    assert served.sent["one.mp4"] <= 1.05 * len(CONTENT)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (status(404), "no such file on the server (status 404)"),
        (status(403), "permission denied by the server (status 403); put name and password into ~/.netrc"),
        (status(500), "the server failed with status 500 again and again"),
        (status(418), "expected a file, got status 418"),
    ],
)
async def test_what_cannot_be_read_says_why(served, tmp_path, fault, reason):
    served.faults["one.mp4"] = fault
    with pytest.raises(MediaError) as error:
        await copy_of(f"{served.address}/one.mp4", tmp_path)
    assert reason in str(error.value)
    assert served.requests["one.mp4"] <= 8


async def test_a_source_that_changes_while_it_is_read_is_refused(served, tmp_path):
    def change(sending):
        if sending.number == 2:  # the next request gets another file
            (served.folder / "one.mp4").write_bytes(CONTENT[::-1])
        return cut(1)(sending)

    served.faults["one.mp4"] = change
    with pytest.raises(SourceChanged, match="changed while it was being read"):
        await copy_of(f"{served.address}/one.mp4", tmp_path)


async def test_the_server_may_not_send_more_than_it_has_told(served, tmp_path):
    async with Spool(SpoolOptions(tmp_path)) as spool:
        stored = await spool.info(f"{served.address}/one.mp4")
        with pytest.raises(SourceChanged):
            async with spool.fetch(stored._replace(size=1000)):
                pass


async def test_all_copies_together_keep_within_the_bound(served, tmp_path):
    held = most = 0
    async with Spool(SpoolOptions(tmp_path, most_bytes=2_500_000)) as spool:
        stored = await spool.info(f"{served.address}/one.mp4")

        async def use():
            nonlocal held, most
            async with spool.fetch(stored) as copy:
                held += os.stat(copy.path).st_blocks * 512
                most = max(most, held)
                await asyncio.sleep(0)
                held -= os.stat(copy.path).st_blocks * 512

        await asyncio.wait_for(asyncio.gather(*(use() for _ in range(10))), PATIENCE)
    assert len(CONTENT) <= most <= 2_500_000


async def test_a_source_that_is_larger_than_the_spool_is_an_error_that_says_so(served, tmp_path):
    with pytest.raises(MediaError, match=r"copies of sources may take 0\.0 GB of .*; raise --spool-gb"):
        await copy_of(f"{served.address}/one.mp4", tmp_path, most_bytes=999_999)


async def test_who_does_not_wait_any_more_leaves_the_room_to_others(served, tmp_path):
    async with Spool(SpoolOptions(tmp_path, most_bytes=1_500_000)) as spool:
        stored = await spool.info(f"{served.address}/one.mp4")

        async def use():
            async with spool.fetch(stored):
                await asyncio.Event().wait()

        first, second = asyncio.create_task(use()), asyncio.create_task(use())
        third = spool.fetch(stored)
        third_entered = asyncio.create_task(third.__aenter__())
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        copy = await asyncio.wait_for(third_entered, PATIENCE)
        assert read_bytes(copy.path) == CONTENT
        await third.__aexit__(None, None, None)


async def test_stopping_ends_who_waits_for_a_store_that_stands_still(served, tmp_path):
    served.faults["one.mp4"] = status(503)
    async with Spool(SpoolOptions(tmp_path)) as spool:
        waiting = asyncio.create_task(spool.info(f"{served.address}/one.mp4"))
        spool.stop()
        with pytest.raises(MediaError):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    async with Spool(SpoolOptions(tmp_path / "missing", most_bytes=10)) as spool:
        with pytest.raises(OutputError, match="cannot be kept there"):
            async with spool.fetch(StoredObject("https://example.org/a.mp4", 1, "")):
                pass


KILLED = """
import asyncio, sys
from pathlib import Path
from reelscribe.storage.spool import Spool, SpoolOptions

async def main():
    async with Spool(SpoolOptions(Path(sys.argv[2]))) as spool:
        async with spool.fetch(await spool.info(sys.argv[1])) as copy:
            print(Path(copy.path).stat().st_size, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


def test_nothing_is_left_of_a_process_that_is_killed(served, tmp_path):
    (spool := tmp_path / "spool").mkdir()
    address = f"{served.address}/one.mp4"
    with subprocess.Popen([sys.executable, "-c", KILLED, address, spool], stdout=subprocess.PIPE, text=True) as process:
        assert int(process.stdout.readline()) == len(CONTENT)
        process.send_signal(signal.SIGKILL)
    assert list(spool.iterdir()) == []


async def test_who_is_cancelled_waits_for_the_thread_that_writes(tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    class Waiting:
        def of(self, address):
            return self

        def read(self, stored, start=0, stop=None):
            begun.set()
            yield b"x"
            assert go_on.wait(PATIENCE)
            yield b"y"

    async with Spool(SpoolOptions(tmp_path)) as spool:
        monkeypatch.setattr(spool, "stores", Waiting())
        copying = spool.fetch(StoredObject("s3://b/a.mp4", 2, "1"))
        entering = asyncio.create_task(copying.__aenter__())
        await asyncio.to_thread(begun.wait, PATIENCE)
        entering.cancel()
        done, _ = await asyncio.wait([entering], timeout=0.05)
        assert not done
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(entering, PATIENCE)
        monkeypatch.undo()
