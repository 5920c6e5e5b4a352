"""The ledger on the disk: whatever happens to a run, its saved results are there."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reelscribe._files import file_stat
from reelscribe.contract.outcomes import (
    Caption,
    Failure,
    FrameResult,
    Silence,
    SourceError,
    SpeechFailure,
    Utterance,
)
from reelscribe.contract.source import AudioInfo, Source, Span, VideoInfo
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.errors import OutputError
from reelscribe.results import schema as schema_module
from reelscribe.results.batches import UNDECODABLE, SavedAudioBatch, SavedFrameBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio, SavedVideo
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from support.patience import PATIENCE

SETTINGS = {"model": ["some/model", "abc"], "sampling": {"every": 2}}
VIDEO = SavedVideo(
    VideoInfo(
        duration_seconds=4.0,
        width=64,
        height=48,
        rotation=0,
        pixel_aspect=1.0,
        frames=40,
        average_fps=10.0,
        start_seconds=0.0,
        end_seconds=4.0,
        video_codec="h264",
        audio_codec=None,
    ),
    end_seconds=4.0,
    why_incomplete=None,
)
AUDIO = SavedAudio(AudioInfo("aac", 44100, 2, 0.0, 0.0, 4.0), why_incomplete=None)
TOTAL = 40


def batch(first: int, stop: int) -> SavedFrameBatch:
    """A batch in which every frame has a caption."""
    return SavedFrameBatch(first, stop, stop - 1, captions=captions(*range(first, stop)))


def captions(*ordinals: int) -> list[Caption]:
    return [Caption(k, k / 10, f"caption {k}") for k in ordinals]


async def job_of(ledger: Ledger, sha256: str = "00ff", settings: Mapping[str, Any] = SETTINGS) -> Job:
    """The job of a content."""
    return await ledger.job(sha256, await ledger.settings_id(settings))


async def job_in(out: Path, *which: Any) -> Job:
    """The same job, from a ledger that is opened for it."""
    async with Ledger(out) as ledger:
        return await job_of(ledger, *which)


async def finish(ledger: Ledger, job: Job, error: SourceError | None) -> None:
    """Save that a job is done, with the source whose content it is."""
    await ledger.save_source(Source("/v/a.mp4", 5, "00ff"), {"captions": replace(job, done=True, error=error)})


async def failures_of(ledger: Ledger, sha256: str = "00ff") -> dict[str, int]:
    """The failures of the same job."""
    return (await ledger.outcome(sha256, await ledger.settings_id(SETTINGS)))[1]


async def saved_job(out: Path, *batches: SavedFrameBatch | SavedAudioBatch, opened: bool = True) -> int:
    """Save a job with these batches in a ledger that is opened for it; returns its number."""
    async with Ledger(out) as ledger:
        job = await job_of(ledger)
        if opened:
            await ledger.save_opened(job.id, VIDEO, TOTAL)
        for each in batches:
            await ledger.save_batch(job.id, each)
    return job.id


def frames(out: Path, job: int) -> list[FrameResult]:
    with LedgerReader(out) as reader:
        return list(reader.frame_results(job))


async def test_a_new_job_has_nothing(tmp_path):
    job = await job_in(tmp_path)
    assert (job.opened, job.total, job.done, job.error, job.missing) == (None, None, False, None, [Span()])


async def test_batches_are_read_back_in_order_by_another_run(tmp_path):
    job = await saved_job(tmp_path, batch(10, 20), batch(0, 10))
    assert frames(tmp_path, job) == captions(*range(20))


@pytest.mark.parametrize(
    ("done", "missing"),
    [
        ([], [Span(0, 40, None)]),
        ([(0, 10)], [Span(10, 40, 9)]),
        ([(5, 10), (20, 25), (25, 30)], [Span(0, 5, None), Span(10, 20, 9), Span(30, 40, 29)]),
        ([(10, 40)], [Span(0, 10, None)]),
        ([(0, 40)], []),
    ],
)
async def test_missing_spans_come_with_the_last_captioned_frame_before_them(tmp_path, done, missing):
    await saved_job(tmp_path, *(batch(first, stop) for first, stop in done))
    job = await job_in(tmp_path)
    assert (job.opened, job.total, job.missing) == (VIDEO, TOTAL, missing)


async def test_the_last_missing_span_has_no_end_until_the_source_was_opened(tmp_path):
    await saved_job(tmp_path, batch(0, 10), opened=False)
    assert (await job_in(tmp_path)).missing == [Span(10, None, 9)]


async def test_the_length_of_audio_may_be_saved_when_its_end_was_read(tmp_path):
    async with Ledger(tmp_path) as ledger:
        job = (await job_of(ledger)).id
        await ledger.save_opened(job, AUDIO, None)
        await ledger.save_batch(job, SavedAudioBatch(0, 30, silences=[Silence(0.0, 3.0)]))
        assert (await job_of(ledger)).missing == [Span(30, None)]
        await ledger.save_opened(job, replace(AUDIO, why_incomplete="cut short"), 40)
        assert (await job_of(ledger)).missing == [Span(30, 40)]


async def test_a_saved_length_is_kept_when_another_run_opens_the_source_again(tmp_path):
    cut = replace(AUDIO, why_incomplete="cut short")
    async with Ledger(tmp_path) as ledger:
        number = (await job_of(ledger)).id
        await ledger.save_opened(number, cut, 40)
        await ledger.save_opened(number, AUDIO, None)
        job = await job_of(ledger)
    assert (job.opened, job.total) == (cut, 40)


async def test_a_job_is_a_content_a_model_and_settings(tmp_path):
    await saved_job(tmp_path, batch(0, 40))
    reordered = dict(reversed(SETTINGS.items()))
    for settings, sha256, missing in [
        (SETTINGS, "00ff", []),
        (reordered, "00ff", []),
        (SETTINGS, "00fe", [Span()]),
        ({**SETTINGS, "sampling": {"every": 3}}, "00ff", [Span()]),
        ({**SETTINGS, "model": ["some/model", "abd"]}, "00ff", [Span()]),
    ]:
        assert (await job_in(tmp_path, sha256, settings)).missing == missing


async def test_a_content_has_one_job_for_each_model(tmp_path):
    async with Ledger(tmp_path) as ledger:
        captioned = await job_of(ledger)
        transcribed = await job_of(ledger, "00ff", {"model": ["speech", "1"]})
        await ledger.save_batch(captioned.id, batch(0, 2))
        await ledger.save_batch(transcribed.id, SavedAudioBatch(0, 30, silences=[Silence(0.0, 3.0)]))
    with LedgerReader(tmp_path) as reader:
        assert list(reader.frame_results(captioned.id)) == captions(0, 1)
        assert list(reader.audio_results(transcribed.id)) == [Silence(0.0, 3.0)]


async def test_the_error_of_a_job_is_kept(tmp_path):
    await saved_job(tmp_path, batch(0, 40))
    for error in (SourceError("MediaError", "cut «short»"), None):
        async with Ledger(tmp_path) as ledger:
            await finish(ledger, await job_of(ledger), error)
        again = await job_in(tmp_path)
        assert (again.done, again.error) == (True, error)


async def test_a_batch_that_is_saved_again_replaces_the_first(tmp_path):
    job = await saved_job(tmp_path, SavedFrameBatch(0, 1, 0, failures=[Failure(0, 0.0, "refused")]), batch(0, 1))
    assert frames(tmp_path, job) == captions(0)


async def test_audio_results_are_read_back_in_the_order_of_time(tmp_path):
    transcript = ChunkTranscript("go left", "en", (SpeechSegment(0.5, 1.5, "go left"),), no_speech_prob=0.25)
    first = SavedAudioBatch(0, 30, transcripts=[TimedTranscript(0.0, 2.0, transcript)], silences=[Silence(2.0, 3.0)])
    second = SavedAudioBatch(30, 50, silences=[Silence(3.0, 4.0)], failures=[SpeechFailure(4.0, 5.0, "refused")])
    job = await saved_job(tmp_path, second, first)
    with LedgerReader(tmp_path) as reader:
        assert list(reader.audio_results(job)) == [
            Utterance(0.5, 1.5, "go left", "en", 0.25),
            Silence(2.0, 4.0),
            SpeechFailure(4.0, 5.0, "refused"),
        ]


async def test_failures_of_audio_are_counted_and_tried_again(tmp_path):
    failed = SavedAudioBatch(10, 30, silences=[Silence(1.0, 2.0)], failures=[SpeechFailure(2.0, 3.0, "refused")])
    job = await saved_job(tmp_path, SavedAudioBatch(0, 10, silences=[Silence(0.0, 1.0)]), failed)
    async with Ledger(tmp_path) as ledger:
        assert await failures_of(ledger) == {"refused": 1}
        await ledger.reopen(job)
        assert (await job_of(ledger)).missing == [Span(10, None)]


async def test_failures_of_frames_are_counted_by_their_reason(tmp_path):
    reasons = ["refused", UNDECODABLE, "refused"]
    first = SavedFrameBatch(0, 3, 1, failures=[Failure(k, k / 10, reason) for k, reason in enumerate(reasons)])
    last = SavedFrameBatch(5, 6, 4, failures=[Failure(5, 0.5, "refused")])
    await saved_job(tmp_path, first, batch(3, 5), last)
    async with Ledger(tmp_path) as ledger:
        assert await failures_of(ledger) == {"refused": 3, UNDECODABLE: 1}
        assert await failures_of(ledger, "another") == {}


async def test_a_job_that_is_reopened_keeps_its_batches_without_failures(tmp_path):
    failed = SavedFrameBatch(10, 12, 10, captions=captions(10), failures=[Failure(11, 1.1, "refused")])
    job = await saved_job(tmp_path, batch(0, 10), failed, batch(12, 20))
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, await job_of(ledger), SourceError("RequestRefused", "refused"))
        await ledger.reopen(job)
        again = await job_of(ledger)
    assert (again.done, again.opened, again.total) == (False, None, None)
    assert again.error == SourceError("RequestRefused", "refused")  # until it is done again
    assert again.missing == [Span(10, 12, 9), Span(20, None, 19)]


async def test_a_job_is_reopened_once_as_long_as_the_ledger_is_open(tmp_path):
    failed = SavedFrameBatch(0, 2, 0, captions=captions(0), failures=[Failure(1, 0.1, "refused")])
    refused = SourceError("RequestRefused", "refused")
    job = await saved_job(tmp_path)
    for _ in range(2):  # each is a run
        async with Ledger(tmp_path) as ledger:
            for first_time in (True, False):
                await ledger.save_batch(job, failed)
                await finish(ledger, await job_of(ledger), refused)
                await ledger.reopen(job)
                again = await job_of(ledger)
                assert (again.done, frames(tmp_path, job) == []) == (not first_time, first_time)


async def test_nothing_is_left_of_a_job_that_is_forgotten(tmp_path):
    job = await saved_job(tmp_path, batch(0, 10))
    async with Ledger(tmp_path) as ledger:
        kept = (await job_of(ledger, "another")).id
        await ledger.save_batch(kept, batch(0, 3))
        await ledger.forget(job)
        again = await job_of(ledger)
    assert (again.opened, again.done, again.missing) == (None, False, [Span()])
    assert frames(tmp_path, kept) == captions(0, 1, 2)


async def test_batches_that_are_saved_at_once_share_a_commit(tmp_path, monkeypatch):
    statements: list[str] = []

    def connect(*arguments, **options):
        database = sqlite3.Connection(*arguments, **options)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(schema_module.sqlite3, "connect", connect)
    async with Ledger(tmp_path) as ledger:
        job = await job_of(ledger)
        statements.clear()
        await asyncio.gather(*(ledger.save_batch(job.id, batch(k, k + 1)) for k in range(100)))
        assert statements.count("COMMIT") <= 2
        assert frames(tmp_path, job.id) == captions(*range(100))


async def test_a_batch_is_saved_although_the_task_that_saves_it_is_cancelled(tmp_path):
    async with Ledger(tmp_path) as ledger:
        job = await job_of(ledger)
        cancelled, other = ledger.save_batch(job.id, batch(0, 1)), ledger.save_batch(job.id, batch(1, 2))
        cancelled.cancel()
        await asyncio.wait_for(other, PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert frames(tmp_path, job.id) == captions(0, 1)


async def test_tasks_that_add_the_same_job_at_once_get_one_job(tmp_path):
    async with Ledger(tmp_path) as ledger:
        jobs = await asyncio.gather(*(job_of(ledger) for _ in range(5)))
    assert len({job.id for job in jobs}) == 1


async def test_any_text_of_a_model_is_saved(tmp_path):
    text = "«étoile»\n\x00 \ud83d 星"
    caption, failure = Caption(0, 0.0, text), Failure(1, 0.1, text)
    job = await saved_job(tmp_path, SavedFrameBatch(0, 2, 0, captions=[caption], failures=[failure]))
    assert frames(tmp_path, job) == [caption, failure]


@pytest.fixture
def name(tmp_path, monkeypatch) -> str:
    """A file in the current directory; names need not be UTF-8."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.mp4")
    Path(name).write_text("first")
    return name


