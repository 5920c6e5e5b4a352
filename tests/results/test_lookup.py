"""Many files are looked up in the ledger at once."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

from reelscribe.contract.outcomes import Caption, Failure, SourceError
from reelscribe.contract.source import AudioInfo, Header, Source
from reelscribe.results import schema as schema_module
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.jobs import SavedAudio
from reelscribe.results.known_files import AskedFile, KnownFile
from reelscribe.results.ledger import Ledger
from reelscribe.results.schema import settings_text

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
        digests = {
            "done.mp4": "00" * 32,
            "half.mp4": "11" * 32,
            "failed.mp4": "22" * 32,
            "copy.mp4": "00" * 32,
            "new.mp4": "33" * 32,
        }
        for path, sha256 in digests.items():
            await ledger.save_digest(path, f"stat of {path}", Source(path, 5, sha256))
        for sha256, batches in {
            "00" * 32: [batch(0, 40)],
            "11" * 32: [batch(0, 10), batch(20, 30)],
            "22" * 32: [batch(0, 10), batch(10, 40, failures=[Failure(10, 1.0, "refused")])],
        }.items():
            job = await ledger.job(sha256, every)
            await ledger.save_opened(job.id, AUDIO, 40)
            for each in batches:
                await ledger.save_batch(job.id, each)
        await finish(ledger, Source("done.mp4", 5, "00" * 32), every)
        await finish(ledger, Source("failed.mp4", 5, "22" * 32), every, REFUSED)
        await ledger.job("11" * 32, second)

        await ledger.save_unreadable("bad.mp4", REFUSED)
        await ledger.save_header("bad.mp4", "stat of bad.mp4", Header(2.5, 25.0))

        names = [*digests, "never.mp4", "bad.mp4", "done.mp4"]
        models = {"captions": settings_text({"model": "m", "every": 1})}
        found = await ledger.look_up([AskedFile(name, f"stat of {name}", models) for name in names])
        models = {"captions": settings_text({"model": "x"})}
        other = await ledger.look_up([AskedFile("done.mp4", "stat of done.mp4", models)])
        changed = await ledger.look_up([AskedFile("done.mp4", "another", {})])
    assert found[5] == KnownFile()
    assert found[6] == KnownFile(header=Header(2.5, 25.0), has_record=True, was_unreadable=True)
    assert found[7] == found[0]
    assert [each.sha256 for each in found[:5]] == [*digests.values()]
    jobs = [each.jobs.get("captions") for each in found[:5]]
    assert [job and (job.total, job.saved, job.done, job.error) for job in jobs] == [
        (40, 40, True, None),
        (40, 20, False, None),
        (40, 40, True, REFUSED),
        (40, 40, True, None),
        None,
    ]
    assert (changed[0].sha256, changed[0].has_record) == (None, True)
    (shown,) = (each.shown["captions"] for each in other)
    assert (shown.settings, shown.job.saved, found[0].shown) == ({"model": "m", "every": 1}, 40, {})


async def test_nothing_is_added_and_a_path_need_not_be_absolute_or_utf_8(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.mp4")
    async with Ledger(tmp_path) as ledger:
        assert await ledger.look_up([]) == []
        assert await ledger.look_up([AskedFile("a.mp4", "stat", {})]) == [KnownFile()]
        await ledger.save_digest(name, "stat", Source(name, 5, "00" * 32))
        for path in (name, str(tmp_path / name), f"x/../{name}"):
            assert await ledger.look_up([AskedFile(path, "stat", {"captions": "{}"})]) == [KnownFile("00" * 32)]
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
            ledger.save_digest(f"{k}.mp4", "stat", Source(f"{k}.mp4", 5, f"{k:064x}"))
            ledger.job(f"{k:064x}", settings)
        await ledger.look_up([])
        statements.clear()
        models = {"captions": settings_text({"model": "m"})}
        found = await ledger.look_up([AskedFile(f"{k}.mp4", "stat", models) for k in range(300)])
    assert [each.jobs["captions"].saved for each in found] == [0] * 300
    assert len([statement for statement in statements if statement.split()[:1] == ["SELECT"]]) == 7


async def test_each_file_has_the_jobs_of_its_own_models(tmp_path):
    """Files of one content with other settings, which the record of one of them does not show yet."""
    german, french = ({"model": "m", "language": language} for language in ("de", "fr"))
    async with Ledger(tmp_path) as ledger:
        for path in ("a.mp4", "b.mp4"):
            await ledger.save_digest(path, "stat", Source(path, 5, "00" * 32))
            await finish(ledger, Source(path, 5, "00" * 32), await ledger.settings_id(german))
        await ledger.job("00" * 32, await ledger.settings_id(french))
        models = {"captions": settings_text(german)}, {"captions": settings_text(french)}
        asked = (AskedFile(path, "stat", each) for path, each in zip(("a.mp4", "b.mp4"), models, strict=True))
        one, other = await ledger.look_up([*asked])
    assert (one.jobs["captions"].done, one.shown) == (True, {})
    assert (other.jobs["captions"].done, other.shown["captions"].settings) == (False, german)
