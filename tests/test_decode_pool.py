import os
import signal

import numpy as np
import pytest

from reelscribe.decode_pool import SLOTS, DecodedFrames, DecodePool
from reelscribe.errors import DecoderDied, MediaError
from reelscribe.media import FrameSize, VideoInfo
from reelscribe.video import Video, VideoTask
from videos import read

SIZE = FrameSize(64, 64)


async def decode_all(decoder, task):
    info, rows = None, []
    async for part in decoder.decode(task):
        if isinstance(part, VideoInfo):
            info = part
        elif isinstance(part, DecodedFrames):
            rows += [*zip(part.frame_indices, part.pts_seconds, part.frames.copy(), strict=True)]
            part.release()
    return info, rows


async def test_frames_arrive_as_the_reader_gives_them(media):
    task = VideoTask(str(media / "old.avi"), SIZE, every=4)
    async with DecodePool(1, 5 * SIZE.nbytes) as pool, pool.decoder() as decoder:
        info, rows = await decode_all(decoder, task)
    with Video(task) as video:
        assert info == video.info
        for got, expected in zip(rows, video.frames(), strict=True):
            assert got[:2] == expected[:2]
            assert np.array_equal(got[2], expected[2])


async def test_a_slot_keeps_its_frames_until_it_is_released(media):
    task = VideoTask(str(media / "old.avi"), SIZE)
    async with DecodePool(1, 5 * SIZE.nbytes) as pool, pool.decoder() as decoder:
        held: list[DecodedFrames] = []
        async for part in decoder.decode(task):
            if isinstance(part, DecodedFrames):
                held.append(part)
            if len(held) == SLOTS:
                break
        expected = [frame for _, _, frame in read(media / "old.avi", SIZE)][: 5 * SLOTS]
        assert np.array_equal(np.concatenate([part.frames for part in held]), expected)


async def test_a_process_reads_one_file_after_the_other_and_bad_ones_do_not_end_it(media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    async with DecodePool(1, 8 * SIZE.nbytes) as pool:
        with pytest.raises(MediaError, match="not a media file"):
            async with pool.decoder() as first:
                await decode_all(first, VideoTask(str(tmp_path / "x.mp4"), SIZE))
        async with pool.decoder() as second:
            _, rows = await decode_all(second, VideoTask(str(media / "old.avi"), SIZE))
        assert second is first
        assert len(rows) == 90


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_process_that_dies_costs_its_file_and_is_replaced(media, sig):
    task = VideoTask(str(media / "old.avi"), SIZE)
    async with DecodePool(1, 5 * SIZE.nbytes) as pool:
        with pytest.raises(DecoderDied, match=rf"old.avi.*{sig.name}"):
            async with pool.decoder() as first:
                async for part in first.decode(task):
                    if isinstance(part, VideoInfo):
                        os.kill(first.pid, sig)
        async with pool.decoder() as second:
            _, rows = await decode_all(second, task)
        assert second is not first
        assert len(rows) == 90


async def test_an_idle_process_that_dies_costs_no_file(media):
    task = VideoTask(str(media / "old.avi"), SIZE)
    async with DecodePool(1, 5 * SIZE.nbytes) as pool:
        async with pool.decoder() as first:
            await decode_all(first, task)
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        async with pool.decoder() as second:
            _, rows = await decode_all(second, task)
        assert len(rows) == 90


async def test_no_process_is_left(media):
    async with DecodePool(2, 5 * SIZE.nbytes) as pool, pool.decoder() as a, pool.decoder() as b:
        pids = [a.pid, b.pid]
        async for _ in a.decode(VideoTask(str(media / "old.avi"), SIZE)):
            break  # in the middle of a file
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
