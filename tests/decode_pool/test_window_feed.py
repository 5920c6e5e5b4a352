"""Batches of windows, as a decode process makes them and its parent reads them."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from reelscribe.contract.frames import InputSize
from reelscribe.contract.shots import Windowing
from reelscribe.contract.source import Span
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.windows import DecodedWindowBatch, ReadWindows
from support.patience import PATIENCE
from support.videos import write, write_pictures

WINDOWING = Windowing(width=64, height=48, frames=10, context=2)
"""Windows of which the middle six frames count."""


def levels_of(count: int) -> list[int]:
    """A grey level for each frame, 7 apart, so that no codec mixes them up."""
    return [20 + 7 * (k % 30) for k in range(count)]


@pytest.fixture
def video(tmp_path) -> Path:
    """A video of 20 frames."""
    write(tmp_path / "video.mkv", "ffv1", levels_of(20))
    return tmp_path / "video.mkv"


async def read(path: Path, *spans: Span, most: int = 2, room: int = 9) -> list[tuple[DecodedWindowBatch, np.ndarray]]:
    """The batches of a video, which are released, each with a copy of its windows; a slot has room for so many."""
    task = VideoTask(str(path), InputSize(WINDOWING.width, WINDOWING.height))
    batches = []
    async with (
        asyncio.timeout(PATIENCE),
        DecodePool(1, room * WINDOWING.nbytes, 1) as pool,
        aclosing(pool.read(ReadWindows(task, WINDOWING, most), spans or [Span()])) as items,
    ):
        async for item in items:
            if isinstance(item, DecodedWindowBatch):
                batches.append((item, item.windows.copy()))
                item.release()
    return batches


def numbers(windows: np.ndarray) -> list[list[int]]:
    """The number of each frame of each window, by its level."""
    return [[round((frame.mean() - 20) / 7) for frame in window] for window in windows]


async def test_batches_hold_every_frame_in_the_middle_of_a_window(video):
    batches = await read(video)
    assert [(batch.first, batch.stop) for batch, _ in batches] == [(0, 12), (12, 20)]
    assert [numbers(windows) for _, windows in batches] == [
        [[0, 0, 0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]],
        [[10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [16, 17, 18, 19, 19, 19, 19, 19, 19, 19]],
    ]
    edges = [k / 10 for k in range(21)]
    assert [batch.edges for batch, _ in batches] == [edges[:13], edges[12:]]


async def test_a_span_has_the_windows_that_the_whole_video_has(video):
    whole = np.concatenate([windows for _, windows in await read(video)])
    ((batch, windows),) = await read(video, Span(6, 18))
    assert (batch.first, batch.stop) == (6, 18)
    assert np.array_equal(windows, whole[1:3])


async def test_batches_are_as_full_as_they_may_be(video):
    assert [(batch.first, batch.stop) for batch, _ in await read(video, most=1)] == [
        (0, 6),
        (6, 12),
        (12, 18),
        (18, 20),
    ]
    assert [(batch.first, batch.stop) for batch, _ in await read(video, most=9)] == [(0, 20)]


async def test_a_batch_has_no_more_windows_than_its_slot_has_room_for(video):
    batches = await read(video, most=4, room=2)
    assert [(batch.first, batch.stop, len(windows)) for batch, windows in batches] == [(0, 12, 2), (12, 20, 2)]


async def test_a_video_shorter_than_a_window_is_one(tmp_path):
    write(tmp_path / "one.mkv", "ffv1", levels_of(1))
    ((batch, windows),) = await read(tmp_path / "one.mkv")
    assert (batch.first, batch.stop, batch.edges, numbers(windows)) == (0, 1, [0.0, 0.1], [[0] * 10])


async def test_frames_that_cannot_be_decoded_look_like_those_beside_them(tmp_path):
    path = tmp_path / "damaged.mov"
    pictures = (np.full((48, 64, 3), level, np.uint8) for level in levels_of(12))
    write_pictures(path, "png", pictures, pix_fmt="rgb24")
    parts = path.read_bytes().split(b"\x89PNG")
    lost = {0, 1, 5}
    path.write_bytes(
        parts[0] + b"".join((bytes(4) if k in lost else b"\x89PNG") + part for k, part in enumerate(parts[1:]))
    )
    ((batch, windows),) = await read(path)
    assert batch.undecodable == [0, 1, 5]
    assert numbers(windows) == [[2, 2, 2, 2, 2, 3, 4, 4, 6, 7], [4, 4, 6, 7, 8, 9, 10, 11, 11, 11]]
