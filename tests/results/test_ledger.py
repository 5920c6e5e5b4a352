"""What is done, on the disk; whatever happens, what was saved is there."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reelscribe.contract.annotations import Caption, Failure, Silence, SpeechFailure, Utterance
from reelscribe.contract.source import Source, Span
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.errors import OutputError
from reelscribe.results import ledger as ledger_module
from reelscribe.results.batches import UNDECODABLE, SavedAudioBatch, SavedFrameBatch
from reelscribe.results.ledger import Job, Ledger, LedgerReader, file_stat

SETTINGS = {"model": ["some/model", "abc"], "sampling": {"every": 2}}
OPENED = {"info": {"width": 64}, "cut": None}
TOTAL = 40


def part(first: int, stop: int) -> SavedFrameBatch:
    """Captions of all its frames."""
    return SavedFrameBatch(first, stop, stop - 1, captions=[(k, k / 10, f"caption {k}") for k in range(first, stop)])


def captions(*ordinals: int) -> list[Caption]:
    return [Caption(k, k / 10, f"caption {k}") for k in ordinals]


async def job_of(ledger: Ledger, sha256: str = "00ff", settings: Mapping[str, Any] = SETTINGS) -> Job:
    """The job of a content with these settings."""
    return await ledger.job(sha256, await ledger.settings(settings))


async def job_in(out: Path, *which: Any) -> Job:
    """The same, from a ledger that is closed then."""
    async with Ledger(out) as ledger:
        return await job_of(ledger, *which)


async def saved_job(out: Path, *parts: SavedFrameBatch | SavedAudioBatch, opened: bool = True) -> int:
    """Adds a job to a ledger that is closed then."""
    async with Ledger(out) as ledger:
        job = await job_of(ledger)
        if opened:
            await ledger.opened(job.id, OPENED, TOTAL)
        for each in parts:
            await ledger.add(job.id, each)
    return job.id


def frames(out: Path, job: int) -> list[Caption | Failure]:
    with LedgerReader(out) as ledger:
        return list(ledger.frames(job))


async def test_a_new_job_has_nothing(tmp_path):
    job = await job_in(tmp_path)
    assert (job.opened, job.total, job.done, job.error, job.missing) == (None, None, False, None, [Span()])


async def test_parts_are_read_back_in_order_by_another_run(tmp_path):
    job = await saved_job(tmp_path, part(10, 20), part(0, 10))
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
async def test_what_is_missing_comes_with_the_frame_that_was_captioned_before(tmp_path, done, missing):
    await saved_job(tmp_path, *(part(first, stop) for first, stop in done))
    job = await job_in(tmp_path)
    assert (job.opened, job.total, job.missing) == (OPENED, TOTAL, missing)


async def test_before_a_source_was_opened_its_end_is_not_known(tmp_path):
    await saved_job(tmp_path, part(0, 10), opened=False)
    assert (await job_in(tmp_path)).missing == [Span(10, None, 9)]


async def test_how_much_sound_there_is_may_be_told_at_its_end(tmp_path):
    sound = {"info": {"codec": "aac"}, "cut": None}
    async with Ledger(tmp_path) as ledger:
        job = (await job_of(ledger)).id
        await ledger.opened(job, sound, None)
        await ledger.add(job, SavedAudioBatch(0, 30, silent=[(0.0, 3.0)]))
        assert (await job_of(ledger)).missing == [Span(30, None)]
        await ledger.opened(job, {**sound, "cut": "cut short"}, 40)
        assert (await job_of(ledger)).missing == [Span(30, 40)]


async def test_an_end_that_is_known_is_not_forgotten_when_another_run_begins_at_the_start(tmp_path):
    cut = {"info": {"codec": "aac"}, "cut": "cut short"}
    async with Ledger(tmp_path) as ledger:
        number = (await job_of(ledger)).id
        await ledger.opened(number, cut, 40)
        await ledger.opened(number, {**cut, "cut": None}, None)
        job = await job_of(ledger)
    assert (job.opened, job.total) == (cut, 40)


async def test_a_job_is_a_content_a_model_and_settings(tmp_path):
    await saved_job(tmp_path, part(0, 40))
    reordered = dict(reversed(SETTINGS.items()))
    for settings, sha256, missing in [
        (SETTINGS, "00ff", []),
        (reordered, "00ff", []),
        (SETTINGS, "00fe", [Span()]),
        ({**SETTINGS, "sampling": {"every": 3}}, "00ff", [Span()]),
        ({**SETTINGS, "model": ["some/model", "abd"]}, "00ff", [Span()]),
    ]:
        assert (await job_in(tmp_path, sha256, settings)).missing == missing


async def test_jobs_of_one_content_with_two_models_stand_beside_each_other(tmp_path):
    async with Ledger(tmp_path) as ledger:
        pictures = await job_of(ledger)
        sound = await job_of(ledger, "00ff", {"model": ["speech", "1"]})
        await ledger.add(pictures.id, part(0, 2))
        await ledger.add(sound.id, SavedAudioBatch(0, 30, silent=[(0.0, 3.0)]))
    with LedgerReader(tmp_path) as reader:
        assert list(reader.frames(pictures.id)) == captions(0, 1)
        assert list(reader.sound(sound.id)) == [Silence(0.0, 3.0)]


async def test_how_a_job_ended_is_kept(tmp_path):
    job = await saved_job(tmp_path, part(0, 40))
    for error in (("MediaError", "cut «short»"), None):
        async with Ledger(tmp_path) as ledger:
            await ledger.finish(job, error)
        again = await job_in(tmp_path)
        assert (again.done, again.error) == (True, error)


async def test_a_part_that_is_saved_again_takes_the_place_of_the_first(tmp_path):
    job = await saved_job(tmp_path, SavedFrameBatch(0, 1, 0, failures=[(0, 0.0, "refused")]), part(0, 1))
    assert frames(tmp_path, job) == captions(0)


async def test_sound_is_read_back_in_order_on_one_timeline(tmp_path):
    heard = ChunkTranscript("go left", "en", (SpeechSegment(0.5, 1.5, "go left"),), no_speech_prob=0.25)
    later = SavedAudioBatch(30, 50, silent=[(3.0, 4.0)], failures=[(4.0, 5.0, "refused")])
    job = await saved_job(tmp_path, later, SavedAudioBatch(0, 30, heard=[(0.0, 2.0, heard)], silent=[(2.0, 3.0)]))
    with LedgerReader(tmp_path) as ledger:
        assert list(ledger.sound(job)) == [
            Utterance(0.5, 1.5, "go left", "en", 0.25),
            Silence(2.0, 4.0),
            SpeechFailure(4.0, 5.0, "refused"),
        ]


async def test_what_failed_of_sound_is_counted_and_tried_again(tmp_path):
    bad = SavedAudioBatch(10, 30, silent=[(1.0, 2.0)], failures=[(2.0, 3.0, "refused")])
    job = await saved_job(tmp_path, SavedAudioBatch(0, 10, silent=[(0.0, 1.0)]), bad)
    async with Ledger(tmp_path) as ledger:
        assert await ledger.failures(job) == {"refused": 1}
        await ledger.reopen(job)
        assert (await job_of(ledger)).missing == [Span(10, None)]


async def test_frames_without_a_caption_are_counted_by_the_reason(tmp_path):
    bad = SavedFrameBatch(0, 3, 1, failures=[(0, 0.0, "refused"), (1, 0.1, UNDECODABLE), (2, 0.2, "refused")])
    job = await saved_job(tmp_path, bad, part(3, 5), SavedFrameBatch(5, 6, 4, failures=[(5, 0.5, "refused")]))
    async with Ledger(tmp_path) as ledger:
        assert await ledger.failures(job) == {"refused": 3, UNDECODABLE: 1}
        assert await ledger.failures((await job_of(ledger, "another")).id) == {}


async def test_a_job_that_is_tried_again_has_its_good_parts_still(tmp_path):
    bad = SavedFrameBatch(10, 12, 10, captions=[(10, 1.0, "x")], failures=[(11, 1.1, "refused")])
    job = await saved_job(tmp_path, part(0, 10), bad, part(12, 20))
    async with Ledger(tmp_path) as ledger:
        await ledger.finish(job, ("RequestRefused", "refused"))
        await ledger.reopen(job)
        again = await job_of(ledger)
    assert (again.done, again.error, again.opened, again.total) == (False, None, None, None)
    assert again.missing == [Span(10, 12, 9), Span(20, None, 19)]


async def test_of_a_job_that_is_forgotten_nothing_is_left(tmp_path):
    job = await saved_job(tmp_path, part(0, 10))
    async with Ledger(tmp_path) as ledger:
        kept = (await job_of(ledger, "another")).id
        await ledger.add(kept, part(0, 3))
        await ledger.forget(job)
        again = await job_of(ledger)
    assert (again.opened, again.done, again.missing) == (None, False, [Span()])
    assert frames(tmp_path, kept) == captions(0, 1, 2)


async def test_many_adds_at_once_share_a_commit_and_are_all_saved(tmp_path, monkeypatch):
    statements: list[str] = []

    def connect(*arguments, **options):
        database = sqlite3.Connection(*arguments, **options)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(ledger_module.sqlite3, "connect", connect)
    async with Ledger(tmp_path) as ledger:
        job = await job_of(ledger)
        statements.clear()
        await asyncio.gather(*(ledger.add(job.id, part(k, k + 1)) for k in range(100)))
        assert statements.count("COMMIT") <= 2
        assert frames(tmp_path, job.id) == captions(*range(100))


async def test_a_part_whose_saver_is_cancelled_is_saved_all_the_same(tmp_path):
    async with Ledger(tmp_path) as ledger:
        job = await job_of(ledger)
        cancelled = asyncio.create_task(ledger.add(job.id, part(0, 1)))
        other = asyncio.create_task(ledger.add(job.id, part(1, 2)))
        await asyncio.sleep(0)  # both have begun
        cancelled.cancel()
        await asyncio.wait_for(other, 60)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert frames(tmp_path, job.id) == captions(0, 1)


async def test_several_who_ask_for_the_same_new_job_get_the_same(tmp_path):
    async with Ledger(tmp_path) as ledger:
        jobs = await asyncio.gather(*(job_of(ledger) for _ in range(5)))
    assert len({job.id for job in jobs}) == 1


async def test_any_text_that_a_model_makes_is_saved(tmp_path):
    text = "«étoile»\n\x00 \ud83d 星"
    job = await saved_job(tmp_path, SavedFrameBatch(0, 2, 0, captions=[(0, 0.0, text)], failures=[(1, 0.1, text)]))
    assert frames(tmp_path, job) == [Caption(0, 0.0, text), Failure(1, 0.1, text)]


@pytest.fixture
def name(tmp_path, monkeypatch) -> str:
    """A file in the current directory; names need not be UTF-8."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.mp4")
    Path(name).write_text("first")
    return name


