"""The processes that decode, and what happens when they die, hang or are no longer wanted."""

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
from reelscribe.contract.source import Span
from reelscribe.decode.video import Video, VideoTask
from reelscribe.decode_pool.frame_feed import DecodedFrameBatch, FrameReading, OpenedVideo
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.pool import process as decoder
from reelscribe.decode_pool.slots import Slots
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, NoPictures
from support.decoding import MISBEHAVING, STALL_SECONDS, decoders
from support.odd_library import write_sound
from support.videos import write

SIZE = InputSize(64, 48)


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """40 frames, in steps of five that are nearly equal."""
    path = tmp_path_factory.mktemp("clips") / "clip.mkv"
    write(path, "ffv1", [20 + 25 * (k // 5) + k % 5 for k in range(40)])
    return path


@pytest.fixture
def misbehaving(clip, tmp_path, monkeypatch):
    """Gives the task of a file with which decode processes do what its name says."""
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    return lambda name: task_of(shutil.copy(clip, tmp_path / name))


def task_of(path: Path) -> VideoTask:
    return VideoTask(str(path), SIZE)


def new_pool(*, workers: int = 1, batches_held: int = 1, stall_seconds: float = 60.0) -> DecodePool:
    return DecodePool(workers, 5 * SIZE.nbytes, batches_held, stall_seconds=stall_seconds)


class Got:
    """What has come of a video; parts are released, and have copies of their frames."""

    def __init__(self) -> None:
        self.opened: list[OpenedVideo] = []
        self.parts: list[DecodedFrameBatch] = []
        self.pids: list[int] = []
        """Which processes ran, each time when a part came."""

    async def take(self, *arguments, **options) -> "Got":
        """Arguments are those of `_take`; a deadlock is an error here."""
        return await asyncio.wait_for(self._take(*arguments, **options), 60)

    async def _take(self, pool, task, *spans, most=5, reuse=False, after_each=lambda part: None) -> "Got":
        async with aclosing(pool.read(FrameReading(task, most, reuse), spans or [Span()])) as parts:
            async for part in parts:
                if isinstance(part, OpenedVideo):
                    self.opened.append(part)
                else:
                    self.pids += [decoder.pid for decoder in decoders()]
                    self.parts.append(replace(part, frames=part.frames.copy()))
                    part.release()
                    after_each(part)
        return self

    @property
    def ordinals(self) -> list[int]:
        return [ordinal for part in self.parts for ordinal in range(part.first, part.stop)]

    @property
    def levels(self) -> list[int]:
        """The grey levels of the frames, which tell them apart."""
        return [round(frame.mean()) for part in self.parts for frame in part.frames]

    def outline(self) -> list[tuple]:
        """The parts, without the slots that their frames lay in."""
        fields = ("first", "stop", "frame_indices", "pts_seconds", "reused", "undecodable", "anchor")
        return [tuple(getattr(part, field) for field in fields) for part in self.parts]


async def decode_all(task: VideoTask, *spans: Span, most: int = 5, reuse: bool = False) -> Got:
    async with new_pool() as pool:
        return await Got().take(pool, task, *spans, most=most, reuse=reuse)


async def test_frames_arrive_as_the_video_gives_them(media):
    task = task_of(media / "old.avi")
    got = await decode_all(task)
    with Video(task) as video:
        expected = list(video.frames(range(len(video.chosen))))
        assert [(opened.info, opened.chosen, opened.input_size) for opened in got.opened] == [(video.info, 90, SIZE)]
    assert got.ordinals == list(range(90))
    assert [index for part in got.parts for index in part.frame_indices] == [frame.frame_index for frame in expected]
    assert [time for part in got.parts for time in part.pts_seconds] == [frame.pts_seconds for frame in expected]
    assert np.array_equal(np.concatenate([part.frames for part in got.parts]), [frame.image for frame in expected])


async def test_only_what_is_missing_is_decoded(clip):
    got = await decode_all(task_of(clip), Span(3, 6), Span(10, 17), Span(38, None))
    assert [(part.first, part.stop) for part in got.parts] == [(3, 6), (10, 15), (15, 17), (38, 40)]
    assert len(got.levels) == 12


async def test_nothing_that_is_missing_is_no_parts(clip):
    got = await decode_all(task_of(clip), Span(40, None))
    assert (len(got.opened), got.parts) == (1, [])


async def test_frames_that_are_nearly_equal_are_told_and_not_sent(clip):
    got = await decode_all(task_of(clip), reuse=True)
    assert [index for part in got.parts for index in part.frame_indices] == list(range(0, 40, 5))
    assert [of for part in got.parts for _, _, of in part.reused] == [k // 5 * 5 for k in range(40) if k % 5]
    assert got.ordinals == list(range(40))


async def test_with_its_anchor_any_missing_part_comes_as_in_one_go(clip):
    task = task_of(clip)
    whole = (await decode_all(task, most=3, reuse=True)).outline()
    assert len(whole) == 3
    for at, (first, stop, *_) in enumerate(whole):
        anchor = whole[at - 1][-1] if at else None
        assert (await decode_all(task, Span(first, stop, anchor), most=3, reuse=True)).outline() == whole[at : at + 1]
        assert (await decode_all(task, Span(first, None, anchor), most=3, reuse=True)).outline() == whole[at:]


async def test_a_slot_keeps_its_frames_until_it_is_released(clip):
    held: list[DecodedFrameBatch] = []
    async with new_pool(batches_held=4) as pool, aclosing(pool.read(FrameReading(task_of(clip), 5), [Span()])) as parts:
        async for part in parts:
            if isinstance(part, DecodedFrameBatch):
                held.append(part)
            if len(held) == 5:  # the process has gone on meanwhile
                break
        levels = [round(frame.mean()) for part in held[:4] for frame in part.frames]
    assert levels == (await decode_all(task_of(clip))).levels[:20]


async def test_whoever_stops_waiting_for_a_slot_leaves_all_of_them_to_others(clip, monkeypatch):
    takes, take, waiting = 0, Slots.take, asyncio.Event()

    async def counted_take(slots):
        nonlocal takes
        takes += 1
        if takes == 3:  # there are two
            waiting.set()
        return await take(slots)

    monkeypatch.setattr(Slots, "take", counted_take)
    async with new_pool(batches_held=0) as pool:
        parts = pool.read(FrameReading(task_of(clip), 5), [Span()])
        await anext(parts)
        held = await anext(parts)
        third = asyncio.ensure_future(anext(parts))
        await waiting.wait()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        held.release()
        got = await Got().take(pool, task_of(clip))
    assert got.ordinals == list(range(40))


async def test_a_process_reads_one_file_after_the_other_and_bad_ones_do_not_end_it(clip, media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    write_sound(tmp_path / "sound.mp4", media / "spoken.mp4")
    async with new_pool() as pool:
        got = await Got().take(pool, task_of(clip))
        with pytest.raises(MediaError, match="not a media file"):
            await got.take(pool, task_of(tmp_path / "x.mp4"))
        with pytest.raises(NoPictures, match="got audio"):
            await got.take(pool, task_of(tmp_path / "sound.mp4"))
        with pytest.raises(MediaError, match="No such file"):
            await pool.digest_file(str(tmp_path / "gone.mp4"))
        assert (await pool.digest_file(str(clip))).bytes == clip.stat().st_size
        await got.take(pool, task_of(clip))
        assert pool.failures == 0
    assert len(set(got.pids)) == 1
    assert got.ordinals == [*range(40)] * 2


async def test_files_are_read_by_as_many_processes_as_there_may_be(clip):
    async with new_pool(workers=2) as pool:
        several = await asyncio.gather(*(Got().take(pool, task_of(clip)) for _ in range(5)))
        assert len(decoders()) == 2
        assert pool.busy_seconds > 0
        assert pool.decoded == 5 * 40
    assert all(got.ordinals == list(range(40)) for got in several)


async def test_a_process_that_has_read_many_files_is_replaced(clip, monkeypatch):
    monkeypatch.setattr(decoder, "FILES_PER_PROCESS", 2)
    async with new_pool() as pool:
        runs = [set((await Got().take(pool, task_of(clip))).pids) for _ in range(4)]
        assert runs[0] == runs[1] != runs[2] == runs[3]
        assert pool.decoded == 4 * 40  # those of the first process are not forgotten
        assert pool.failures == 0
        assert decoders() == []
    assert [len(pids) for pids in runs] == [1] * 4


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
async def test_if_a_process_is_killed_another_one_goes_on_with_what_is_missing(media, sig):
    def kill_at_20(part):
        if part.stop == 20:
            decoders()[0].send_signal(sig)

    task = task_of(media / "old.avi")
    async with new_pool() as pool:
        got = await Got().take(pool, task, Span(5, 30), Span(40, None), after_each=kill_at_20)
        assert pool.failures == 1
    assert got.ordinals == [*range(5, 30), *range(40, 90)]
    assert len(set(got.pids)) == 2
    assert got.opened == [got.opened[0]] * 2  # each says what it is
    whole = [frame for part in (await decode_all(task, Span(5, 30), Span(40, None))).parts for frame in part.frames]
    assert np.array_equal([frame for part in got.parts for frame in part.frames], whole)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", ["crash.mkv", "fail.mkv"])
async def test_what_pyav_dies_of_is_read_with_decord(misbehaving, name, reuse):
    async with new_pool() as pool:
        got = await Got().take(pool, misbehaving(name), most=2, reuse=reuse)
        assert pool.failures == 2  # PyAV was given a second chance
    assert got.outline() == (await decode_all(misbehaving("well.mkv"), most=2, reuse=reuse)).outline()
    assert len(set(got.pids)) == 2  # the first one came so far as to give parts


@pytest.mark.parametrize(
    ("name", "reason"), [("crash", "SIGSEGV"), ("fail", "exit status 1 RuntimeError: out of luck")]
)
async def test_a_file_that_no_process_survives_says_what_they_died_of(misbehaving, name, reason):
    got = Got()
    async with new_pool() as pool:
        with pytest.raises(DecoderDied, match=rf"ended: {reason}; like 2 before it"):
            await got.take(pool, misbehaving(f"{name}-always.mkv"))
        assert pool.failures == 3
        assert decoders() == []
        assert got.ordinals == list(range(20))  # what came before it is not lost
        await got.take(pool, misbehaving("well.mkv"))
    assert got.ordinals == [*range(20), *range(40)]


async def test_a_process_that_hangs_is_ended_and_another_one_goes_on(misbehaving):
    async with new_pool(stall_seconds=STALL_SECONDS) as pool:
        got = await Got().take(pool, misbehaving("hang.mkv"))
        assert pool.failures == 2
        hung, *_, other = dict.fromkeys(got.pids)
        assert [decoder.pid for decoder in decoders()] == [other]
        assert not psutil.pid_exists(hung)
    assert got.ordinals == list(range(40))


async def test_a_file_that_every_process_hangs_on_says_so(misbehaving):
    got = Got()
    async with new_pool(stall_seconds=STALL_SECONDS) as pool:
        with pytest.raises(DecoderStalled, match=r"did not get on for 3 s and was ended; like 2 before it"):
            await got.take(pool, misbehaving("hang-always.mkv"))
        assert pool.failures == 3
        assert decoders() == []
        assert pool.busy_seconds > STALL_SECONDS
    assert not any(map(psutil.pid_exists, got.pids))


async def test_what_a_codec_prints_disturbs_nothing(misbehaving):
    got = await decode_all(misbehaving("print-always.mkv"))
    assert got.ordinals == list(range(40))


async def test_an_idle_process_that_dies_costs_nothing(clip):
    async with new_pool() as pool:
        await Got().take(pool, task_of(clip))
        decoders()[0].kill()
        got = await Got().take(pool, task_of(clip))
    assert got.ordinals == list(range(40))


async def test_after_stop_what_is_being_decoded_ends_and_nothing_is_begun(media):
    async with new_pool() as pool:
        with pytest.raises(DecoderDied):
            await Got().take(pool, task_of(media / "old.avi"), after_each=lambda part: pool.stop())
        assert decoders() == []
        with pytest.raises(DecoderDied, match="stopped"):
            await Got().take(pool, task_of(media / "old.avi"))
        with pytest.raises(DecoderDied, match="stopped"):
            await pool.digest_file(str(media / "old.avi"))
        assert pool.failures == 0  # it was meant


async def test_a_process_that_hangs_is_stopped_at_once(misbehaving):
    got, stalled = Got(), asyncio.Event()
    async with new_pool() as pool:
        task = asyncio.create_task(
            got.take(pool, misbehaving("hang.mkv"), after_each=lambda part: part.stop == 20 and stalled.set())
        )
        await stalled.wait()
        pool.stop()
        with pytest.raises(DecoderDied, match="SIGKILL"):
            await task


async def test_no_process_is_left_when_files_are_given_up_in_the_middle(misbehaving):
    async with new_pool(workers=2) as pool:
        for name in ("hang-always.mkv", "well.mkv"):
            parts = pool.read(FrameReading(misbehaving(name), 5), [Span()])
            await anext(parts)
            assert len(decoders()) == 1
            await parts.aclose()
            assert decoders() == []
        await pool.digest_file(__file__)
        assert len(decoders()) == 1
    assert decoders() == []


PARENT = """
import asyncio, sys
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.frame_feed import FrameReading, OpenedVideo
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span
from reelscribe.decode.video import VideoTask

async def main():
    size = InputSize(64, 48)
    async with DecodePool(1, 5 * size.nbytes, 1) as pool:
        async for part in pool.read(FrameReading(VideoTask(sys.argv[1], size), 5), [Span()]):
            if not isinstance(part, OpenedVideo):
                part.release()
                print(part.stop, flush=True)

asyncio.run(main())
"""


def test_a_process_that_hangs_ends_when_its_parent_is_killed(misbehaving):
    command = [sys.executable, "-c", PARENT, misbehaving("hang-always.mkv").path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        while parent.stdout.readline() != "20\n":
            pass
        (decoder,) = psutil.Process(parent.pid).children()
        ended = os.pidfd_open(decoder.pid)
        parent.kill()
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    assert poll.poll(30_000), "it is still there after half a minute"
    os.close(ended)
