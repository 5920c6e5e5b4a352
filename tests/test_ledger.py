"""What is done, on the disk; whatever happens, what was saved is there."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from reelscribe import ledger as ledger_module
from reelscribe.errors import OutputError
from reelscribe.ledger import FolderLock, JobVideo, Ledger, LedgerReader, file_stat, is_locked
from reelscribe.media import Caption, Failure, Source, Span, VideoInfo
from reelscribe.parts import UNDECODABLE, Part

SETTINGS = {"model": ["some/model", "abc"], "sampling": {"every": 2}}
VIDEO = JobVideo(VideoInfo(4.0, 64, 48, 0, 1.0, 40, 10.0, 0.0, 4.0, "h264", None), 40, 4.0, None)


def part(first: int, stop: int) -> Part:
    """Captions of all its frames."""
    return Part(first, stop, stop - 1, captions=[(k, k / 10, f"caption {k}") for k in range(first, stop)])


def captions(*ordinals: int) -> list[Caption]:
    return [Caption(k, k / 10, f"caption {k}") for k in ordinals]


async def saved_job(out: Path, *parts: Part, video: JobVideo | None = VIDEO) -> int:
    """Adds a job to a ledger that is closed then."""
    async with Ledger(out, SETTINGS) as ledger:
        job = await ledger.job("00ff")
        if video:
            await ledger.opened(job.id, video)
        for each in parts:
            await ledger.add(job.id, each)
    return job.id


def frames(out: Path, job: int) -> list[Caption | Failure]:
    with LedgerReader(out) as ledger:
        return list(ledger.frames(job))


async def test_a_new_job_has_nothing(tmp_path):
    async with Ledger(tmp_path, SETTINGS) as ledger:
        job = await ledger.job("00ff")
    assert (job.video, job.done, job.error, job.missing) == (None, False, None, [Span()])


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
    async with Ledger(tmp_path, SETTINGS) as ledger:
        job = await ledger.job("00ff")
    assert (job.video, job.missing) == (VIDEO, missing)


async def test_before_a_video_was_opened_its_end_is_not_known(tmp_path):
    await saved_job(tmp_path, part(0, 10), video=None)
    async with Ledger(tmp_path, SETTINGS) as ledger:
        assert (await ledger.job("00ff")).missing == [Span(10, None, 9)]


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
        async with Ledger(tmp_path, settings) as ledger:
            assert (await ledger.job(sha256)).missing == missing


async def test_how_a_job_ended_is_kept(tmp_path):
    job = await saved_job(tmp_path, part(0, 40))
    for error in (("MediaError", "cut «short»"), None):
        async with Ledger(tmp_path, SETTINGS) as ledger:
            await ledger.finish(job, error)
        async with Ledger(tmp_path, SETTINGS) as ledger:
            again = await ledger.job("00ff")
            assert (again.done, again.error) == (True, error)


async def test_a_part_that_is_saved_again_takes_the_place_of_the_first(tmp_path):
    job = await saved_job(tmp_path, Part(0, 1, 0, failures=[(0, 0.0, "refused")]), part(0, 1))
    assert frames(tmp_path, job) == captions(0)


async def test_frames_without_a_caption_are_counted_by_the_reason(tmp_path):
    bad = Part(0, 3, 1, failures=[(0, 0.0, "refused"), (1, 0.1, UNDECODABLE), (2, 0.2, "refused")])
    job = await saved_job(tmp_path, bad, part(3, 5), Part(5, 6, 4, failures=[(5, 0.5, "refused")]))
    async with Ledger(tmp_path, SETTINGS) as ledger:
        assert await ledger.failures(job) == {"refused": 3, UNDECODABLE: 1}
        assert await ledger.failures((await ledger.job("another")).id) == {}


async def test_a_job_that_is_tried_again_has_its_good_parts_still(tmp_path):
    bad = Part(10, 12, 10, captions=[(10, 1.0, "x")], failures=[(11, 1.1, "refused")])
    job = await saved_job(tmp_path, part(0, 10), bad, part(12, 20))
    async with Ledger(tmp_path, SETTINGS) as ledger:
        await ledger.finish(job, ("RequestRefused", "refused"))
        await ledger.reopen(job)
        again = await ledger.job("00ff")
    assert (again.done, again.error, again.video) == (False, None, None)
    assert again.missing == [Span(10, 12, 9), Span(20, None, 19)]


async def test_of_a_job_that_is_forgotten_nothing_is_left(tmp_path):
    job = await saved_job(tmp_path, part(0, 10))
    async with Ledger(tmp_path, SETTINGS) as ledger:
        kept = (await ledger.job("another")).id
        await ledger.add(kept, part(0, 3))
        await ledger.forget(job)
        again = await ledger.job("00ff")
    assert (again.video, again.done, again.missing) == (None, False, [Span()])
    assert frames(tmp_path, kept) == captions(0, 1, 2)


async def test_many_adds_at_once_share_a_commit_and_are_all_saved(tmp_path, monkeypatch):
    statements: list[str] = []

    def connect(*arguments, **options):
        database = sqlite3.Connection(*arguments, **options)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(ledger_module.sqlite3, "connect", connect)
    async with Ledger(tmp_path, SETTINGS) as ledger:
        job = await ledger.job("00ff")
        statements.clear()
        await asyncio.gather(*(ledger.add(job.id, part(k, k + 1)) for k in range(100)))
        assert statements.count("COMMIT") <= 2
        assert frames(tmp_path, job.id) == captions(*range(100))


async def test_a_part_whose_saver_is_cancelled_is_saved_all_the_same(tmp_path):
    async with Ledger(tmp_path, SETTINGS) as ledger:
        job = await ledger.job("00ff")
        cancelled = asyncio.create_task(ledger.add(job.id, part(0, 1)))
        other = asyncio.create_task(ledger.add(job.id, part(1, 2)))
        await asyncio.sleep(0)  # both have begun
        cancelled.cancel()
        await asyncio.wait_for(other, 60)
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert frames(tmp_path, job.id) == captions(0, 1)


async def test_several_who_ask_for_the_same_new_job_get_the_same(tmp_path):
    async with Ledger(tmp_path, SETTINGS) as ledger:
        jobs = await asyncio.gather(*(ledger.job("00ff") for _ in range(5)))
    assert len({job.id for job in jobs}) == 1


async def test_any_text_that_a_model_makes_is_saved(tmp_path):
    text = "«étoile»\n\x00 \ud83d 星"
    job = await saved_job(tmp_path, Part(0, 2, 0, captions=[(0, 0.0, text)], failures=[(1, 0.1, text)]))
    assert frames(tmp_path, job) == [Caption(0, 0.0, text), Failure(1, 0.1, text)]


@pytest.fixture
def name(tmp_path, monkeypatch) -> str:
    """A file in the current directory; names need not be UTF-8."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.mp4")
    Path(name).write_text("first")
    return name


