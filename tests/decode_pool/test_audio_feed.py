"""Batches of audio, as a decode process makes them; here it runs in the test's own process."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reelscribe.contract.chunking import Cutting
from reelscribe.contract.source import Span
from reelscribe.decode.audio import AudioTask
from reelscribe.decode_pool import audio
from reelscribe.decode_pool.audio import ReadAudio
from support.audio import wav
from support.decoding import run_worker, write_levels

RATE, CHUNK = 1000, 1500
"""Samples per second, and of a chunk. Nothing is resampled, so the samples of a file arrive as they are."""


def batches_of(path: Path, *spans: Span, chunks_per_batch: int) -> list[dict]:
    """The batches of a file, with the samples of each chunk in place of the slot."""
    task = AudioTask(str(path), RATE, CHUNK, Cutting(search_seconds=0), channels="separate")
    command = ReadAudio(task, chunks_per_batch).to_json(spans or [Span()])
    slot_bytes = chunks_per_batch * CHUNK * 2
    replies, memory = run_worker(command, slot_bytes=slot_bytes, slots=40)
    assert "end" in replies[-1]
    batches = [reply["batch"] for reply in replies if "batch" in reply]
    for batch in batches:
        assert (batch["slot"] is None) == (not batch["audible"])
        lengths = [stop - first for first, stop, *_ in batch["audible"]]
        samples = np.frombuffer(memory, np.int16, sum(lengths), slot_bytes * (batch["slot"] or 0))
        batch["slot"] = [samples[begin:end].tolist() for begin, end in pairwise(accumulate(lengths, initial=0))]
    return batches


@contextmanager
def file_of(*channels: list[int]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        samples = np.repeat(np.array(channels, "<i2"), RATE, axis=1)
        path = Path(folder) / "levels.wav"
        path.write_bytes(wav(samples.T.tobytes(), len(channels), rate=RATE))
        yield path


SECONDS = st.lists(st.sampled_from([0, 0, 0, 100, 200]), min_size=1, max_size=20)


@settings(max_examples=30)
@given(SECONDS, st.integers(1, 3))
def test_batches_account_for_every_sample_once(levels, chunks_per_batch):
    whole = np.repeat(levels, RATE)
    with file_of(levels) as path:
        batches = batches_of(path, chunks_per_batch=chunks_per_batch)
    bounds = [0, *(batch["stop"] for batch in batches)]
    assert [(batch["first"], batch["stop"]) for batch in batches] == list(pairwise(bounds))
    assert bounds[-1] == len(whole)
    for batch in batches:
        assert len(batch["audible"]) <= chunks_per_batch
        stretches = sorted([*batch["audible"], *batch["silent"]])
        assert [first for first, *_ in stretches] == [batch["first"], *(stop for _, stop, *_ in stretches[:-1])]
        assert [start for _, _, start, _ in stretches] == [first / RATE for first, *_ in stretches]
        assert batch["slot"] == [whole[first:stop].tolist() for first, stop, *_ in batch["audible"]]
        assert not any(whole[first:stop].any() for first, stop, *_ in batch["silent"])


@settings(max_examples=30)
@given(SECONDS, st.integers(1, 3))
def test_each_channel_is_in_batches_once(levels, chunks_per_batch):
    channels = np.stack([np.repeat(levels, RATE), np.repeat([3 * level for level in levels[::-1]], RATE)])
    with file_of(levels, [3 * level for level in levels[::-1]]) as path:
        batches = batches_of(path, chunks_per_batch=chunks_per_batch)
    read = np.zeros_like(channels)
    for batch in batches:
        for (_, _, start, speaker), samples in zip(batch["audible"], batch["slot"], strict=True):
            first = round(start * RATE)
            read[int(speaker[-1]) - 1, first : first + len(samples)] += samples
    assert np.array_equal(read, channels)


@settings(max_examples=30)
@given(SECONDS, st.integers(1, 3), st.data())
def test_batches_that_are_missing_come_as_they_would_in_one_go(levels, chunks_per_batch, data):
    with file_of(levels, levels[::-1]) as path:
        whole = batches_of(path, chunks_per_batch=chunks_per_batch)
        missing = data.draw(st.lists(st.sampled_from(whole), unique_by=lambda batch: batch["first"], min_size=1))
        missing.sort(key=lambda batch: batch["first"])
        spans = [Span(batch["first"], batch["stop"]) for batch in missing]
        assert batches_of(path, *spans, chunks_per_batch=chunks_per_batch) == missing
        rest = [batch for batch in whole if batch["first"] >= missing[0]["first"]]
        assert batches_of(path, Span(rest[0]["first"]), chunks_per_batch=chunks_per_batch) == rest


def test_silence_of_hours_comes_in_several_batches_without_slots(tmp_path, monkeypatch):
    monkeypatch.setattr(audio, "MAX_SILENT_CHUNKS", 2)
    path = write_levels(tmp_path / "silence.wav", [0] * 7 + [100] * 2, RATE)
    batches = batches_of(path, chunks_per_batch=2)
    assert [(batch["first"], batch["stop"], len(batch["silent"]), len(batch["slot"])) for batch in batches] == [
        (0, 3000, 2, 0),
        (3000, 6000, 2, 0),
        (6000, 9000, 0, 2),
    ]
