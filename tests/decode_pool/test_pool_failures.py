"""Video that comes from decode processes, when they die, hang or are no longer wanted."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest

from reelscribe.contract.source import Span
from reelscribe.decode_pool.frames import ReadFrames
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.errors import DecoderDied, DecoderStalled
from support.decoding import decode_processes
from support.patience import PATIENCE
from support.received import Received, decode_all, new_pool, task_of


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
async def test_if_a_process_is_killed_another_one_goes_on_with_what_is_missing(media, sig):
    def kill_at_20(batch):
        if batch.stop == 20:
            decode_processes()[0].send_signal(sig)

    task = task_of(media / "old.avi")
    async with new_pool() as pool:
        received = await Received().take(pool, task, Span(5, 30), Span(40, None), after_each=kill_at_20)
        assert pool.failures == 1
    assert received.ordinals == [*range(5, 30), *range(40, 90)]
    assert len(set(received.pids)) == 2
    assert received.opened == [received.opened[0]] * 2  # each process describes the video
    undisturbed = await decode_all(task, Span(5, 30), Span(40, None))
    assert np.array_equal(received.frames, undisturbed.frames)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", ["crash.mkv", "fail.mkv"])
async def test_a_file_that_a_process_dies_of_once_is_read_by_the_next(misbehaving, name, reuse):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving(name), most=2, reuse=reuse)
        assert pool.failures == 1
    assert received.outline() == (await decode_all(misbehaving("well.mkv"), most=2, reuse=reuse)).outline()


@pytest.mark.parametrize("name", ["crash.mkv", "fail.mkv", "hang.mkv"])
async def test_what_decord_may_have_died_or_hung_of_is_read_by_pyav(misbehaving, name, hanging_takes_no_time):
    async with new_pool() as pool:
        received = await Received().take(pool, replace(misbehaving(name), decoder="decord"))
        assert (pool.failures, pool.substituted) == (1, 1)
        await received.take(pool, replace(misbehaving("well.mkv"), decoder="decord"))
        assert pool.substituted == 1
    assert received.ordinals == [*range(40), *range(40)]
    by_decord, by_pyav = received.frames[40:], (await decode_all(misbehaving("same.mkv"))).frames
    assert np.array_equal(received.frames[:40], np.concatenate([by_decord[:20], by_pyav[20:]]))


@pytest.mark.parametrize(
    ("name", "reason"), [("crash", "SIGSEGV"), ("fail", "exit status 1 RuntimeError: out of luck")]
)
async def test_a_file_that_every_process_dies_of_is_an_error_with_the_reason(misbehaving, name, reason):
    received = Received()
    async with new_pool() as pool:
        with pytest.raises(DecoderDied, match=rf"ended: {reason}; like 1 before it"):
            await received.take(pool, misbehaving(f"{name}-always.mkv"))
        assert pool.failures == 2
        assert decode_processes() == []
        assert received.ordinals == list(range(20))  # what came before it is not lost
        await received.take(pool, misbehaving("well.mkv"))
    assert received.ordinals == [*range(20), *range(40)]


async def test_a_process_that_hangs_is_killed_and_another_one_goes_on(misbehaving, hanging_takes_no_time):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving("hang.mkv"))
        assert pool.failures == 1
        hung, *_, other = dict.fromkeys(received.pids)
        assert [process.pid for process in decode_processes()] == [other]
        assert not psutil.pid_exists(hung)
    assert received.ordinals == list(range(40))


async def test_a_file_that_every_process_hangs_on_is_an_error(misbehaving, hanging_takes_no_time):
    received = Received()
    async with new_pool() as pool:
        with pytest.raises(DecoderStalled, match=r"did not get on for 60 s and was ended; like 1 before it"):
            await received.take(pool, misbehaving("hang-always.mkv"))
        assert pool.failures == 2
        assert decode_processes() == []
        assert pool.busy_seconds > 2 * STALL_SECONDS
        assert not any(map(psutil.pid_exists, received.pids))
        await received.take(pool, misbehaving("well.mkv"))
    assert received.ordinals[-40:] == [*range(40)]


async def test_a_file_that_stalls_twice_by_its_first_packet_is_not_tried_again(misbehaving, hanging_takes_no_time):
    received = Received()
    async with new_pool() as pool:
        await received.take(pool, misbehaving("well.mkv"))  # the first process has read another file before
        with pytest.raises(DecoderStalled, match=r"did not get on for 60 s and was ended; like 1 before it"):
            await received.take(pool, misbehaving("stuck.mkv"))
        assert pool.failures == 2


async def test_a_codec_may_print_to_standard_output(misbehaving):
    received = await decode_all(misbehaving("print-always.mkv"))
    assert received.ordinals == list(range(40))


async def test_an_idle_process_that_dies_costs_nothing(clip):
    async with new_pool() as pool:
        await Received().take(pool, task_of(clip))
        decode_processes()[0].kill()
        received = await Received().take(pool, task_of(clip))
    assert received.ordinals == list(range(40))


async def test_after_stop_reads_end_and_no_new_ones_begin(media):
    async with new_pool() as pool:
        with pytest.raises(DecoderDied):
            await Received().take(pool, task_of(media / "old.avi"), after_each=lambda batch: pool.stop())
        assert decode_processes() == []
        with pytest.raises(DecoderDied, match="stopped"):
            await Received().take(pool, task_of(media / "old.avi"))
        with pytest.raises(DecoderDied, match="stopped"):
            await pool.digest_file(str(media / "old.avi"), 0)
        assert pool.failures == 0  # a process that was stopped has not failed


async def test_a_process_that_hangs_is_stopped_at_once(misbehaving):
    received, stalled = Received(), asyncio.Event()
    async with new_pool() as pool:
        task = asyncio.create_task(
            received.take(pool, misbehaving("hang.mkv"), after_each=lambda batch: batch.stop == 20 and stalled.set())
        )
        await stalled.wait()
        pool.stop()
        with pytest.raises(DecoderDied, match="SIGKILL"):
            await task


async def test_no_process_is_left_when_reads_are_given_up(misbehaving):
    async with new_pool(workers=2) as pool:
        for name in ("hang-always.mkv", "well.mkv"):
            batches = pool.read(ReadFrames(misbehaving(name), 5), [Span()])
            await anext(batches)
            assert len(decode_processes()) == 1
            await batches.aclose()
            assert decode_processes() == []
        await pool.digest_file(__file__, 0)
        assert len(decode_processes()) == 1
    assert decode_processes() == []


PARENT = """
import asyncio, sys
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.frames import OpenedVideo, ReadFrames
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section, Span
from reelscribe.decode.video import VideoTask

