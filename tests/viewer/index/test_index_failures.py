"""A problem of the index is told and tried again; the earlier index is shown meanwhile."""

import os
import shutil
import sqlite3
import sys
from concurrent.futures import BrokenExecutor
from contextlib import closing
from pathlib import Path

import pytest

from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.viewer.browse.serve import serving
from reelscribe.viewer.content.search_page import SearchPage
from reelscribe.viewer.index import building, databases, source_index
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.pages.parameters import SearchQuery
from support.browsing import caption, count_hits, found, names, open_index, segments, write_annotations
from support.exporting import record
from support.videos import write

MANY = [record(f"{k:03}.mp4", segments=segments("common", f"word{k}")) for k in range(40)]


@pytest.fixture(autouse=True)
def soon_anew(monkeypatch):
    """An index is built anew when more than ten lines are new."""
    monkeypatch.setattr(source_index, "_FEW_LINES", 10)


def failing(monkeypatch, name: str, error: BaseException, times: int = 1) -> None:
    """Let a function of the index fail so many times."""
    real, errors = getattr(source_index, name), [error] * times

    def fail(*arguments, **options):
        if errors:
            raise errors.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(source_index, name, fail)


def damage(out: Path, name: str) -> None:
    """Overwrite the pages of a database of the index, but for the first one."""
    path = out / ".browse" / "index" / name
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (path.stat().st_size - 8192))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), BrokenExecutor("killed"), sqlite3.OperationalError("disk I/O")]
)
@pytest.mark.parametrize("step", ["build", "IndexWriter"])
def test_a_build_that_fails_is_told_and_tried_again(tmp_path, monkeypatch, thumbnails, error, step):
    write_annotations(tmp_path, *MANY[:2])
    with open_index(tmp_path) as index:
        write_annotations(tmp_path, *MANY)
        failing(monkeypatch, step, error)
        index.refresh()
        (notice,) = index.notices
        assert notice.startswith("The index cannot be brought up to date with annotations.jsonl: ")
        assert found(index, "word1", thumbnails) == ["[word1]"]  # as before
        index.refresh()
        assert (index.notices, len(index.docs), count_hits(index, "common")) == ((), 40, 40)


def test_an_index_that_cannot_be_opened_again_either_is_no_end(tmp_path, monkeypatch):
    write_annotations(tmp_path, *MANY[:2])
    with open_index(tmp_path) as index:
        write_annotations(tmp_path, *MANY)
        failing(monkeypatch, "IndexWriter", OSError(28, "No space left on device"), times=2)
        index.refresh()
        with pytest.raises(OutputError, match="there is no index now"):
            names(index)
        index.refresh()
        assert (index.notices, len(names(index))) == ((), 40)


def test_what_takes_the_place_of_its_folder_is_no_end(tmp_path):
    write_annotations(tmp_path, *MANY)
    with open_index(tmp_path) as index:
        shutil.move(tmp_path / ".browse", tmp_path / "moved")
        (tmp_path / ".browse").write_text("content")
        index.refresh()
        assert any("Not a directory" in notice for notice in index.notices)
        (tmp_path / ".browse").unlink()
        (tmp_path / ".browse").mkdir()
        index.refresh()
        assert (index.notices, len(index.docs), count_hits(index, "common")) == ((), 40, 40)


def test_a_process_that_dies_while_it_reads_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_BYTES_OF_SHARD", 5000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(building, "_begin_process", sys.exit)
    write_annotations(tmp_path, *MANY)
    with pytest.raises(OutputError, match="a process that was reading it ended unexpectedly"), serving(tmp_path):
        pass


def test_a_database_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    write_annotations(tmp_path, *MANY[:2])
    failing(monkeypatch, "build", sqlite3.OperationalError("database or disk is full"))
    with pytest.raises(OutputError, match="database or disk is full"), serving(tmp_path):
        pass


