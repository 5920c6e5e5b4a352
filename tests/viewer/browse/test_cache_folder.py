"""The cache of pages: a deleted one is made again, and through one of somebody else nothing is read or written."""

import asyncio
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from reelscribe.errors import OutputError
from reelscribe.viewer.browse.cache_folder import cache_folder
from reelscribe.viewer.index import databases
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.media.media_files import MediaFiles
from reelscribe.viewer.media.source_previews import SourcePreviews
from support.browsing import browsing, count_hits, names, open_index, segments, write_annotations
from support.exporting import record
from support.patience import PATIENCE

RECORDS = [record(f"{k}.mp4", segments=segments("common", f"word{k}")) for k in range(5)]


@pytest.fixture
def cache(tmp_path) -> Path:
    """The cache of a folder of results, which has an index."""
    out = tmp_path / "out"
    write_annotations(out, *RECORDS)
    with open_index(out):
        return out / ".browse"


@pytest.fixture
def victim(tmp_path) -> Path:
    """A file of the user, elsewhere."""
    path = tmp_path / "home" / "precious.webm"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def test_others_cannot_write_to_the_lock_or_the_records_of_a_cache_whatever_the_mask_is(tmp_path):
    mask = os.umask(0)
    try:
        with cache_folder(tmp_path) as cache:
            os.close(databases.open_journal(cache.folder, write=True))
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in cache.folder.iterdir()}
    assert modes == {"lock": 0o644, databases.JOURNAL_NAME: 0o644}


@pytest.mark.parametrize(
    "name", ["index/records.jsonl", "index/texts-0.sqlite", "previews", "thumbnails", "new", "lock"]
)
def test_a_cache_with_a_link_is_left_as_it_is(cache, victim, name):
    (cache / name).unlink(missing_ok=True)
    (cache / name).symlink_to(victim if "." in name else victim.parent)
    with cache_folder(cache.parent) as used:
        assert used.folder != cache
        assert "symbolic link" in used.notice
        SourcePreviews(used.folder, MediaFiles(cache.parent), most_bytes=0)
    assert victim.read_text() == "precious"
    assert os.listdir(victim.parent) == [victim.name]


@pytest.mark.parametrize("name", [databases.JOURNAL_NAME, databases.LIBRARY_NAME, databases.texts_name(0)])
def test_an_index_with_files_that_have_other_names_is_built_anew(cache, tmp_path, name):
    os.link(cache / "index" / name, tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    write_annotations(cache.parent, *RECORDS, record("new.mp4", "new"))
    with open_index(cache.parent) as index:
        assert count_hits(index, "common") == 5
    assert (tmp_path / "other").read_bytes() == before


def test_the_journal_is_not_opened_through_a_link(cache, victim):
    (cache / "index" / databases.JOURNAL_NAME).unlink()
    (cache / "index" / databases.JOURNAL_NAME).symlink_to(victim)
    write_annotations(cache.parent, *RECORDS[:2])
    with open_index(cache.parent) as index:
        assert names(index) == ["0.mp4", "1.mp4"]
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER DELETE ON sources BEGIN UPDATE sources SET path = 'forged'; END",
        "CREATE VIEW v AS SELECT * FROM sources",
        "CREATE INDEX i ON sources (abs(doc))",
    ],
)
def test_an_index_with_more_than_its_tables_is_built_anew(cache, statement):
    library = cache / "index" / databases.LIBRARY_NAME
    with closing(sqlite3.connect(library)) as database, database:
        database.execute(statement)
    write_annotations(cache.parent, *RECORDS[:4])
    with open_index(cache.parent) as index:
        assert names(index) == ["0.mp4", "1.mp4", "2.mp4", "3.mp4"]
    with closing(sqlite3.connect(library)) as database:
        assert not database.execute("SELECT name FROM sqlite_master WHERE name IN ('t', 'v', 'i')").fetchall()


def test_previews_delete_only_what_has_their_names(tmp_path):
    folder = tmp_path / "previews"
    folder.mkdir()
    others = {"holiday.webm", "film.partial", f"{'a' * 64}.webm.partial.txt"}
    for name in (*others, f"{'a' * 64}.webm.partial"):
        (folder / name).write_text("content")
    SourcePreviews(tmp_path, MediaFiles(tmp_path))
    assert set(os.listdir(folder)) == others


@pytest.mark.parametrize("deleted", ["", "index", "index/library.sqlite"])
def test_a_cache_that_is_deleted_while_it_is_used_is_made_again(tmp_path, deleted):
    out = tmp_path / "out"
    write_annotations(out, *RECORDS)
    with cache_folder(out) as cache, SourceIndex(out, cache.folder) as index:
        path = cache.folder / deleted
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        with pytest.raises(OutputError, match="was deleted, and is being built anew"):
            count_hits(index, "common")
        cache.restore()
        index.refresh()
        assert (index.notices, count_hits(index, "common"), len(names(index))) == ((), 5, 5)
        with cache_folder(out) as other:  # it is locked again, too
            assert "another `reelscribe browse` uses it" in other.notice


def test_a_cache_that_another_one_has_made_meanwhile_is_left_to_it(tmp_path):
    with cache_folder(tmp_path) as cache:
        shutil.rmtree(cache.folder)
        with cache_folder(tmp_path) as other:
            assert other.folder == cache.folder
            with pytest.raises(OSError, match="another `reelscribe browse` uses it"):
                cache.restore()
        cache.restore()


async def test_pages_are_there_again_soon_after_their_cache_was_deleted(tmp_path):
    write_annotations(tmp_path, *RECORDS)
    with browsing(tmp_path) as address:
        async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE):

            async def status(path):
                async with client.get(address + path) as response:
                    return response.status

            shutil.rmtree(tmp_path / ".browse")
            found = {503}
            while found != {200}:  # of many at once, some need files that nobody has opened before
                found = set(await asyncio.gather(*map(status, ["", "search?q=common", "search.csv?q=word1"] * 5)))
                assert found <= {200, 503}
            while not (tmp_path / ".browse" / "index").exists():
                assert await status("run") in (200, 503)


async def test_lists_can_be_downloaded_again_when_what_took_the_place_of_their_cache_is_gone(tmp_path):
    write_annotations(tmp_path, *RECORDS)
    cache = tmp_path / ".browse"
    with browsing(tmp_path) as address:
        async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE):
            shutil.move(cache, tmp_path / "moved")
            cache.write_text("content")
            async with client.get(f"{address}search.csv?q=common") as response:
                assert response.status == 503
            cache.unlink()
            status = 503
            while status != 200:  # as soon as the index has been built anew
                assert status == 503
                async with client.get(f"{address}search.csv?q=common") as response:
                    status = response.status
