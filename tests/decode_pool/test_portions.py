"""A long video that several decode processes read: its portions, and what happens when a process dies of one."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span, after, before_entry_point, join
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool import frames as frame_commands
from reelscribe.decode_pool.frames import DecodedFrameBatch, OpenedVideo, ReadFrames
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.watched_process import DecodeProcess
from reelscribe.errors import DecoderDied, StartupError
from support.decoding import decode_processes
from support.patience import PATIENCE
from support.videos import write_pictures

SIZE = InputSize(64, 48)
FRAMES, GROUP = 120, 10


@pytest.fixture(scope="module")
def long_video(tmp_path_factory) -> Path:
    """A video of 120 frames that all differ, with a keyframe every 10."""
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    pictures = [noise[k : k + 96, 2 * k : 2 * k + 160].copy() for k in range(FRAMES)]
    write_pictures(path, "libx264", pictures, options={"g": str(GROUP), "bf": "2"})
    return path


@pytest.fixture(autouse=True)
def every_entry_point(monkeypatch):
    """Divide videos at every entry point, however short the portions are."""
    monkeypatch.setattr(frame_commands, "PORTION_SECONDS", 1e-9)


class Reading:
    """The batches of a video as they come, released, with copies of their frames."""

    def __init__(
        self, pool: DecodePool, path: Path, *spans: Span, reuse: bool = False, deinterlace: bool = False
    ) -> None:
        command = ReadFrames(VideoTask(str(path), SIZE, deinterlace=deinterlace), 4, reuse)
        self.begun = asyncio.Event()
        self._items = pool.read(command, spans or [Span()], self.begun.set)
        self.opened: list[OpenedVideo] = []
        self.ordinals: list[int] = []
        self.frames: dict[int, bytes] = {}

    async def take(self, most: int = 1000) -> "Reading":
        """Take so many batches, or all that are left."""
        async with asyncio.timeout(PATIENCE):
            while most and (item := await anext(self._items, None)):
                if isinstance(item, OpenedVideo):
                    self.opened.append(item)
                    continue
                assert isinstance(item, DecodedFrameBatch)
                self.ordinals += range(item.first, item.stop)
                frames = (frame.tobytes() for frame in item.frames)
                self.frames.update(zip(item.frame_indices, frames, strict=True))
                item.release()
                most -= 1
        return self

    async def close(self) -> None:
        await self._items.aclose()


def new_pool(workers: int) -> DecodePool:
    return DecodePool(workers, 4 * SIZE.nbytes, 1)


async def read(workers: int, path: Path, *spans: Span, reuse: bool = False) -> Reading:
    async with new_pool(workers) as pool:
        return await Reading(pool, path, *spans, reuse=reuse).take()


@pytest.mark.parametrize("workers", [2, 3, 5])
async def test_several_processes_read_each_frame_once_and_as_one_does(long_video, workers):
    alone = await read(1, long_video)
    assert alone.ordinals == list(range(FRAMES))
    async with new_pool(workers) as pool:
        reading = await Reading(pool, long_video).take()
        assert len(decode_processes()) == workers
        assert pool.decoded >= FRAMES
        assert [len(opened.entry_points) for opened in reading.opened] == [FRAMES // GROUP - 1]
        again = await Reading(pool, long_video).take()  # the processes have closed the file, and all slots are free
    assert sorted(reading.ordinals) == sorted(again.ordinals) == alone.ordinals
    assert reading.frames == again.frames == alone.frames


async def test_several_processes_deinterlace_as_one_does(tmp_path):
    path = tmp_path / "interlaced.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (96, 400, 3), np.uint8)
    pictures = [noise[:, k : k + 160].copy() for k in range(FRAMES)]
    write_pictures(path, "libx264", pictures, options={"x264-params": f"tff=1:keyint={GROUP}:scenecut=0"})
    readings = []
    for workers in (1, 3):
        async with new_pool(workers) as pool:
            readings.append(await Reading(pool, path, deinterlace=True).take())
    alone, together = readings
    assert [len(opened.entry_points) for opened in together.opened] == [FRAMES // GROUP - 1]
    assert together.frames == alone.frames
    assert together.frames != (await read(1, path)).frames


async def test_only_what_is_missing_is_read(long_video):
    spans = Span(3, 6), Span(8, 45), Span(47, 48), Span(101, None)
    reading = await read(3, long_video, *spans)
    assert sorted(reading.ordinals) == [*range(3, 6), *range(8, 45), 47, *range(101, FRAMES)]
    alone = await read(1, long_video)
    assert reading.frames == {ordinal: alone.frames[ordinal] for ordinal in reading.ordinals}


async def test_with_reuse_one_process_reads_all_in_order(long_video):
    async with new_pool(3) as pool:
        reading = await Reading(pool, long_video, reuse=True).take()
        assert len(decode_processes()) == 1
    assert reading.ordinals == list(range(FRAMES))


async def test_a_process_that_dies_costs_its_portion_one_attempt(long_video):
    alone = await read(1, long_video)
    async with new_pool(3) as pool:
        reading = await Reading(pool, long_video).take(3)
        for process in decode_processes()[:2]:
            process.kill()
        await reading.take()
        assert pool.failures == 2
    assert sorted(reading.ordinals) == alone.ordinals


async def test_a_source_that_processes_die_of_is_given_up_after_two(long_video):
    async with new_pool(5) as pool:
        reading = Reading(pool, long_video)
        with pytest.raises(DecoderDied, match="SIGKILL; like 1 before it"):
            while True:
                await reading.take(1)
                for process in decode_processes():
                    process.kill()
        again = await Reading(pool, long_video).take()  # the pool goes on
    assert sorted(again.ordinals) == list(range(FRAMES))


async def test_processes_that_die_together_are_one_attempt(long_video):
    async with new_pool(4) as pool:
        reading = await Reading(pool, long_video).take(8)
        for process in decode_processes():
            process.kill()
        await reading.take()
        assert pool.failures >= 3
    assert sorted(reading.ordinals) == list(range(FRAMES))


async def test_a_process_that_cannot_be_started_to_help_ends_nothing(long_video, monkeypatch, caplog):
    async def no_more(*_):
        raise StartupError("a decode process cannot be started: Resource temporarily unavailable")

    async with new_pool(3) as pool:
        monkeypatch.setattr(DecodeProcess, "start", no_more)
        reading = await Reading(pool, long_video).take()
    assert sorted(reading.ordinals) == list(range(FRAMES))
    assert "cannot be started: Resource temporarily unavailable; fewer processes read what is left" in caplog.text


@pytest.mark.parametrize("damages", [1, 20])
async def test_damaged_portions_are_read_as_one_process_reads_them(long_video, tmp_path, damages):
    chance, content = random.Random(0), bytearray(long_video.read_bytes())
    for _ in range(damages):
        content[chance.randrange(len(content) // 4, len(content) * 9 // 10)] ^= 0xFF
    (tmp_path / "damaged.mp4").write_bytes(content)
    alone = await read(1, tmp_path / "damaged.mp4")
    assert alone.frames != (await read(1, long_video)).frames
    async with new_pool(3) as pool:
        readings = await asyncio.gather(*(Reading(pool, tmp_path / "damaged.mp4").take() for _ in range(5)))
    for reading in readings:
        assert reading.opened[0].entry_points
        assert reading.frames == alone.frames
        assert sorted(reading.ordinals) == alone.ordinals


async def test_another_source_comes_before_the_portions_of_the_first(long_video, tmp_path, monkeypatch):
    (tmp_path / "other.mp4").write_bytes(long_video.read_bytes())
    commands, read = list[tuple[DecodeProcess, str]](), DecodeProcess.read

    def noted(process, command, spans):
        commands.append((process, Path(command.task.path).name))
        return read(process, command, spans)

    async with new_pool(2) as pool:
        await Reading(pool, long_video).take()  # both processes have been started
        monkeypatch.setattr(DecodeProcess, "read", noted)
        first, second = Reading(pool, long_video), Reading(pool, tmp_path / "other.mp4")
        await first.take(4)
        other = asyncio.create_task(second.take())
        await first.take(1)
        waits_since = len(commands)
        await asyncio.gather(first.take(), other)
    later = commands[waits_since:]
    helped = [name for process, name in later if process is not commands[0][0]]
    assert helped[:1] != [long_video.name]  # a process that has read a portion turns to what waits
    assert sorted(first.ordinals) == sorted(second.ordinals) == list(range(FRAMES))


async def test_reading_that_is_given_up_takes_no_slot_with_it(long_video):
    async with new_pool(3) as pool:
        for _ in range(3):
            reading = await Reading(pool, long_video).take(4)
            await reading.close()
        assert sorted((await Reading(pool, long_video).take()).ordinals) == list(range(FRAMES))


async def test_after_stop_all_portions_end(long_video):
    async with new_pool(3) as pool:
        reading = await Reading(pool, long_video).take(4)
        pool.stop()
        with pytest.raises(DecoderDied):
            await reading.take()
        assert decode_processes() == []
        assert pool.failures == 0


NUMBERS = st.sets(st.integers(0, 60)).map(sorted)


def spans_of(numbers: list[int], endless: bool) -> list[Span]:
    """The spans of these numbers, with one more that has no end if wanted."""
    spans = join([Span(number, number + 1) for number in numbers], [])
    return [*spans, Span(70)] if endless else spans


def numbers_of(spans: list[Span]) -> list[int]:
    return [number for span in spans for number in range(span.first, 80 if span.stop is None else span.stop)]


@given(NUMBERS, st.booleans(), NUMBERS)
def test_portions_together_are_the_whole(numbers, endless, entry_points):
    left, portions = spans_of(numbers, endless), []
    while left:
        portion, left = before_entry_point(left, entry_points)
        assert len({sum(entry <= number for entry in entry_points) for number in numbers_of(portion)}) == 1
        portions.append(portion)
    assert numbers_of([span for portion in portions for span in portion]) == numbers_of(spans_of(numbers, endless))


@given(NUMBERS, NUMBERS)
def test_what_is_put_back_joins_what_is_left(some, others):
    others = [number for number in others if number not in some]
    joined = join(spans_of(some, endless=False), spans_of(others, endless=True))
    assert joined == spans_of(sorted(some + others), endless=True)


@given(NUMBERS, st.booleans(), st.integers(0, 75))
def test_what_has_been_read_is_not_left(numbers, endless, stop):
    spans = spans_of(numbers, endless)
    assert numbers_of(after(spans, stop, None)) == [number for number in numbers_of(spans) if number >= stop]