async def test_a_file_is_recalled_until_it_is_touched(tmp_path, name):
    async with Ledger(tmp_path) as ledger:
        assert await ledger.recall(name, file_stat(name)) is None
        await ledger.remember(name, file_stat(name), Source(name, 5, "00ff"))
    async with Ledger(tmp_path) as ledger:
        assert await ledger.recall(name, file_stat(name)) == "00ff"
        assert await ledger.recall(f"{tmp_path}/{name}", file_stat(name)) == "00ff"
        assert await ledger.recall(f"{name}2", file_stat(name)) is None
        os.utime(name, ns=(0, 0))
        assert await ledger.recall(name, file_stat(name)) is None
        await ledger.remember(name, file_stat(name), Source(name, 5, "11ff"))
        assert await ledger.recall(name, file_stat(name)) == "11ff"


def test_a_file_that_takes_the_place_of_another_is_told_apart_though_it_has_its_time_and_size(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("12345")
        os.utime(path, ns=(0, 0))
    before = file_stat(str(first))
    assert file_stat(str(first)) == before
    second.replace(first)
    assert file_stat(str(first)) != before


async def test_how_a_run_gets_on_can_be_read_while_it_does(tmp_path):
    async with Ledger(tmp_path) as ledger:
        with LedgerReader(tmp_path) as reader:
            assert reader.run() is None
            for state in ({"state": "running", "frames": 3}, {"state": "done", "frames": 5}):
                await ledger.set_run(state)
                assert reader.run() == state


async def test_a_job_that_is_being_added_to_can_be_read(tmp_path):
    async with Ledger(tmp_path) as ledger:
        job = (await job_of(ledger)).id
        await ledger.add(job, part(0, 2))
        assert frames(tmp_path, job) == captions(0, 1)
        await ledger.add(job, part(2, 3))
        assert frames(tmp_path, job) == captions(0, 1, 2)


ADD_PARTS = """
import asyncio, resource, sys
from pathlib import Path
from reelscribe.errors import OutputError
from reelscribe.results.ledger import Ledger
from reelscribe.results.batches import SavedFrameBatch

async def main(out, limit):
    async with Ledger(Path(out)) as ledger:
        job = await ledger.job("00ff", await ledger.settings({"model": "m"}))
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for first in range(0, 1_000_000, 4):
            async def add(k):
                await ledger.add(job.id, SavedFrameBatch(k, k + 1, k, captions=[(k, 0.0, "x" * 500)]))
                print(k, flush=True)
            await asyncio.gather(*map(add, range(first, first + 4)))

try:
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
except OutputError as error:
    sys.exit(str(error))
"""


def adding(out: Path, limit: int) -> "subprocess.Popen[str]":
    """A process that adds parts of one frame, and prints the number of each that was saved."""
    command = [sys.executable, "-c", ADD_PARTS, str(out), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def all_saved(out: Path) -> set[int]:
    async with Ledger(out) as ledger:
        job = await job_of(ledger, "00ff", {"model": "m"})
        await ledger.add(job.id, SavedFrameBatch(10**6, 10**6 + 1, None))  # it can be written again
    return {frame.frame_index for frame in frames(out, job.id)}


@pytest.mark.parametrize("lines", [1, 50, 333])
async def test_what_add_has_returned_for_outlives_a_sudden_death(tmp_path, lines):
    with adding(tmp_path, limit=0) as process:
        printed = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        printed += process.stdout.readlines()
    saved = await all_saved(tmp_path)
    assert len(printed) >= lines
    assert set(map(int, printed)) <= saved


async def test_a_full_disk_is_told_and_what_was_saved_is_kept(tmp_path):
    with adding(tmp_path, limit=400_000) as process:
        printed, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ledger.sqlite: cannot be written: disk I/O error; what was saved before is kept" in said
    assert len(printed.split()) > 20
    assert set(map(int, printed.split())) <= await all_saved(tmp_path)


async def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("something else\n" * 100)
    with pytest.raises(OutputError, match=r"ledger.sqlite: .*not a database; choose another --out"):
        await Ledger(tmp_path).__aenter__()
    with pytest.raises(OutputError, match=r"cannot be read: .*not a database"):
        LedgerReader(tmp_path).__enter__()
    assert (tmp_path / "ledger.sqlite").read_text() == "something else\n" * 100


async def test_a_ledger_of_another_version_is_refused(tmp_path):
    await saved_job(tmp_path)
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(OutputError, match="expected a ledger of version 2, got 99; choose another --out"):
        await Ledger(tmp_path).__aenter__()
    with pytest.raises(OutputError, match="expected a ledger of version 2, got 99; choose another --out"):
        LedgerReader(tmp_path).__enter__()


async def test_where_nothing_can_be_written_there_is_no_ledger(tmp_path):
    (tmp_path / "ledger.sqlite").mkdir()
    with pytest.raises(OutputError, match="unable to open database file"):
        await Ledger(tmp_path).__aenter__()


def test_a_folder_without_a_run_has_nothing_to_read(tmp_path):
    with pytest.raises(OutputError, match=r"ledger.sqlite: no such file; expected the folder of a run"):
        LedgerReader(tmp_path).__enter__()
