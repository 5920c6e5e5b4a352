"""Many files are looked up in the ledger at once."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from reelscribe.contract.outcomes import Caption, Failure, SourceError
from reelscribe.contract.source import AudioInfo, Source, Span
from reelscribe.results import schema as schema_module
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.jobs import SavedAudio
from reelscribe.results.ledger import Ledger

AUDIO = SavedAudio(AudioInfo("aac", 44100, 2, 0.0, 0.0, 4.0), why_incomplete=None)
REFUSED = SourceError("RequestRefused", "refused")


def batch(first: int, stop: int, **results: object) -> SavedFrameBatch:
    return SavedFrameBatch(first, stop, stop - 1, **results or {"captions": [Caption(first, 0.0, "a star")]})


async def finish(ledger: Ledger, source: Source, settings: int, error: SourceError | None = None) -> None:
    job = replace(await ledger.job(source.sha256, settings), error=error)
    await ledger.save_source(source, {"captions": job})


async def test_what_is_found_of_files_is_what_each_job_is(tmp_path):
    """A file that is done, one that is half done, one that failed, a copy, and one without a job."""
    async with Ledger(tmp_path) as ledger:
        every, second = [await ledger.settings_id({"model": "m", "every": k}) for k in (1, 2)]
        digests = {"done.mp4": "00", "half.mp4": "11", "failed.mp4": "22", "copy.mp4": "00", "new.mp4": "33"}
        for path, sha256 in digests.items():
            await ledger.save_digest(path, f"stat of {path}", Source(path, 5, sha256))
        for sha256, batches in {
            "00": [batch(0, 40)],
            "11": [batch(0, 10), batch(20, 30)],
            "22": [batch(0, 10), batch(10, 40, failures=[Failure(10, 1.0, "refused")])],
        }.items():
            job = await ledger.job(sha256, every)
            await ledger.save_opened(job.id, AUDIO, 40)
            for each in batches:
                await ledger.save_batch(job.id, each)
        await finish(ledger, Source("done.mp4", 5, "00"), every)
        await finish(ledger, Source("failed.mp4", 5, "22"), every, REFUSED)
        await ledger.job("11", second)

        paths = [*digests, "never.mp4", "done.mp4"]
        found = await ledger.look_up(paths, [second, every])
        expected = [await ledger.job(sha256, every) for sha256 in digests.values() if sha256 != "33"]
        half = await ledger.job("11", second)
    assert found[5] is None
    assert found[6] == found[0]
    assert [(each.stat, each.sha256) for each in found[:5]] == [(f"stat of {path}", digests[path]) for path in digests]
    assert [each.jobs[1] for each in found[:5]] == [*expected, None]
    assert [each.jobs[0] for each in found[:5]] == [None, half, None, None, None]
    assert found[1].jobs[1].missing == [Span(10, 20, 9), Span(30, 40, 29)]


@pytest.mark.parametrize("total", [0, 3, None])
async def test_the_job_of_audio_that_is_done_has_the_same_gaps_as_by_itself(tmp_path, total):
    async with Ledger(tmp_path) as ledger:
        settings = await ledger.settings_id({"model": "w"})
        source = Source("a.ogg", 5, "00")
        job = await ledger.job("00", settings)
        await ledger.save_opened(job.id, AUDIO, total)
        await ledger.save_batch(job.id, batch(0, 3, failures=[]))
        await ledger.save_digest("a.ogg", "stat", source)
        await finish(ledger, source, settings)
        (found,) = await ledger.look_up(["a.ogg"], [settings])
        assert found.jobs == [await ledger.job("00", settings)]


async def test_nothing_is_added_and_a_path_need_not_be_absolute_or_utf_8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.mp4")
    async with Ledger(tmp_path) as ledger:
        assert await ledger.look_up([], [1]) == []
        assert await ledger.look_up(["a.mp4"], []) == [None]
        await ledger.save_digest(name, "stat", Source(name, 5, "00"))
        for path in (name, str(tmp_path / name), f"x/../{name}"):
            assert await ledger.look_up([path], [1]) == [("stat", "00", [None])]
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    database.close()


async def test_a_page_of_files_takes_a_few_queries(tmp_path: Path, monkeypatch):
    statements: list[str] = []

    def connect(*arguments, **options):
        database = sqlite3.Connection(*arguments, **options)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(schema_module.sqlite3, "connect", connect)
    async with Ledger(tmp_path) as ledger:
        settings = await ledger.settings_id({"model": "m"})
        for k in range(300):
            ledger.save_digest(f"{k}.mp4", "stat", Source(f"{k}.mp4", 5, f"{k:02x}"))
            ledger.job(f"{k:02x}", settings)
        await ledger.look_up([], [])
        statements.clear()
        found = await ledger.look_up([f"{k}.mp4" for k in range(300)], [settings])
    assert [each.jobs[0].missing for each in found] == [[Span()]] * 300
    assert len([statement for statement in statements if "SELECT" in statement]) == 3