def test_damage_that_a_search_finds_is_mended(tmp_path, thumbnails):
    write_annotations(tmp_path, *MANY)
    with open_index(tmp_path):
        pass
    damage(tmp_path, databases.texts_name(0))
    with open_index(tmp_path) as index:
        with pytest.raises(OutputError, match="being built anew"):
            count_hits(index, "common")
        assert "being built anew" in " ".join(index.notices)
        index.refresh()
        assert (index.notices, count_hits(index, "common")) == ((), 40)


def test_hits_are_those_of_the_index_that_is_there_when_they_are_listed(tmp_path, thumbnails):
    write_annotations(tmp_path, *MANY[:2])
    with open_index(tmp_path) as index:
        page = SearchPage(index, thumbnails)
        hits = page.all_hits(SearchQuery("common"))
        first = next(hits)
        write_annotations(tmp_path, *(record(f"other{k}.mp4", segments=segments("something else")) for k in range(40)))
        index.refresh()
        assert [hit.row.path for hit in (first, *hits)] == [os.path.abspath(f"{k:03}.mp4") for k in range(2)]
        assert list(page.all_hits(SearchQuery("common"))) == []


@pytest.fixture
async def out(tmp_path) -> Path:
    """A run of three sources, of which the ledger has a part that was damaged in the second one."""
    paths = [tmp_path / f"{name}.mp4" for name in ("first", "second", "third")]
    for k, path in enumerate(paths):
        write(path, "libx264", [50 + k] * 5)
    await caption(tmp_path / "out", *paths)
    (tmp_path / "out" / "annotations.jsonl").unlink()
    with closing(sqlite3.connect(tmp_path / "out" / "ledger.sqlite")) as database, database:
        jobs = "SELECT job FROM results WHERE path = ?"
        damaged = f"UPDATE batches SET results = 'no JSON' WHERE job IN ({jobs})"
        database.execute(damaged, [os.fsencode(paths[1])])
    return tmp_path / "out"


async def test_a_damaged_row_of_the_ledger_costs_its_own_source(out):
    journal = out / ".browse" / "index" / databases.JOURNAL_NAME
    with open_index(out) as index:
        assert names(index) == ["first.mp4", "third.mp4"]
        (notice,) = index.notices
        assert f"1 source whose results cannot be read; the first is {out.parent}/second.mp4: " in notice
        size = journal.stat().st_size
        os.utime(out / "ledger.sqlite")  # as if a run had written something else to it
        index.refresh()
        assert journal.stat().st_size == size > 0


async def test_what_cannot_be_indexed_is_not_kept_either(out, monkeypatch):
    journal = out / ".browse" / "index" / databases.JOURNAL_NAME
    failing(monkeypatch, "replace_sources", sqlite3.OperationalError("database or disk is full"))
    with open_index(out) as index:
        assert "database or disk is full" in " ".join(index.notices)
        assert journal.stat().st_size == 0
        index.refresh()
        assert names(index) == ["first.mp4", "third.mp4"]


async def test_reading_the_ledger_ends_soon_when_nobody_waits_any_more(out, monkeypatch):
    monkeypatch.setattr(source_index, "_SOURCES_AT_ONCE", 1)
    (out / ".browse").mkdir()
    record_of = LedgerReader.record
    with SourceIndex(out, out / ".browse") as index:

        def stop_and_read(*arguments):
            index.stop()
            return record_of(*arguments)

        monkeypatch.setattr(LedgerReader, "record", stop_and_read)
        index.refresh()
        assert names(index) == ["first.mp4"]
        assert not index.refresh()


def test_a_build_ends_soon_when_nobody_waits_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_TEXTS_AT_ONCE", 1)
    write_annotations(tmp_path, *MANY[:2])
    with open_index(tmp_path) as index:
        real = source_index.build

        def stop_and_build(*arguments):
            index.stop()
            return real(*arguments)

        monkeypatch.setattr(source_index, "build", stop_and_build)
        write_annotations(tmp_path, *MANY)
        assert not index.refresh()
        assert len(index.docs) == 2
        assert sorted(os.listdir(tmp_path / ".browse")) == ["index"]
