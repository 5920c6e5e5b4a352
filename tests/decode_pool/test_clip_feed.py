"""Batches of clips, as a decode process makes them and its parent reads them."""

import asyncio
import json
import os
import shutil
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe._files import OpenSource
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Section, Span, VideoInfo
from reelscribe.decode.clips import ChosenClip, ClipCutting, ClipTask, ClipVideo, ReadClip
from reelscribe.decode_pool import clips as child_clips
from reelscribe.decode_pool.clips import DecodedClipBatch, OpenedClips, ReadClips
from reelscribe.decode_pool.commands import Slots
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import DecoderDied, MediaError
from support.decoding import MISBEHAVING, decode_processes, run_worker
from support.patience import PATIENCE
from support.videos import write
from synthetic.video_files import write_video

BUDGET = ClipBudget(16, min_pixels=16 * 16, max_pixels=32 * 16, total_pixels=8 * 32 * 16, whole_clip=True)
SLOT_BYTES, SLOTS = 4 * 32 * 16 * 3, 64
"""A slot holds four frames of 32 x 16 pixels."""


class GreyClips:
    """Stands for `ClipVideo`: the path lists the number of frames, width, height and grey level of each clip.

    None stands for a clip that cannot be decoded, and "end" for the place where the file cannot be read on.
    """

    def __init__(self, task: ClipTask, heartbeat: object) -> None:
        self._listed = json.loads(task.path)
        self.file = OpenSource(__file__)  # which does not change
        self.clips = [Section(k, k + 1, float(k), k + 1.0) for k in range(len(self._listed))]
        self.info = VideoInfo(1.0, 32, 16, 0, 1.0, len(self.clips), 10.0, 0.0, 1.0, "grey", None)
        self.decoded = self.count = len(self.clips)
        self.shots, self.why_incomplete = self.clips, None

    def __enter__(self) -> "GreyClips":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.__exit__(None, None, None)

    def read(self, spans: list[Span]):
        for ordinal in (
            k for k in range(len(self.clips)) if any(k in range(len(self.clips))[s.first : s.stop] for s in spans)
        ):
            if self._listed[ordinal] == "end":
                raise MediaError("no more")
            count, width, height, level = self._listed[ordinal] or (0, 16, 16, 0)
            indices = [10 * ordinal + k for k in range(count)]
            chosen = ChosenClip(ordinal, self.clips[ordinal], indices, InputSize(width, height))
            images = [np.full((height, width, 3), level, np.uint8)] * count
            yield ReadClip(chosen, indices, [index / 100 for index in indices], images)


def batches_of(listed: list, *spans: Span, clips_per_batch: int = 8) -> list[DecodedClipBatch]:
    """The batches of `GreyClips`, as the parent reads them, with the slots that hold their frames."""
    command = ReadClips(ClipTask(json.dumps(listed), BUDGET), clips_per_batch)
    with patch.object(child_clips, "ClipVideo", GreyClips):
        replies, memory = run_worker(command.to_json(spans or [Span()]), slot_bytes=SLOT_BYTES, slots=SLOTS)
    slots = Slots(SLOTS, SLOT_BYTES)
    slots.array(0, (SLOTS * SLOT_BYTES,), np.uint8)[:] = np.frombuffer(memory, np.uint8)
    slots.close()
    opened = command.parse_opened(replies[0]["opened"])
    assert (opened.clips, len(opened.shots)) == (len(listed), len(listed))
    return [command.parse_batch(reply["batch"], opened, slots) for reply in replies if "batch" in reply]


def outline(batch: DecodedClipBatch) -> tuple:
    """A batch without its slot, with the level of each of its clips."""
    levels = [frames[0, 0, 0, 0] for frames in batch.frames]
    return batch.first, batch.stop, batch.clips, batch.undecodable, levels


CLIP = st.tuples(st.integers(1, 4), st.sampled_from([16, 32]), st.sampled_from([8, 16]), st.integers(1, 255))
CLIPS = st.lists(st.none() | CLIP, max_size=20)


@given(CLIPS, st.integers(1, 8))
def test_batches_account_for_every_clip_once(listed, clips_per_batch):
    batches = batches_of(listed, clips_per_batch=clips_per_batch)
    assert [ordinal for batch in batches for ordinal in range(batch.first, batch.stop)] == [*range(len(listed))]
    for batch in batches:
        assert len(batch.clips) <= clips_per_batch
        assert batch.nbytes <= SLOT_BYTES
        assert (batch.slot is None) == (not batch.clips)
        ordinals = range(batch.first, batch.stop)
        assert [clip.span.start_frame for clip in batch.clips] == [k for k in ordinals if listed[k]]
        assert [span.start_frame for span in batch.undecodable] == [k for k in ordinals if not listed[k]]
        for clip, frames in zip(batch.clips, batch.frames, strict=True):
            count, width, height, level = listed[clip.span.start_frame]
            assert clip.shape == frames.shape == (count, height, width, 3)
            assert (frames == level).all()
            assert clip.frame_indices == [10 * clip.span.start_frame + k for k in range(count)]
            assert clip.pts_seconds == [index / 100 for index in clip.frame_indices]


@given(CLIPS, st.integers(1, 8))
def test_a_batch_ends_only_where_the_next_clip_has_no_room(listed, clips_per_batch):
    for batch, after in pairwise(batches_of(listed, clips_per_batch=clips_per_batch)):
        first = next(iter(after.frames), np.empty(0, np.uint8))
        assert len(batch.clips) == clips_per_batch or batch.nbytes + first.nbytes > SLOT_BYTES