async def test_a_file_is_recalled_until_it_is_touched(tmp_path, name):
    async with Ledger(tmp_path, SETTINGS) as ledger:
        assert await ledger.recall(name, file_stat(name)) is None
        await ledger.remember(name, file_stat(name), Source(name, 5, "00ff"))
    async with Ledger(tmp_path, {"other": "settings"}) as ledger:
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
    async with Ledger(tmp_path, SETTINGS) as ledger:
        with LedgerReader(tmp_path) as reader:
            assert reader.run() is None
            for state in ({"state": "running", "frames": 3}, {"state": "done", "frames": 5}):
                await ledger.set_run(state)
                assert reader.run() == state


async def test_a_job_that_is_being_added_to_can_be_read(tmp_path):
    async with Ledger(tmp_path, SETTINGS) as ledger:
        job = (await ledger.job("00ff")).id
        await ledger.add(job, part(0, 2))
        assert frames(tmp_path, job) == captions(0, 1)
        await ledger.add(job, part(2, 3))
        assert frames(tmp_path, job) == captions(0, 1, 2)


ADD_PARTS = """
import asyncio, resource, sys
from pathlib import Path
from reelscribe.errors import OutputError
from reelscribe.ledger import Ledger
from reelscribe.parts import Part

async def main(out, limit):
    async with Ledger(Path(out), {"model": "m"}) as ledger:
        job = await ledger.job("00ff")
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for first in range(0, 1_000_000, 4):
            async def add(k):
                await ledger.add(job.id, Part(k, k + 1, k, captions=[(k, 0.0, "x" * 500)]))
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
    async with Ledger(out, {"model": "m"}) as ledger:
        job = await ledger.job("00ff")
        await ledger.add(job.id, Part(10**6, 10**6 + 1, None))  # it can be written again
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
        await Ledger(tmp_path, SETTINGS).__aenter__()
    with LedgerReader(tmp_path) as reader, pytest.raises(OutputError, match=r"cannot be read: .*not a database"):
        reader.run()
    assert (tmp_path / "ledger.sqlite").read_text() == "something else\n" * 100


async def test_a_ledger_of_another_version_is_refused(tmp_path):
    await saved_job(tmp_path)
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(OutputError, match="expected a ledger of version 1, got 99; choose another --out"):
        await Ledger(tmp_path, SETTINGS).__aenter__()


async def test_where_nothing_can_be_written_there_is_no_ledger(tmp_path):
    (tmp_path / "ledger.sqlite").mkdir()
    with pytest.raises(OutputError, match="unable to open database file"):
        await Ledger(tmp_path, SETTINGS).__aenter__()


def test_a_folder_without_a_run_has_nothing_to_read(tmp_path):
    with pytest.raises(OutputError, match=r"ledger.sqlite: no such file; expected the folder of a run"):
        LedgerReader(tmp_path).__enter__()


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path):
    out = tmp_path / "new" / "out"
    with FolderLock(out):
        assert is_locked(out)
        with pytest.raises(OutputError, match="another run is writing there; choose another --out"):
            FolderLock(out).__enter__()
        assert is_locked(out)
    assert not is_locked(out)
    with FolderLock(out):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/out: not a folder that can be written to: .*Not a directory"):
        FolderLock(tmp_path / "file" / "out").__enter__()
