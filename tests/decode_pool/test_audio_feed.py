"""The sound of files, as it comes from decode processes."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.source import Span
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.decode_pool.audio_feed import AudioReading, DecodedAudioBatch, OpenedAudio
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.decode_pool.pool import audio_feed as audio_feed
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, NoSound
from support.decoding import MISBEHAVING, STALL_SECONDS, decoders, talk
from support.sounds import wav

RATE, CHUNK = 1000, 1500
"""Samples a second, and of a chunk: nothing is resampled, so the samples of a file arrive as they are."""

SLOT_CHUNKS = 2
LEVELS = [100, 200, 300, 400, 500, 600, 0, 0, 0, 700, 800, 900]
"""Of the sound that most tests read, one for each second: 8 chunks, of which the fifth and the sixth are silent."""


def write_levels(path: Path, levels: Iterable[int]) -> Path:
    """A WAV file that has each level for a second."""
    path.write_bytes(wav(np.repeat(np.array(levels, "<i2"), RATE).tobytes(), rate=RATE))
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_levels(tmp_path_factory.mktemp("sound") / "clip.wav", LEVELS)


@pytest.fixture
def misbehaving(clip, tmp_path, monkeypatch):
    """Gives the task of a file with which decode processes do what its name says, from 3 s on."""
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    return lambda name: task_of(shutil.copy(clip, tmp_path / name))


def task_of(path: Path) -> AudioTask:
    return AudioTask(str(path), RATE, CHUNK, Cutting(search_seconds=0))


def new_pool(*, stall_seconds: float = 60.0) -> DecodePool:
    return DecodePool(1, SLOT_CHUNKS * CHUNK * 2, 1, stall_seconds=stall_seconds)


class Got:
    """What has come of a sound; parts are released, and have copies of their chunks."""

    def __init__(self) -> None:
        self.opened: list[OpenedAudio] = []
        self.parts: list[DecodedAudioBatch] = []

    async def take(self, *arguments, **options) -> "Got":
        """Arguments are those of `_take`; a deadlock is an error here."""
        return await asyncio.wait_for(self._take(*arguments, **options), 60)

    async def _take(self, pool, task, *spans, after_each=lambda part: None) -> "Got":
        async with aclosing(pool.read(AudioReading(task, SLOT_CHUNKS), spans or [Span()])) as parts:
            async for part in parts:
                if isinstance(part, OpenedAudio):
                    self.opened.append(part)
                else:
                    self.parts.append(replace(part, chunks=[chunk.copy() for chunk in part.chunks]))
                    part.release()
                    after_each(part)
        return self

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(part.first, part.stop) for part in self.parts]

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate([chunk for part in self.parts for chunk in part.chunks])


async def read_all(task: AudioTask, *spans: Span) -> Got:
    async with new_pool() as pool:
        return await Got().take(pool, task, *spans)


async def test_sound_arrives_in_chunks_and_silence_is_told(clip):
    got = await read_all(task_of(clip))
    assert got.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]
    *_, last = got.parts
    assert (last.heard, last.silent) == (
        [(9000, 10500, 9.0), (10500, 12000, 10.5)],
        [(6000, 7500, 6.0), (7500, 9000, 7.5)],
    )
    assert [len(chunk) for part in got.parts for chunk in part.chunks] == [CHUNK] * 6
    assert np.array_equal(got.samples, np.repeat([level for level in LEVELS if level], RATE))


async def test_what_the_sound_is_is_told_first_and_how_much_there_was_at_its_end(clip):
    start, end = (await read_all(task_of(clip))).opened
    with Audio(task_of(clip)) as audio:
        assert start == OpenedAudio(audio.info, samples=None, cut=None)
        assert end == OpenedAudio(audio.info, samples=12_000, cut=None)


async def test_chunks_are_those_that_audio_gives(media):
    task = AudioTask(str(media / "spoken.mp4"), 16_000, 5 * 16_000, Cutting(search_seconds=2), silence_db=None)
    async with DecodePool(1, 2 * task.chunk_samples * 2, 1) as pool:
        got = await Got().take(pool, task)
        assert pool.decoded == pytest.approx(12, abs=0.1)
    with Audio(task) as audio:
        expected = list(audio.chunks())
    assert len(expected) > 2
    assert [where for part in got.parts for where in part.heard] == [chunk[:3] for chunk in expected]
    assert np.array_equal(got.samples, np.concatenate([chunk.samples for chunk in expected]))


async def test_only_what_is_missing_is_read_and_nothing_after_it(clip):
    async with new_pool() as pool:
        got = await Got().take(pool, task_of(clip), Span(1500, 3000), Span(4500, 7500))
        assert pool.decoded < 12
    assert got.bounds == [(1500, 3000), (4500, 7500)]
    assert [opened.samples for opened in got.opened] == [None]  # its end was not seen
    whole = np.repeat(LEVELS, RATE)
    assert np.array_equal(got.samples, np.concatenate([whole[1500:3000], whole[4500:6000]]))


async def test_nothing_that_is_missing_at_the_end_is_no_parts(clip):
    got = await read_all(task_of(clip), Span(12_000, None))
    assert (got.opened[-1].samples, got.parts) == (12_000, [])


async def test_files_without_sound_or_of_another_kind_are_told_apart(clip, media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    (tmp_path / "x.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nFFmpeg takes this for media\n")
    async with new_pool() as pool:
        with pytest.raises(NoSound, match="it has no sound"):
            await Got().take(pool, task_of(media / "old.avi"))
        with pytest.raises(MediaError, match="not a media file"):
            await Got().take(pool, task_of(tmp_path / "x.mp4"))
        with pytest.raises(MediaError, match="expected sound, or at least pictures, got neither"):
            await Got().take(pool, task_of(tmp_path / "x.srt"))
        got = await Got().take(pool, task_of(clip))
        assert pool.failures == 0
    assert got.bounds[-1] == (6000, 12000)


async def test_a_file_that_is_cut_says_so_at_its_end(clip, tmp_path):
    (tmp_path / "cut.wav").write_bytes(clip.read_bytes()[:-6000])
    got = await read_all(task_of(tmp_path / "cut.wav"))
    assert [opened.cut for opened in got.opened] == [None, "cut short: it ends 3.0 s before it says it does"]
    assert got.opened[-1].samples == got.bounds[-1][1] == 9000


async def test_if_a_process_is_killed_another_one_goes_on_with_what_is_missing(clip):
    def kill_after_the_first(part):
        if part.first == 0:
            decoders()[0].kill()

    async with new_pool() as pool:
        got = await Got().take(pool, task_of(clip), Span(0, 4500), Span(6000, None), after_each=kill_after_the_first)
        assert pool.failures == 1
    assert got.bounds == [(0, 3000), (3000, 4500), (6000, 12000)]


async def test_if_it_dies_when_it_has_given_all_that_was_missing_another_one_reads_nothing(clip):
    reading = AudioReading(task_of(clip), SLOT_CHUNKS)
    async with new_pool() as pool, aclosing(pool.read(reading, [])) as parts:
        got = [part async for part in parts]
    assert [type(part) for part in got] == [OpenedAudio]


@pytest.mark.parametrize("name", ["crash.wav", "fail.wav"])
async def test_what_a_process_dies_of_once_is_read_by_the_next(misbehaving, name):
    async with new_pool() as pool:
        got = await Got().take(pool, misbehaving(name))
        assert pool.failures == 1
    assert got.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]


@pytest.mark.parametrize(
    ("name", "reason"), [("crash", "SIGSEGV"), ("fail", "exit status 1 RuntimeError: out of luck")]
)
async def test_a_file_that_no_process_survives_says_what_they_died_of(misbehaving, name, reason):
    got = Got()
    async with new_pool() as pool:
        with pytest.raises(DecoderDied, match=rf"ended: {reason}; like 1 before it"):
            await got.take(pool, misbehaving(f"{name}-always.wav"))
        assert pool.failures == 2
        assert decoders() == []
    assert got.bounds == [(0, 3000)]  # what came before it is not lost


async def test_a_process_that_hangs_is_ended_and_another_one_goes_on(misbehaving):
    async with new_pool(stall_seconds=STALL_SECONDS) as pool:
        got = await Got().take(pool, misbehaving("hang.wav"))
        assert pool.failures == 1
    assert got.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]


async def test_a_file_that_every_process_hangs_on_says_so(misbehaving):
    async with new_pool(stall_seconds=STALL_SECONDS) as pool:
        with pytest.raises(DecoderStalled, match=r"did not get on for 3 s and was ended; like 1 before it"):
            await Got().take(pool, misbehaving("hang-always.wav"))
        assert decoders() == []


def parts_of(path: Path, *spans: dict, chunks_per_batch: int) -> list[dict]:
    """What a process says of a file; in place of the slot's number are the levels of the chunks in it."""
    sound = {"task": task_of(path).to_json(), "spans": spans or ({},), "chunks_per_batch": chunks_per_batch}
    slot_bytes = chunks_per_batch * CHUNK * 2
    answers, memory = talk({"sound": sound}, slot_bytes=slot_bytes, slots=40)
    assert "end" in answers[-1]
    parts = [answer["part"] for answer in answers if "part" in answer]
    for part in parts:
        assert (part["slot"] is None) == (not part["heard"])
        lengths = [stop - first for first, stop, _ in part["heard"]]
        samples = np.frombuffer(memory, np.int16, sum(lengths), slot_bytes * (part["slot"] or 0))
        part["slot"] = [samples[at:end].tolist() for at, end in pairwise(accumulate(lengths, initial=0))]
    return parts


