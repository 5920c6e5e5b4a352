"""Audio that comes from decode processes."""

import asyncio
import os
import shutil
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.source import Span
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.decode_pool.audio import DecodedAudioBatch, OpenedAudio, ReadAudio
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.errors import DecoderDied, DecoderStalled, MediaError, NoAudio
from support.decoding import MISBEHAVING, decode_processes, write_levels
from support.patience import PATIENCE

RATE, CHUNK = 1000, 1500
"""Samples per second, and of a chunk. Nothing is resampled, so the samples of a file arrive as they are."""

SLOT_CHUNKS = 2
LEVELS = [100, 200, 300, 400, 500, 600, 0, 0, 0, 700, 800, 900]
"""Levels of the file that most tests read, one for each second: 8 chunks, of which the fifth and sixth are silent."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return write_levels(tmp_path_factory.mktemp("sound") / "clip.wav", LEVELS, RATE)


@pytest.fixture
def misbehaving(clip, tmp_path, monkeypatch):
    """Returns the task of a file over which decode processes do what its name says, from 3 s on."""
    monkeypatch.setenv("PYTHONPATH", MISBEHAVING, prepend=os.pathsep)
    return lambda name: task_of(shutil.copy(clip, tmp_path / name))


def task_of(path: Path) -> AudioTask:
    return AudioTask(str(path), RATE, CHUNK, Cutting(search_seconds=0))


def new_pool() -> DecodePool:
    return DecodePool(1, SLOT_CHUNKS * CHUNK * 2, 1)


class Received:
    """What has come from the pool. Batches are released, and hold copies of their chunks."""

    def __init__(self) -> None:
        self.opened: list[OpenedAudio] = []
        self.batches: list[DecodedAudioBatch] = []

    async def take(self, *arguments, **options) -> "Received":
        """Like `_take`, but a deadlock ends the test."""
        return await asyncio.wait_for(self._take(*arguments, **options), PATIENCE)

    async def _take(self, pool, task, *spans, after_each=lambda batch: None) -> "Received":
        async with aclosing(pool.read(ReadAudio(task, SLOT_CHUNKS), spans or [Span()])) as batches:
            async for batch in batches:
                if isinstance(batch, OpenedAudio):
                    self.opened.append(batch)
                else:
                    self.batches.append(replace(batch, chunks=[chunk.copy() for chunk in batch.chunks]))
                    batch.release()
                    after_each(batch)
        return self

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(batch.first, batch.stop) for batch in self.batches]

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate([chunk for batch in self.batches for chunk in batch.chunks])


async def read_all(task: AudioTask, *spans: Span) -> Received:
    async with new_pool() as pool:
        return await Received().take(pool, task, *spans)


async def test_audio_arrives_in_chunks_and_silence_as_stretches(clip):
    received = await read_all(task_of(clip))
    assert received.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]
    *_, last = received.batches
    assert (last.audible, last.silent) == (
        [(9000, 10500, 9.0, None), (10500, 12000, 10.5, None)],
        [(6000, 7500, 6.0, None), (7500, 9000, 7.5, None)],
    )
    assert [len(chunk) for batch in received.batches for chunk in batch.chunks] == [CHUNK] * 6
    assert np.array_equal(received.samples, np.repeat([level for level in LEVELS if level], RATE))


async def test_the_audio_is_described_first_and_its_length_at_its_end(clip):
    start, end = (await read_all(task_of(clip))).opened
    with Audio(task_of(clip)) as audio:
        assert start == OpenedAudio(audio.info, samples=None, why_incomplete=None, sample_rate=RATE)
        assert end == OpenedAudio(audio.info, samples=12_000, why_incomplete=None, sample_rate=RATE)


async def test_chunks_are_those_of_the_decoder(media):
    task = AudioTask(str(media / "spoken.mp4"), 16_000, 5 * 16_000, Cutting(search_seconds=2), silence_db=None)
    async with DecodePool(1, 2 * task.chunk_samples * 2, 1) as pool:
        received = await Received().take(pool, task)
        assert pool.decoded == pytest.approx(12, abs=0.1)
    with Audio(task) as audio:
        expected = list(audio.chunks())
    assert len(expected) > 2
    assert [where[:3] for batch in received.batches for where in batch.audible] == [chunk[:3] for chunk in expected]
    assert np.array_equal(received.samples, np.concatenate([chunk.samples for chunk in expected]))


async def test_only_what_is_missing_is_read_and_nothing_after_it(clip):
    async with new_pool() as pool:
        received = await Received().take(pool, task_of(clip), Span(1500, 3000), Span(4500, 7500))
        assert pool.decoded < 12
    assert received.bounds == [(1500, 3000), (4500, 7500)]
    assert [opened.samples for opened in received.opened] == [None]  # its end was not read
    whole = np.repeat(LEVELS, RATE)
    assert np.array_equal(received.samples, np.concatenate([whole[1500:3000], whole[4500:6000]]))


async def test_if_nothing_is_missing_before_the_end_there_are_no_batches(clip):
    received = await read_all(task_of(clip), Span(12_000, None))
    assert (received.opened[-1].samples, received.batches) == (12_000, [])


async def test_files_without_audio_or_of_another_kind_have_errors_of_their_own(clip, media, tmp_path):
    (tmp_path / "x.mp4").write_text("text")
    (tmp_path / "x.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nFFmpeg takes this for media\n")
    with av.open(str(tmp_path / "x.srt")) as text, av.open(str(tmp_path / "text.mkv"), "w") as file:
        stream = file.add_stream_from_template(text.streams.subtitles[0])
        for packet in text.demux():
            if packet.size:
                packet.stream = stream
                file.mux(packet)
    async with new_pool() as pool:
        with pytest.raises(NoAudio, match="it has no audio"):
            await Received().take(pool, task_of(media / "old.avi"))
        with pytest.raises(MediaError, match="not a media file"):
            await Received().take(pool, task_of(tmp_path / "x.mp4"))
        with pytest.raises(MediaError, match="expected audio, or at least pictures, got neither"):
            await Received().take(pool, task_of(tmp_path / "text.mkv"))
        with pytest.raises(MediaError, match='the format that FFmpeg calls "srt", which is not read'):
            await Received().take(pool, task_of(tmp_path / "x.srt"))
        received = await Received().take(pool, task_of(clip))
        assert pool.failures == 0
    assert received.bounds[-1] == (6000, 12000)


async def test_a_file_that_is_cut_short_is_reported_at_its_end(clip, tmp_path):
    (tmp_path / "cut.wav").write_bytes(clip.read_bytes()[:-6000])
    received = await read_all(task_of(tmp_path / "cut.wav"))
    assert [opened.why_incomplete for opened in received.opened] == [
        None,
        "cut short: it ends 3.0 s before it says it does",
    ]
    assert received.opened[-1].samples == received.bounds[-1][1] == 9000


async def test_if_a_process_is_killed_another_one_goes_on_with_what_is_missing(clip):
    def kill_after_the_first(batch):
        if batch.first == 0:
            decode_processes()[0].kill()

    async with new_pool() as pool:
        received = await Received().take(
            pool, task_of(clip), Span(0, 4500), Span(6000, None), after_each=kill_after_the_first
        )
        assert pool.failures == 1
    assert received.bounds == [(0, 3000), (3000, 4500), (6000, 12000)]


async def test_a_process_that_is_asked_for_no_spans_only_describes_the_audio(clip):
    command = ReadAudio(task_of(clip), SLOT_CHUNKS)
    async with new_pool() as pool, aclosing(pool.read(command, [])) as batches:
        received = [batch async for batch in batches]
    assert [type(batch) for batch in received] == [OpenedAudio]


@pytest.mark.parametrize("name", ["crash.wav", "fail.wav"])
async def test_a_file_that_a_process_dies_of_once_is_read_by_the_next(misbehaving, name):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving(name))
        assert pool.failures == 1
    assert received.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]


@pytest.mark.parametrize(
    ("name", "reason"), [("crash", "SIGSEGV"), ("fail", "exit status 1 RuntimeError: out of luck")]
)
async def test_a_file_that_every_process_dies_of_is_an_error_with_the_reason(misbehaving, name, reason):
    received = Received()
    async with new_pool() as pool:
        with pytest.raises(DecoderDied, match=rf"ended: {reason}; like 1 before it"):
            await received.take(pool, misbehaving(f"{name}-always.wav"))
        assert pool.failures == 2
        assert decode_processes() == []
    assert received.bounds == [(0, 3000)]  # what came before it is not lost


async def test_a_process_that_hangs_is_killed_and_another_one_goes_on(misbehaving, hanging_takes_no_time):
    async with new_pool() as pool:
        received = await Received().take(pool, misbehaving("hang.wav"))
        assert pool.failures == 1
    assert received.bounds == [(0, 3000), (3000, 6000), (6000, 12000)]


async def test_a_file_that_every_process_hangs_on_is_an_error(misbehaving, hanging_takes_no_time):
    async with new_pool() as pool:
        with pytest.raises(DecoderStalled, match=r"did not get on for 60 s and was ended; like 1 before it"):
            await Received().take(pool, misbehaving("hang-always.wav"))
        assert decode_processes() == []
