"""The sources that a ledger knows: their records stay until they are forgotten."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from reelscribe.contract.outcomes import Caption, Silence, SourceError
from reelscribe.contract.source import Header, Source
from reelscribe.results.batches import SavedAudioBatch, SavedFrameBatch
from reelscribe.results.known_files import AskedFile, look_up
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import Kind, Record
from support.memory import peak_memory

CAPTIONER = {"model": ["some/model", "abc"], "sampling": {"every": 1}}
WHISPER = {"model": ["some/whisper", "def"], "sample_rate": 100}
GONE = SourceError("MediaError", "it cannot be read")


async def finish(ledger: Ledger, source: Source, kind: Kind, text: str = "", **settings: object) -> None:
    """Save a source with a result of one kind that is done."""
    chosen = {**(CAPTIONER if kind == "captions" else WHISPER), **settings}
    job = await ledger.job(source.sha256, await ledger.settings_id(chosen))
    saved = {
        "captions": SavedFrameBatch(0, 1, 0, captions=[Caption(0, 0.0, text)]),
        "transcript": SavedAudioBatch(0, 200, silences=[Silence(0.0, 2.0)]),
    }[kind]
    await ledger.save_batch(job.id, saved)
    await ledger.save_source(source, {kind: job})


def captions_of(record: Record) -> list[str]:
    return [caption.text for caption in record.caption_result.captions()] if record.caption_result else []


@pytest.fixture
def records(tmp_path) -> Iterator[Callable[[], dict[str, Record]]]:
    """Return the records of the ledger by the names of their sources. Their results can be read until the test ends."""
    with ExitStack() as stack:

        def records() -> dict[str, Record]:
            reader = stack.enter_context(LedgerReader(tmp_path))
            return {record.source.path: record for record in reader.records()}

        yield records


async def test_a_record_has_the_newest_result_of_each_kind(tmp_path):
    source = Source(str(tmp_path / "a.mp4"), 5, "00ff")
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, source, "captions", "old")
        await finish(ledger, source, "transcript")
        await finish(ledger, source, "captions", "new", sampling={"every": 2})
        with LedgerReader(tmp_path) as reader:
            record = reader.record(source.path)
            assert captions_of(record) == ["new"]
            assert record.caption_result.settings.settings == {"sampling": {"every": 2}}
            assert list(record.transcript_result.silences()) == [Silence(0.0, 2.0)]
            assert record.transcript_result.decoded_seconds == 2.0
        assert (record.source, record.status) == (source, "ok")


async def test_records_come_in_the_order_of_absolute_paths(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Ledger(tmp_path) as ledger:
        for name in ("c.mp4", str(tmp_path / "b.mp4"), "d/../a.mp4"):
            await finish(ledger, Source(name, 5, "00ff"), "captions")
    assert list(records()) == ["d/../a.mp4", str(tmp_path / "b.mp4"), "c.mp4"]


async def test_a_source_has_one_record_under_the_name_that_it_was_last_given(records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, Source("caf\udce9.mp4", 5, "00ff"), "captions", "first")
        await finish(ledger, Source(str(tmp_path / "caf\udce9.mp4"), 5, "00ff"), "transcript")
    found = records()
    assert list(found) == [str(tmp_path / "caf\udce9.mp4")]
    assert [captions_of(record) for record in found.values()] == [["first"]]


async def test_a_source_that_cannot_be_read_keeps_its_results_and_has_an_error(records, tmp_path):
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, Source("/v/a.mp4", 5, "00ff"), "captions", "a star")
        await ledger.save_unreadable("/v/a.mp4", GONE)
        await ledger.save_unreadable("/v/never.mp4", GONE)
    old, never = records().values()
    assert (old.error, captions_of(old), old.source.sha256) == (GONE, ["a star"], "00ff")
    assert (never.error, never.caption_result, never.source) == (GONE, None, Source("/v/never.mp4"))


async def test_a_file_that_was_changed_has_no_result_of_its_earlier_content(records, tmp_path):
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, Source("/v/a.mp4", 5, "00ff"), "captions", "before")
        await finish(ledger, Source("/v/a.mp4", 6, "11ff"), "transcript")
    (record,) = records().values()
    assert (record.source.sha256, record.caption_result) == ("11ff", None)


async def test_sources_that_are_gone_from_the_disk_are_marked_until_they_are_back(records, tmp_path):
    path = tmp_path / "a.mp4"
    async with Ledger(tmp_path) as ledger:
        await finish(ledger, Source(str(path), 5, "00ff"), "captions", "a star")
        for there in (False, True, False):
            path.touch() if there else path.unlink(missing_ok=True)
            await ledger.mark_missing()
            (record,) = records().values()
            assert (record.missing, captions_of(record)) == (not there, ["a star"])


async def test_marking_many_sources_holds_few_of_them_in_memory(tmp_path):
    paths = [tmp_path / f"{number:04}.mp4" for number in range(9000)]
    for path in paths[:3000]:
        path.touch()
    async with Ledger(tmp_path) as ledger:
        await asyncio.gather(*(ledger.save_unreadable(str(path), GONE) for path in paths[:8000]))
        await asyncio.gather(*(ledger.save_source(Source(str(path), 5, "00ff"), {}) for path in paths[8000:]))
        with peak_memory() as peak:
            assert await ledger.mark_missing() == 1000  # which a run has read, as it has not those that never were
    with LedgerReader(tmp_path) as reader:
        assert [source.missing for source in reader.sources()] == [False] * 3000 + [True] * 6000
    assert peak() < 1_000_000  # all of them take 2.8 MB


async def test_what_is_forgotten_is_gone_unless_another_source_has_the_same_content(records, tmp_path):
    async with Ledger(tmp_path) as ledger:
        for path, sha256 in (("/v/a.mp4", "00ff"), ("/v/copy.mp4", "00ff"), ("/v/b.mp4", "11ff")):
            await ledger.save_digest(path, "stat", Source(path, 5, sha256))
            await finish(ledger, Source(path, 5, sha256), "captions", path)
        with LedgerReader(tmp_path) as reader:
            first, second, _ = reader.sources()
        await ledger.forget_sources([first, second])
        assert await ledger.find_digest("/v/a.mp4", "stat") is None
        again = await ledger.job("11ff", await ledger.settings_id(CAPTIONER))
        kept = await ledger.job("00ff", await ledger.settings_id(CAPTIONER))
    assert [source.name for source in (first, second)] == ["/v/a.mp4", "/v/b.mp4"]
    assert list(records()) == ["/v/copy.mp4"]
    assert (kept.done, again.done) == (True, False)


@pytest.mark.parametrize("header", [Header(2.5, 25.0), Header(None, 0.0), Header(2.5, None)])
async def test_what_a_header_says_is_found_until_the_file_changes(tmp_path, header):
    async with Ledger(tmp_path) as ledger:
        await ledger.save_header("a.mp4", "stat", header)
    with LedgerReader(tmp_path) as reader:
        known, changed = look_up(reader.select, [AskedFile("./a.mp4", "stat", {}), AskedFile("a.mp4", "another", {})])
    assert (known.header, changed.header) == (header, None)


async def test_a_source_that_is_forgotten_takes_no_result_of_another_with_it(records, tmp_path):
    """P had the content of Q before it changed, and its transcript of that content is still noted."""
    async with Ledger(tmp_path) as ledger:
        for path in ("/v/p.mp4", "/v/q.mp4"):
            await finish(ledger, Source(path, 5, "00ff"), "transcript")
        await finish(ledger, Source("/v/p.mp4", 6, "11ff"), "captions", "new")
        with LedgerReader(tmp_path) as reader:
            (forgotten,) = [source for source in reader.sources() if source.name == "/v/q.mp4"]
        await ledger.forget_sources([forgotten])
        await finish(ledger, Source("/v/r.mp4", 5, "11ff"), "captions", "other", sampling={"every": 2})
    found = records()
    assert {path: captions_of(record) for path, record in found.items()} == {"/v/p.mp4": ["new"], "/v/r.mp4": ["other"]}
    assert found["/v/p.mp4"].transcript_result is None
