"""Video that comes from decode processes, and what happens when they die, hang or are no longer wanted."""

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section, Span
from reelscribe.decode.video import Video, VideoTask
from reelscribe.decode_pool import process
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import STALL_SECONDS, DecodePool
from reelscribe.decode_pool.slots import Slots
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, NoPictures
from support.decoding import MISBEHAVING, decode_processes
from support.odd_library import write_sound
from support.patience import PATIENCE
from support.videos import write

SIZE = InputSize(64, 48)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A video of 40 frames, all of which differ."""
    path = tmp_path_factory.mktemp("clips") / "clip.mkv"
    write(path, "ffv1", [20 + 25 * (k // 5) + k % 5 for k in range(40)])
    return path


@pytest.fixture(scope="module")
def stills(tmp_path_factory) -> Path:
    """A video of 40 frames, of which always five in a row are equal."""
    path = tmp_path_factory.mktemp("clips") / "stills.mkv"
    write(path, "ffv1", [20 + 25 * (k // 5) for k in range(40)])
    return path


@pytest.fixture
def misbehaving(clip, tmp_path, monkeypatch):
    """Returns the task of a file over which decode processes do what its name says."""
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    return lambda name: task_of(shutil.copy(clip, tmp_path / name))


def task_of(path: Path) -> VideoTask:
    return VideoTask(str(path), SIZE)


def new_pool(*, workers: int = 1, batches_held: int = 1) -> DecodePool:
    return DecodePool(workers, 5 * SIZE.nbytes, batches_held)


class Received:
    """What has come from the pool. Batches are released, and hold copies of their frames."""

    def __init__(self) -> None:
        self.opened: list[OpenedVideo] = []
        self.batches: list[DecodedFrameBatch] = []
        self.pids: list[int] = []
        """The processes that were running when each batch came."""

    async def take(self, *arguments, **options) -> "Received":
        """Like `_take`, but a deadlock ends the test."""
        return await asyncio.wait_for(self._take(*arguments, **options), PATIENCE)

    async def _take(self, pool, task, *spans, most=5, reuse=False, after_each=lambda batch: None) -> "Received":
        async with aclosing(pool.read(ReadFrames(task, most, reuse), spans or [Span()])) as batches:
            async for batch in batches:
                if isinstance(batch, OpenedVideo):
                    self.opened.append(batch)
                else:
                    self.pids += [process.pid for process in decode_processes()]
                    self.batches.append(replace(batch, frames=batch.frames.copy()))
                    batch.release()
                    after_each(batch)
        return self

    @property
    def ordinals(self) -> list[int]:
        return [ordinal for batch in self.batches for ordinal in range(batch.first, batch.stop)]

    @property
    def frames(self) -> np.ndarray:
        return np.concatenate([batch.frames for batch in self.batches])

    @property
    def levels(self) -> list[int]:
        """The grey levels of the frames, which tell them apart."""
        return [round(frame.mean()) for frame in self.frames]

    def outline(self) -> list[tuple]:
        """The batches without their frames, which show where they lie."""
        fields = ("first", "stop", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor")
        return [tuple(getattr(batch, field) for field in fields) for batch in self.batches]


async def decode_all(task: VideoTask, *spans: Span, most: int = 5, reuse: bool = False) -> Received:
    async with new_pool() as pool:
        return await Received().take(pool, task, *spans, most=most, reuse=reuse)


async def test_frames_arrive_as_the_video_gives_them(media):
    task = task_of(media / "old.avi")
    received = await decode_all(task)
    with Video(task) as video:
        expected = list(video.frames(range(len(video.chosen))))
        (opened,) = received.opened
        assert (opened.info, opened.chosen, opened.input_size) == (video.info, 90, SIZE)
    batches = received.batches
    assert received.ordinals == list(range(90))
    assert [index for batch in batches for index in batch.frame_indices] == [frame.frame_index for frame in expected]
    assert [seconds for batch in batches for seconds in batch.pts_seconds] == [frame.pts_seconds for frame in expected]
    assert np.array_equal(received.frames, [frame.image for frame in expected])


async def test_only_what_is_missing_is_decoded(clip):
    received = await decode_all(task_of(clip), Span(3, 6), Span(10, 17), Span(38, None))
    assert [(batch.first, batch.stop) for batch in received.batches] == [(3, 6), (10, 15), (15, 17), (38, 40)]
    assert len(received.levels) == 12


async def test_if_nothing_is_missing_there_are_no_batches(clip):
    received = await decode_all(task_of(clip), Span(40, None))
    assert (len(received.opened), received.batches) == (1, [])


async def test_a_video_may_have_as_many_shots_as_frames(clip):
    shots = [Section(k, k + 1, k / 10, (k + 1) / 10) for k in range(50_000)]
    (opened,) = (await decode_all(replace(task_of(clip), known_shots=shots))).opened
    assert opened.shots == shots


async def test_frames_that_are_nearly_equal_are_reported_and_not_sent(stills):
    received = await decode_all(task_of(stills), reuse=True)
    assert [index for batch in received.batches for index in batch.frame_indices] == list(range(0, 40, 5))
    anchors = [anchor for batch in received.batches for _, _, anchor in batch.reused]
    assert anchors == [index // 5 * 5 for index in range(40) if index % 5]
    assert received.ordinals == list(range(40))


async def test_with_its_anchor_a_missing_batch_comes_as_it_would_in_one_go(stills):
    task = task_of(stills)
    whole = (await decode_all(task, most=3, reuse=True)).outline()
    assert len(whole) == 3
    for at, (first, stop, *_) in enumerate(whole):
        anchor = whole[at - 1][-1] if at else None
        assert (await decode_all(task, Span(first, stop, anchor), most=3, reuse=True)).outline() == whole[at : at + 1]
        assert (await decode_all(task, Span(first, None, anchor), most=3, reuse=True)).outline() == whole[at:]


async def test_a_slot_keeps_its_frames_until_it_is_released(clip):
    held: list[DecodedFrameBatch] = []
    async with new_pool(batches_held=4) as pool, aclosing(pool.read(ReadFrames(task_of(clip), 5), [Span()])) as batches:
        async for batch in batches:
            if isinstance(batch, DecodedFrameBatch):
                held.append(batch)
            if len(held) == 5:  # the process has gone on meanwhile
                break
        levels = [round(frame.mean()) for batch in held[:4] for frame in batch.frames]
    assert levels == (await decode_all(task_of(clip))).levels[:20]


async def test_a_read_that_is_cancelled_while_it_waits_for_a_slot_loses_no_slot(clip, monkeypatch):
    takes, take, waiting = 0, Slots.take, asyncio.Event()

    async def counted_take(slots):
        nonlocal takes
        takes += 1
        if takes == 3:  # there are two
            waiting.set()
        return await take(slots)

    monkeypatch.setattr(Slots, "take", counted_take)
    async with new_pool(batches_held=0) as pool:
        batches = pool.read(ReadFrames(task_of(clip), 5), [Span()])
        await anext(batches)
        held = await anext(batches)
        third = asyncio.ensure_future(anext(batches))
        await waiting.wait()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        held.release()
        received = await Received().take(pool, task_of(clip))
    assert received.ordinals == list(range(40))


async def test_a_process_whose_end_is_not_awaited_because_of_a_second_cancel_has_ended_with_the_pool(clip, monkeypatch):
    closing, ended, close = asyncio.Event(), [], process.DecodeProcess.close

    async def watched_close(each):
        closing.set()
        await close(each)
        ended.append(each)

    monkeypatch.setattr(process.DecodeProcess, "close", watched_close)
    async with new_pool() as pool:
        batches = pool.read(ReadFrames(task_of(clip), 5), [Span()])
        await anext(batches)
        reading = asyncio.create_task(batches.aclose())
        await closing.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ended == []
    assert len(ended) == 1


async def test_a_process_reads_many_files_and_goes_on_after_those_that_cannot_be_read(clip, media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    async with new_pool() as pool:
        received = await Received().take(pool, task_of(clip))
        with pytest.raises(MediaError, match="not a media file"):
            await received.take(pool, task_of(tmp_path / "x.mp4"))
        with pytest.raises(NoPictures, match="got audio"):
            await received.take(pool, task_of(tmp_path / "sound.mp4"))
        with pytest.raises(MediaError, match="No such file"):
            await pool.digest_file(str(tmp_path / "gone.mp4"), 0)
        assert (await pool.digest_file(str(clip), 0)).bytes == clip.stat().st_size
        await received.take(pool, task_of(clip))
        assert pool.failures == 0
    assert len(set(received.pids)) == 1
    assert received.ordinals == [*range(40)] * 2


async def test_files_are_read_by_as_many_processes_as_the_pool_has(clip):
    async with new_pool(workers=2) as pool:
        several = await asyncio.gather(*(Received().take(pool, task_of(clip)) for _ in range(5)))
        assert len(decode_processes()) == 2
        assert pool.busy_seconds > 0
        assert pool.decoded == 5 * 40
    assert all(received.ordinals == list(range(40)) for received in several)


async def test_a_process_that_has_read_many_files_is_replaced(clip, monkeypatch):
    monkeypatch.setattr(process, "FILES_PER_PROCESS", 2)
    monkeypatch.setattr(process, "SECONDS_PER_PROCESS", 0)
    async with new_pool() as pool:
        runs = [set((await Received().take(pool, task_of(clip))).pids) for _ in range(4)]
        assert runs[0] == runs[1] != runs[2] == runs[3]
        assert pool.decoded == 4 * 40  # including those of the replaced process
        assert pool.failures == 0
        assert decode_processes() == []
    assert [len(pids) for pids in runs] == [1] * 4


async def test_a_process_that_has_read_many_files_in_no_time_is_kept(clip, monkeypatch):
    monkeypatch.setattr(process, "FILES_PER_PROCESS", 1)
    async with new_pool() as pool:
        first, second = [set((await Received().take(pool, task_of(clip))).pids) for _ in range(2)]
    assert first == second


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
async def test_a_file_that_pyav_dies_of_is_read_with_decord(misbehaving, name, reuse):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving(name), most=2, reuse=reuse)
        assert pool.failures == 2  # PyAV was tried twice
    assert received.outline() == (await decode_all(misbehaving("well.mkv"), most=2, reuse=reuse)).outline()


@pytest.mark.parametrize(
    ("name", "reason"), [("crash", "SIGSEGV"), ("fail", "exit status 1 RuntimeError: out of luck")]
)
async def test_a_file_that_every_process_dies_of_is_an_error_with_the_reason(misbehaving, name, reason):
    received = Received()
    async with new_pool() as pool:
        with pytest.raises(DecoderDied, match=rf"ended: {reason}; like 2 before it"):
            await received.take(pool, misbehaving(f"{name}-always.mkv"))
        assert pool.failures == 3
        assert decode_processes() == []
        assert received.ordinals == list(range(20))  # what came before it is not lost
        await received.take(pool, misbehaving("well.mkv"))
    assert received.ordinals == [*range(20), *range(40)]


async def test_a_process_that_hangs_is_killed_and_another_one_goes_on(misbehaving, hanging_takes_no_time):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving("hang.mkv"))
        assert pool.failures == 2
        hung, *_, other = dict.fromkeys(received.pids)
        assert [process.pid for process in decode_processes()] == [other]
        assert not psutil.pid_exists(hung)
    assert received.ordinals == list(range(40))


async def test_a_file_that_every_process_hangs_on_is_an_error(misbehaving, hanging_takes_no_time):
    received = Received()
    async with new_pool() as pool:
        with pytest.raises(DecoderStalled, match=r"did not get on for 60 s and was ended; like 2 before it"):
            await received.take(pool, misbehaving("hang-always.mkv"))
        assert pool.failures == 3
        assert decode_processes() == []
        assert pool.busy_seconds > 3 * STALL_SECONDS
    assert not any(map(psutil.pid_exists, received.pids))


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
from reelscribe.decode_pool.frame_feed import OpenedVideo, ReadFrames
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