async def main():
    size = InputSize(64, 48)
    async with DecodePool(1, 5 * size.nbytes, 1) as pool:
        async for batch in pool.read(ReadFrames(VideoTask(sys.argv[1], size), 5), [Span()]):
            if not isinstance(batch, OpenedVideo):
                batch.release()
                print(batch.stop, flush=True)

asyncio.run(main())
"""


def test_a_process_that_hangs_ends_when_its_parent_is_killed(misbehaving):
    command = [sys.executable, "-c", PARENT, misbehaving("hang-always.mkv").path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        while parent.stdout.readline() != "20\n":
            pass
        (child,) = psutil.Process(parent.pid).children()
        ended = os.pidfd_open(child.pid)
        parent.kill()
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    assert poll.poll(PATIENCE * 1000), "the decode process is still running"
    os.close(ended)


async def test_processes_end_although_the_end_of_their_pool_is_cancelled(media):
    async def use():
        async with new_pool() as pool:
            await Received().take(pool, task_of(media / "old.avi"), Span(5, 30))
            asyncio.current_task().cancel()  # which the next await, that of the end, notices

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(use())
    assert decode_processes() == []


async def test_a_pool_without_memory_for_its_batches_leaves_no_process():
    with pytest.raises(OSError, match="Cannot allocate memory"):
        async with DecodePool(1, 2**50, 1):
            pass
    assert decode_processes() == []
