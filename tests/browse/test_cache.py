"""A cache that came from somebody else: nothing is written to, read or deleted through what it has."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from reelscribe.browse.index import tables
from reelscribe.browse.media import MediaFiles
from reelscribe.browse.previews import Previews
from reelscribe.browse.serve import cache_folder
from support.browsing import count_hits, names, open_index, segments, write_annotations
from support.exporting import record

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


@pytest.mark.parametrize(
    "name", ["index/records.jsonl", "index/texts-0.sqlite", "previews", "thumbnails", "new", "lock"]
)
def test_a_cache_with_a_link_is_left_as_it_is(cache, victim, name):
    (cache / name).unlink(missing_ok=True)
    (cache / name).symlink_to(victim if "." in name else victim.parent)
    with cache_folder(cache.parent) as used:
        assert used.folder != cache
        assert "symbolic link" in used.notice
        Previews(used.folder, MediaFiles(cache.parent), most_bytes=0)
    assert victim.read_text() == "precious"
    assert os.listdir(victim.parent) == [victim.name]


@pytest.mark.parametrize("name", [tables.JOURNAL_NAME, tables.LIBRARY_NAME, tables.texts_name(0)])
def test_an_index_with_files_that_have_other_names_is_built_anew(cache, tmp_path, name):
    os.link(cache / "index" / name, tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    write_annotations(cache.parent, *RECORDS, record("new.mp4", "new"))
    with open_index(cache.parent) as index:
        assert count_hits(index, "common") == 5
    assert (tmp_path / "other").read_bytes() == before


def test_the_journal_is_not_opened_through_a_link(cache, victim):
    (cache / "index" / tables.JOURNAL_NAME).unlink()
    (cache / "index" / tables.JOURNAL_NAME).symlink_to(victim)
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
    library = cache / "index" / tables.LIBRARY_NAME
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
    Previews(tmp_path, MediaFiles(tmp_path))
    assert set(os.listdir(folder)) == others
