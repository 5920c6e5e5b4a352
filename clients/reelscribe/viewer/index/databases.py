"""The databases of the index.

library.sqlite    `sources`: one row for each source, see `SourceRow`; `state`: what was read, as JSON, by name
texts-N.sqlite    `texts`: the words of all texts of some sources (FTS5); a text is named by `text_number`
records.jsonl     records of sources that the ledger finished since annotations.jsonl was written

A source that is read again gets a new number, so the texts of its earlier number are never found again. FTS5 cannot
delete from a table that has no texts; an index with more old texts than new ones is built anew.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from reelscribe._files import regular_file
from reelscribe.results.schema import connect, other_than_made
from reelscribe.viewer.index.source_row import SourceRow

VERSION = 4
"""Version of an index with these tables and this content of them, as SQLite's `user_version`."""

ANNOTATIONS, JOURNAL = 0, 1
"""Values of `SourceRow.file`: annotations.jsonl, and records.jsonl in the folder of the index."""

NAME = "index"
"""Name of the folder of an index in its cache."""

LIBRARY_NAME = "library.sqlite"
JOURNAL_NAME = "records.jsonl"

_COLUMNS = """
    doc INTEGER PRIMARY KEY, id TEXT, file INTEGER, start INTEGER, size INTEGER, digest BLOB, fingerprint BLOB,
    path TEXT, content TEXT, bytes INTEGER, missing INTEGER, video INTEGER, seconds REAL, state TEXT, error_type TEXT,
    error TEXT, title TEXT, captions INTEGER, clips INTEGER, segments INTEGER, shots INTEGER, failures INTEGER,
    languages TEXT, flags TEXT, found_by TEXT
"""
_SAVE = f"INSERT INTO sources VALUES ({', '.join('?' * len(SourceRow._fields))})"  # noqa: S608 - the text is our own

# The pages of the library find their sources in the second one alone, whatever the filter and the order.
_INDEXES = """
CREATE UNIQUE INDEX by_id ON sources (id);
CREATE INDEX by_path ON sources (path, seconds, failures, state, missing, error_type, languages, flags, found_by);
"""

_WORD_TABLE = """
CREATE VIRTUAL TABLE texts USING fts5 (words, content = '', columnsize = 0, detail = full, tokenize = 'ascii');
"""

# While it is built, words are kept in memory up to this many bytes, and what was written is not merged.
_HASH_BYTES = 2**24


@dataclass(frozen=True)
class IndexState:
    """The state of an index, which it keeps in itself."""

    stamp: tuple[int, ...]
    """The stamp of annotations.jsonl when it was read, from `stamp_of`; empty for no file."""
    shards: int
    next_doc: int
    """Number of the next source."""
    docs: int
    """Number of sources whose texts are in the index, with those that are there no more."""
    bad_lines: int
    example: str
    """The first line that is not a record, and why it is none; empty if there is none."""


def texts_name(shard: int) -> str:
    """Return the name of the database of the texts of a shard."""
    return f"texts-{shard}.sqlite"