async def test_the_digest_of_a_file_is_found_until_the_file_is_touched(tmp_path, name):
    async with Ledger(tmp_path) as ledger:
        assert await ledger.find_digest(name, file_stat(name)) is None
        await ledger.save_digest(name, file_stat(name), Source(name, 5, "00ff" * 16))
    async with Ledger(tmp_path) as ledger:
        assert await ledger.find_digest(name, file_stat(name)) == "00ff" * 16
        assert await ledger.find_digest(f"{tmp_path}/{name}", file_stat(name)) == "00ff" * 16
        assert await ledger.find_digest(f"{name}2", file_stat(name)) is None
        os.utime(name, ns=(0, 0))
        assert await ledger.find_digest(name, file_stat(name)) is None
        await ledger.save_digest(name, file_stat(name), Source(name, 5, "11ff" * 16))
        assert await ledger.find_digest(name, file_stat(name)) == "11ff" * 16


def test_the_stat_of_a_file_differs_from_one_that_it_replaces_with_equal_time_and_size(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("12345")
        os.utime(path, ns=(0, 0))
    before = file_stat(str(first))
    assert file_stat(str(first)) == before
    second.replace(first)
    assert file_stat(str(first)) != before


async def test_the_state_of_a_run_can_be_read_while_it_runs(tmp_path):
    async with Ledger(tmp_path) as ledger:
        with LedgerReader(tmp_path) as reader:
            assert reader.run_state() is None
            for state in ({"state": "running", "frames": 3}, {"state": "done", "frames": 5}):
                await ledger.save_run_state(state)
                assert reader.run_state() == state


async def test_a_job_can_be_read_while_batches_are_added_to_it(tmp_path):
    async with Ledger(tmp_path) as ledger:
        job = (await job_of(ledger)).id
        await ledger.save_batch(job, batch(0, 2))
        assert frames(tmp_path, job) == captions(0, 1)
        await ledger.save_batch(job, batch(2, 3))
        assert frames(tmp_path, job) == captions(0, 1, 2)


async def test_threads_and_half_read_results_share_an_open_reader(tmp_path):
    async with Ledger(tmp_path) as ledger:
        with LedgerReader(tmp_path) as reader:
            job = (await job_of(ledger)).id
            await asyncio.gather(*(ledger.save_batch(job, batch(k, k + 1)) for k in range(40)))
            half_read = reader.frame_results(job)
            assert next(half_read) == Caption(0, 0.0, "caption 0")
            await ledger.save_batch(job, batch(40, 41))
            readings = [asyncio.to_thread(list, reader.frame_results(job)) for _ in range(4)]
            assert await asyncio.gather(*readings) == [captions(*range(41))] * 4
            assert list(half_read)[:39] == captions(*range(1, 40))


async def test_a_reader_that_is_closed_says_so(tmp_path):
    job = await saved_job(tmp_path, batch(0, 1))
    with LedgerReader(tmp_path) as reader:
        pass
    with pytest.raises(OutputError, match=r"ledger.sqlite: closed; read the results of a record before its run ends"):
        list(reader.frame_results(job))


async def test_the_rows_of_a_ledger_stay_as_they_are_so_that_runs_of_the_next_release_go_on_from_them(tmp_path):
    async with Ledger(tmp_path) as ledger:
        captioned, transcribed = await job_of(ledger), await job_of(ledger, "00ff", {"model": ["speech", "1"]})
        await ledger.save_opened(captioned.id, VIDEO, 40)
        await ledger.save_opened(transcribed.id, AUDIO, None)
        await ledger.save_batch(captioned.id, batch(0, 1))
        await finish(ledger, captioned, SourceError("MediaError", "cut short"))
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as database:
            jobs = database.execute("SELECT * FROM jobs ORDER BY id").fetchall()
            settings = database.execute("SELECT * FROM settings ORDER BY id").fetchall()
            batches = database.execute("SELECT * FROM batches").fetchall()
    video = (
        '{"info": {"duration_seconds": 4.0, "width": 64, "height": 48, "rotation": 0, "pixel_aspect": 1.0,'
        ' "frames": 40, "average_fps": 10.0, "start_seconds": 0.0, "end_seconds": 4.0, "video_codec": "h264",'
        ' "audio_codec": null, "skipped_frames": 0, "dynamic_range": "sdr"}, "end_seconds": 4.0,'
        ' "why_incomplete": null, "shots": null}'
    )
    audio = (
        '{"info": {"codec": "aac", "sample_rate": 44100, "channels": 2, "start_seconds": 0.0,'
        ' "media_start_seconds": 0.0, "duration_seconds": 4.0}, "why_incomplete": null}'
    )
    assert jobs == [
        (1, "00ff", 1, video, 40, 1, '["MediaError", "cut short"]'),
        (2, "00ff", 2, audio, None, 0, None),
    ]
    assert settings == [
        (1, '{"model": ["some/model", "abc"], "sampling": {"every": 2}}'),
        (2, '{"model": ["speech", "1"]}'),
    ]
    assert batches == [(1, 0, 1, 0, '[[[0,0.0,"caption 0",null]],[],[]]')]


ADD_BATCHES = """
import asyncio, resource, sys
from pathlib import Path
from reelscribe.contract.outcomes import Caption
from reelscribe.errors import OutputError
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.ledger import Ledger

async def main(out, limit):
    async with Ledger(Path(out)) as ledger:
        job = await ledger.job("00ff", await ledger.settings_id({"model": "m"}))
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for first in range(0, 1_000_000, 4):
            async def add(k):
                await ledger.save_batch(job.id, SavedFrameBatch(k, k + 1, k, captions=[Caption(k, 0.0, "x" * 500)]))
                print(k, flush=True)
            await asyncio.gather(*map(add, range(first, first + 4)))

try:
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
except OutputError as error:
    sys.exit(str(error))
"""


def adding(out: Path, limit: int) -> "subprocess.Popen[str]":
    """A process that saves batches of one frame, and prints the number of each when it is saved."""
    command = [sys.executable, "-c", ADD_BATCHES, str(out), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def all_saved(out: Path) -> set[int]:
    async with Ledger(out) as ledger:
        job = await job_of(ledger, "00ff", {"model": "m"})
        last = SavedFrameBatch(10**6, 10**6 + 1, captions=[Caption(10**6, 0.0, "last")])
        await ledger.save_batch(job.id, last)  # it can be written again
    return {frame.frame_index for frame in frames(out, job.id)} - {10**6}


@pytest.mark.parametrize("lines", [1, 50, 333])
async def test_saved_batches_survive_a_sudden_death_of_the_process(tmp_path, lines):
    with adding(tmp_path, limit=0) as process:
        printed = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        printed += process.stdout.readlines()
    saved = await all_saved(tmp_path)
    assert len(printed) >= lines
    assert set(map(int, printed)) <= saved


async def test_a_full_disk_is_an_error_and_saved_batches_are_kept(tmp_path):
    with adding(tmp_path, limit=400_000) as process:
        printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "ledger.sqlite: cannot be written: disk I/O error; what was saved before is kept" in errors
    assert len(printed.split()) > 20
    assert set(map(int, printed.split())) <= await all_saved(tmp_path)


async def test_a_file_that_is_no_ledger_is_refused_and_not_changed(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("something else\n" * 100)
    with pytest.raises(OutputError, match=r"ledger.sqlite: .*not a database; choose another --out"):
        await Ledger(tmp_path).__aenter__()
    with pytest.raises(OutputError, match=r"cannot be read: .*not a database"):
        LedgerReader(tmp_path).__enter__()
    assert (tmp_path / "ledger.sqlite").read_text() == "something else\n" * 100


def test_the_stat_of_a_file_is_the_same_on_every_machine(name, monkeypatch):
    here, stat = file_stat(name), os.stat(name)
    fields = {field: getattr(stat, field) for field in dir(stat) if field.startswith("st_")}
    monkeypatch.setattr(os, "stat", lambda path: SimpleNamespace(**{**fields, "st_dev": stat.st_dev + 1}))
    assert file_stat(name) == here


async def test_a_ledger_of_another_version_is_refused(tmp_path):
    await saved_job(tmp_path)
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(OutputError, match="expected a ledger of version 2, got 99; use the version of reelscribe that"):
        await Ledger(tmp_path).__aenter__()
    with pytest.raises(OutputError, match="expected a ledger of version 2, got 99; use the version of reelscribe that"):
        LedgerReader(tmp_path).__enter__()


async def test_a_ledger_that_cannot_be_opened_is_an_error(tmp_path):
    (tmp_path / "ledger.sqlite").mkdir()
    with pytest.raises(OutputError, match="expected a file or nothing there"):
        await Ledger(tmp_path).__aenter__()


def test_a_folder_without_a_ledger_cannot_be_read(tmp_path):
    with pytest.raises(OutputError, match=r"ledger.sqlite: no such file; expected the folder of a run"):
        LedgerReader(tmp_path).__enter__()
