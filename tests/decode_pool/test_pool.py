"""Video that comes from decode processes; test_pool_failures.py has what happens when they die or hang."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reelscribe.contract.source import Section, Span
from reelscribe.decode.video import Video
from reelscribe.decode_pool import watched_process
from reelscribe.decode_pool.commands import Slots
from reelscribe.decode_pool.frames import DecodedFrameBatch, ReadFrames
from reelscribe.errors import MediaError, NoPictures
from support.decoding import decode_processes
from support.odd_library import write_sound
from support.received import SIZE, Received, decode_all, new_pool, task_of
from support.videos import write


@pytest.fixture(scope="module")
def stills(tmp_path_factory) -> Path:
    """A video of 40 frames, of which always five in a row are equal."""
    path = tmp_path_factory.mktemp("clips") / "stills.mkv"
    write(path, "ffv1", [20 + 25 * (k // 5) for k in range(40)])
    return path


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
    closing, ended, close = asyncio.Event(), [], watched_process.DecodeProcess.close

    async def watched_close(each):
        closing.set()
        await close(each)
        ended.append(each)

    monkeypatch.setattr(watched_process.DecodeProcess, "close", watched_close)
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
    monkeypatch.setattr(watched_process, "FILES_PER_PROCESS", 2)
    monkeypatch.setattr(watched_process, "SECONDS_PER_PROCESS", 0)
    async with new_pool() as pool:
        runs = [set((await Received().take(pool, task_of(clip))).pids) for _ in range(4)]
        assert runs[0] == runs[1] != runs[2] == runs[3]
        assert pool.decoded == 4 * 40  # including those of the replaced process
        assert pool.failures == 0
        assert decode_processes() == []
    assert [len(pids) for pids in runs] == [1] * 4


async def test_a_process_that_has_read_many_files_in_no_time_is_kept(clip, monkeypatch):
    monkeypatch.setattr(watched_process, "FILES_PER_PROCESS", 1)
    async with new_pool() as pool:
        first, second = [set((await Received().take(pool, task_of(clip))).pids) for _ in range(2)]
    assert first == second


async def test_the_processes_that_will_read_files_start_while_their_digests_are_computed(clip, stills):
    async with new_pool(workers=3) as pool:
        await pool.digest_file(str(clip), clip.stat().st_size)
        assert len(decode_processes()) == 1  # one file needs no second one
        await asyncio.gather(*(pool.digest_file(str(path), path.stat().st_size) for path in (clip, stills)))
        assert len(decode_processes()) == 2
        received = await Received().take(pool, task_of(clip))
        assert len({*received.pids}) == 2  # none was started for it
    assert decode_processes() == []
