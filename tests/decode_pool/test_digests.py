"""The queue of files whose digests are computed: which share a command, and what an error costs."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from reelscribe.contract.source import Source
from reelscribe.decode_pool.digest_queue import ATTEMPTS, FILES_TOGETHER, LARGE_BYTES, SMALL_BYTES, DigestQueue
from reelscribe.errors import DecoderDied, MediaError, StartupError
from support.patience import PATIENCE


class Processes:
    """Decode processes that compute digests when they are allowed to; what is named after an error ends with it."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.allowed = asyncio.Event()

    @asynccontextmanager
    async def lend(self):
        yield self

    async def digest_files(self, paths):
        self.commands.append(list(paths))
        await self.allowed.wait()
        if "dies" in paths:
            raise DecoderDied("the process died")
        if "cannot start" in paths:
            raise StartupError("no process")
        return [MediaError(path) if path == "gone" else Source(path, 1, path) for path in paths]

    async def digests(self, *paths: str, size: int = 1, processes: int = 1) -> list[Source | BaseException]:
        """Queue files at once, and return what becomes of each."""
        queue = DigestQueue(self.lend, processes)
        tasks = [asyncio.create_task(queue.digest(path, size)) for path in paths]
        self.allowed.set()
        done = asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.wait_for(done, PATIENCE)


NAMES = [f"{number}" for number in range(FILES_TOGETHER + 5)]


async def test_small_files_that_wait_share_a_command():
    processes = Processes()
    assert await processes.digests(*NAMES) == [Source(name, 1, name) for name in NAMES]
    assert processes.commands == [NAMES[:FILES_TOGETHER], NAMES[FILES_TOGETHER:]]


async def test_large_files_have_a_command_each_in_as_many_processes_as_may_compute_digests():
    processes = Processes()
    await processes.digests("a", "b", "c", size=SMALL_BYTES + 1, processes=2)
    assert processes.commands == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("names", [["large", "film"], ["short", "large", "film"]])
async def test_a_file_of_terabytes_does_not_hold_up_others(names):
    class OneIsSlow(Processes):
        async def digest_files(self, paths):
            self.commands.append(list(paths))
            if "large" in paths:
                await self.allowed.wait()
            return [Source(path, 1, path) for path in paths]

    processes = OneIsSlow()
    queue = DigestQueue(processes.lend, 1)
    sizes = {"short": 1, "large": LARGE_BYTES, "film": LARGE_BYTES - 1}
    tasks = {name: asyncio.create_task(queue.digest(name, sizes[name])) for name in names}
    assert (await asyncio.wait_for(tasks["film"], PATIENCE)).path == "film"
    assert not tasks["large"].done()
    processes.allowed.set()
    await asyncio.wait_for(tasks["large"], PATIENCE)
    assert processes.commands == [[name] for name in names]


@pytest.mark.parametrize("size", [1, SMALL_BYTES + 1, LARGE_BYTES])
async def test_a_thousand_files_that_come_at_once_start_no_more_tasks_than_processes(size):
    queue = DigestQueue(Processes().lend, 2)
    before = asyncio.all_tasks()
    waiting = {asyncio.create_task(queue.digest(f"{number}", size)) for number in range(1000)}
    await asyncio.sleep(0)  # all have begun
    assert len(asyncio.all_tasks() - before - waiting) == 2
    await queue.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_file_that_cannot_be_read_costs_the_others_nothing():
    first, gone, last = await Processes().digests("first", "gone", "last")
    assert (first.path, str(gone), last.path) == ("first", "gone", "last")


async def test_a_file_on_which_processes_die_is_tried_by_itself_and_costs_the_others_nothing():
    processes = Processes()
    first, dies, last = await processes.digests("first", "dies", "last")
    assert (first.path, type(dies), last.path) == ("first", DecoderDied, "last")
    assert processes.commands == [["first", "dies", "last"], ["first"], *[["dies"]] * ATTEMPTS, ["last"]]


async def test_every_other_error_reaches_those_who_wait_and_later_files_are_read():
    processes = Processes()
    failed, good = await processes.digests("cannot start", "good", size=SMALL_BYTES + 1)
    assert (type(failed), good.path) == (StartupError, "good")


async def test_files_for_which_nobody_waits_any_more_are_not_read():
    processes = Processes()
    queue = DigestQueue(processes.lend, 1)
    tasks = [asyncio.create_task(queue.digest(name, SMALL_BYTES + 1)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)  # all have begun
    tasks[1].cancel()
    processes.allowed.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
    assert processes.commands == [["a"], ["c"]]


async def test_at_the_end_nobody_waits_for_ever():
    processes = Processes()
    queue = DigestQueue(processes.lend, 1)
    tasks = [asyncio.create_task(queue.digest(name, SMALL_BYTES + 1)) for name in ("read", "waits")]
    await asyncio.sleep(0)
    await queue.close()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)