def files_of(levels: list[int]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield write_levels(Path(folder) / "levels.wav", levels)


SECONDS = st.lists(st.sampled_from([0, 0, 0, 100, 200]), min_size=1, max_size=20)


@settings(max_examples=30)
@given(SECONDS, st.integers(1, 3))
def test_parts_account_for_every_sample_once(levels, chunks_per_batch):
    whole = np.repeat(levels, RATE)
    for path in files_of(levels):
        parts = parts_of(path, chunks_per_batch=chunks_per_batch)
    bounds = [0, *(part["stop"] for part in parts)]
    assert [(part["first"], part["stop"]) for part in parts] == list(pairwise(bounds))
    assert bounds[-1] == len(whole)
    for part in parts:
        assert len(part["heard"]) <= chunks_per_batch
        stretches = sorted([*part["heard"], *part["silent"]])
        assert [first for first, _, _ in stretches] == [part["first"], *(stop for _, stop, _ in stretches[:-1])]
        assert [start for _, _, start in stretches] == [first / RATE for first, _, _ in stretches]
        assert part["slot"] == [whole[first:stop].tolist() for first, stop, _ in part["heard"]]
        assert not any(whole[first:stop].any() for first, stop, _ in part["silent"])


@settings(max_examples=30)
@given(SECONDS, st.integers(1, 3), st.data())
def test_whatever_parts_are_missing_they_come_as_in_one_go(levels, chunks_per_batch, data):
    for path in files_of(levels):
        whole = parts_of(path, chunks_per_batch=chunks_per_batch)
        missing = data.draw(st.lists(st.sampled_from(whole), unique_by=lambda part: part["first"], min_size=1))
        missing.sort(key=lambda part: part["first"])
        spans = [{"first": part["first"], "stop": part["stop"]} for part in missing]
        assert parts_of(path, *spans, chunks_per_batch=chunks_per_batch) == missing
        rest = [part for part in whole if part["first"] >= missing[0]["first"]]
        assert parts_of(path, {"first": rest[0]["first"]}, chunks_per_batch=chunks_per_batch) == rest


def test_silence_of_hours_comes_in_pieces_that_need_no_slot(tmp_path, monkeypatch):
    monkeypatch.setattr(audio_feed, "MOST_SILENT", 2)
    path = write_levels(tmp_path / "silence.wav", [0] * 7 + [100] * 2)
    parts = parts_of(path, chunks_per_batch=2)
    assert [(part["first"], part["stop"], len(part["silent"]), len(part["slot"])) for part in parts] == [
        (0, 3000, 2, 0),
        (3000, 6000, 2, 0),
        (6000, 9000, 0, 2),
    ]