@given(CLIPS, st.integers(1, 8))
def test_batches_that_are_missing_come_as_they_would_in_one_go(listed, clips_per_batch):
    def outlines(*spans: Span) -> list[tuple]:
        return [outline(batch) for batch in batches_of(listed, *spans, clips_per_batch=clips_per_batch)]

    whole = outlines()
    spans = [Span(first, stop) for first, stop, *_ in whole]
    assert outlines(*spans) == whole
    assert outlines(*spans[1::2], Span(len(listed))) == whole[1::2]
    middle = len(whole) // 2
    assert outlines(Span(spans[middle].first if spans else 0)) == whole[middle:]


def test_clips_of_different_sizes_in_one_batch_are_views_of_their_own_bytes():
    (batch,) = batches_of([(1, 32, 16, 10), (2, 16, 8, 20), None, (1, 16, 16, 30)])
    assert [frames.shape for frames in batch.frames] == [(1, 16, 32, 3), (2, 8, 16, 3), (1, 16, 16, 3)]
    slot = batch.slots.array(batch.slot, (SLOT_BYTES,), np.uint8)
    slot[: batch.nbytes] += 1
    assert [np.unique(frames).tolist() for frames in batch.frames] == [[11], [21], [31]]


def test_a_small_batch_is_copied_so_that_its_slot_is_free():
    (batch,) = batches_of([(1, 16, 16, 10), (1, 16, 8, 20)])
    copied = batch.copy_if_small()
    batch.slots.array(batch.slot, (SLOT_BYTES,), np.uint8)[:] = 0
    assert copied.slot is None
    assert outline(copied)[4] == [10, 20]


def test_clips_that_cannot_be_decoded_come_in_a_batch_without_a_slot():
    (batch,) = batches_of([None, None])
    assert (batch.first, batch.stop, batch.slot, batch.clips, batch.frames) == (0, 2, None, [], [])
    assert [span.start_frame for span in batch.undecodable] == [0, 1]


def test_clips_before_the_end_of_what_can_be_read_are_sent():
    (batch,) = batches_of([(1, 16, 16, 10), None, "end", (1, 16, 16, 20)])
    assert (batch.first, batch.stop, outline(batch)[4]) == (0, 2, [10])


def task_of(path: Path) -> ClipTask:
    return ClipTask(str(path), BUDGET, ClipCutting("windows", min_seconds=0, window_seconds=0.4))


async def read(task: ClipTask, *spans: Span) -> tuple[OpenedClips, list[DecodedClipBatch], int]:
    """Read clips in a decode process: what was opened, copies of the batches, and how many processes died."""
    opened, batches, slot_bytes = None, [], 2 * BUDGET.most_bytes(task.cutting.longest_seconds)
    async with asyncio.timeout(PATIENCE), DecodePool(1, slot_bytes, 1) as pool:
        async with aclosing(pool.read(ReadClips(task, 4), spans or [Span()])) as items:
            async for item in items:
                if isinstance(item, DecodedClipBatch):
                    batches.append(replace(item, frames=[frames.copy() for frames in item.frames], slot=None))
                    item.release()
                else:
                    opened = item
        return opened, batches, pool.failures


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """A video of 10 s whose frames differ."""
    path = tmp_path_factory.mktemp("clips") / "video.mkv"
    write(path, "ffv1", [20 + 47 * k % 200 for k in range(100)])
    return path


async def test_clips_arrive_as_the_video_gives_them(video):
    opened, batches, _ = await read(task_of(video))
    with ClipVideo(task_of(video)) as expected:
        clips = list(expected.read([Span()]))
        assert (opened.info, opened.clips, opened.shots) == (expected.info, 25, None)
    assert [ordinal for batch in batches for ordinal in range(batch.first, batch.stop)] == [*range(25)]
    sent = [clip for batch in batches for clip in batch.clips]
    assert [clip.span for clip in sent] == [clip.clip.span for clip in clips]
    assert [clip.pts_seconds for clip in sent] == [clip.pts_seconds for clip in clips]
    for frames, clip in zip((frames for batch in batches for frames in batch.frames), clips, strict=True):
        assert np.array_equal(frames, clip.images)


async def test_only_clips_that_are_missing_are_read(video):
    _, batches, _ = await read(task_of(video), Span(1, 3), Span(24, None))
    assert [(batch.first, batch.stop) for batch in batches] == [(1, 3), (24, 25)]


async def test_when_a_process_dies_another_one_reads_the_rest(video, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    _, whole, _ = await read(task_of(video))
    _, batches, died = await read(task_of(shutil.copy(video, tmp_path / "crash.mkv")))
    assert died == 1
    sent, expected = ([clip for batch in each for clip in batch.clips] for each in (batches, whole))
    assert sent == expected
    with pytest.raises(DecoderDied, match="SIGSEGV; like 1 before it"):
        await read(task_of(shutil.copy(video, tmp_path / "crash-always.mkv")))


async def test_a_decode_process_frees_the_memory_of_each_file(tmp_path):
    path = tmp_path / "large.mp4"
    write_video(path, 1280, 720, 40)
    command = ReadClips(ClipTask(str(path), BUDGET, ClipCutting()), 4)
    sizes = []
    async with asyncio.timeout(PATIENCE), DecodePool(1, 8 * SLOT_BYTES, 1) as pool:
        for _ in range(8):
            async with aclosing(pool.read(command, [Span()])) as items:
                async for item in items:
                    if isinstance(item, DecodedClipBatch):
                        item.release()
            await pool.digest_file(str(path), 1)  # which it does after it has freed the memory
            (process,) = decode_processes()
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[1] < 30e6  # it keeps 20 MB of each file otherwise