def new_database(path: Path) -> sqlite3.Connection:
    """Make a database that nobody else uses before it is complete: nothing of it survives a crash."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA page_size = 8192")
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    return database


def make_sources(database: sqlite3.Connection) -> None:
    """Make the table of sources without its indexes, which are faster to make later."""
    database.execute(f"CREATE TABLE sources ({_COLUMNS})")


def save_sources(database: sqlite3.Connection, rows: Iterable[SourceRow]) -> None:
    """Save new rows of sources."""
    database.executemany(_SAVE, rows)


def replace_sources(library: sqlite3.Connection, rows: Sequence[SourceRow]) -> None:
    """Save rows in place of earlier ones of the same sources; of two rows of one source, the last one stays."""
    latest = {row.id: row for row in rows}
    library.executemany("DELETE FROM sources WHERE id = ?", [[id_] for id_ in latest])
    save_sources(library, latest.values())


def save_state(library: sqlite3.Connection, state: IndexState) -> None:
    """Save what the index was made of in its library."""
    library.execute("INSERT OR REPLACE INTO state VALUES ('state', ?)", [json.dumps(asdict(state))])


def load_state(library: sqlite3.Connection) -> IndexState:
    """Return what the index was made of. Raises ValueError or KeyError if the library has no such state."""
    values = dict(library.execute("SELECT name, value FROM state"))
    state = msgspec.json.decode(values["state"], type=IndexState)
    if state.shards < 1:
        raise ValueError(f"expected at least one database of texts, got {state.shards}")
    return state


def make_library(database: sqlite3.Connection) -> None:
    """Give a table of sources its indexes. Of several rows with one id, the last one stays."""
    database.execute("DELETE FROM sources WHERE doc NOT IN (SELECT max(doc) FROM sources GROUP BY id)")
    database.executescript(_INDEXES)
    database.execute("CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    database.execute(f"PRAGMA user_version = {VERSION}")


def make_texts(database: sqlite3.Connection) -> None:
    """Make the table of texts, prepared to take many at once."""
    database.execute(_WORD_TABLE)
    configure_texts(database, hashsize=_HASH_BYTES, automerge=0, crisismerge=2000)


def end_building(database: sqlite3.Connection) -> None:
    """Prepare a table of texts that is built for few new texts at a time."""
    configure_texts(database, hashsize=2**20, automerge=4, crisismerge=16)


def configure_texts(database: sqlite3.Connection, **options: int) -> None:
    """Set options of FTS5, by their names there."""
    for name, value in options.items():
        database.execute("INSERT INTO texts (texts, rank) VALUES (?, ?)", [name, value])


def save_texts(database: sqlite3.Connection, texts: Iterable[tuple[int, str]]) -> None:
    """Add texts to the index: the number of each, and its words."""
    database.executemany("INSERT INTO texts (rowid, words) VALUES (?, ?)", texts)


def check_tables(folder: Path) -> IndexState:
    """Return what the index in a folder was made of, after a check that it has what this version makes, and no more.

    A folder may come from somebody else, with triggers, which would run when the index is written, with views, or with
    names of other files for its own.

    Raises:
        OSError, sqlite3.Error, ValueError, KeyError: It has not.
    """
    with closing(open_database(folder / LIBRARY_NAME)) as library:
        _check_schema(library, _make_whole_library)
        if library.execute("PRAGMA user_version").fetchone() != (VERSION,):
            raise ValueError("another version")
        state = load_state(library)
    for shard in range(state.shards):
        with closing(open_database(folder / texts_name(shard))) as texts:
            _check_schema(texts, make_texts)
    for path in folder.iterdir():
        status = path.lstat()
        # Another name of a file may be one that a user has given it, as copies of folders made of hard links have.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise ValueError(f"{path.name} is not a file of its own")
    return state


def _make_whole_library(database: sqlite3.Connection) -> None:
    make_sources(database)
    make_library(database)


def _check_schema(database: sqlite3.Connection, make: Callable[[sqlite3.Connection], None]) -> None:
    """Raise ValueError if a database has not the very tables and indexes that a function makes."""
    if other := other_than_made(database, make):
        raise ValueError(f"expected other tables, got another {other}")


def is_damage(error: BaseException) -> bool:
    """Return whether an error of SQLite tells that a database is damaged, or does not fit the others of its index."""
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)


def open_journal(folder: Path, *, write: bool = False) -> int:
    """Open the records of the ledger in the folder of an index, and return the descriptor. Links are not followed."""
    mode = os.O_RDWR | os.O_APPEND | os.O_CREAT if write else os.O_RDONLY
    return regular_file(folder / JOURNAL_NAME, mode | os.O_NOFOLLOW, 0o644)


def open_database(path: Path, *, write: bool = False) -> sqlite3.Connection:
    """Open a database of an index that is complete. Raises sqlite3.Error if it cannot be used."""
    database = connect(path, f"mode={'rw' if write else 'ro'}")
    if write:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")
    else:
        database.execute("PRAGMA query_only = ON")
        database.execute("PRAGMA cache_size = -4096")
    return database
