"""The tables of the ledger, and how it is opened.

files      The digest of each file, with the `file_stat` that the file had before it was read. A path is stored as
           the bytes of its absolute name.
headers    The duration in seconds and the frames per second that the header of each file states, with its
           `file_stat`; NULL for what it does not state.
settings   Each model with its settings, as JSON with sorted keys.
jobs       One row for each content and settings: what is known of the opened source (JSON; NULL if none was
           opened), its total number of chosen frames or samples, whether the job is done, and the error that it
           ended with (JSON).
batches    The saved batches of a job: the frames or samples from `first` to before `stop`, and their results (JSON;
           see batches.py).
sources    Each source that a run has finished: its name as it was last given, size, digest, why it could not be
           read (JSON), and whether it was gone from the disk when the last run ended.
extras     What lists of sources say of sources besides their names, as JSON objects, saved when a source is listed.
           So nodes need not return it, sources that fail have it, too, and later runs without the list keep it.
results    For each source and each kind of annotations, the newest job that is done.
run        A single row: the state of the latest run, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from reelscribe._files import regular_file
from reelscribe.errors import MALFORMED, OutputError, printable
from reelscribe.storage.address import absolute_name

NAME = "ledger.sqlite"
"""Name of the ledger in an output folder."""

VERSION = 2
"""Version of a ledger with these tables, as SQLite's `user_version`. There are no migrations: whoever changes the
tables raises it, and decides what is taken over."""

FIND_SPANS = "SELECT first, stop, anchor FROM batches WHERE job = ? ORDER BY first"
"""Finds the frames or samples of the saved batches of a job, for `job_from_row`."""

_EDITED = "it was edited or is damaged: put back a copy from before that, or choose another --out"

_JOURNAL_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that names one more file (https://sqlite.org/fileformat2.html#the_rollback_journal)."""

_OWN_TABLES = {"files", "settings", "jobs", "run"}
"""Tables by which a ledger is told from the database of another program."""

_STATISTICS = {
    ("table", name, name, f"CREATE TABLE {name}({columns})")
    for name, columns in [("sqlite_stat1", "tbl,idx,stat"), ("sqlite_stat4", "tbl,idx,neq,nlt,ndlt,sample")]
}
"""What ANALYZE adds to a schema, which others may run on a database to make it faster."""

_TABLES = f"""
CREATE TABLE files (path BLOB PRIMARY KEY, stat TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE headers (path BLOB PRIMARY KEY, stat TEXT NOT NULL, seconds REAL, frames_per_second REAL) WITHOUT ROWID;
CREATE TABLE settings (id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, settings INTEGER NOT NULL REFERENCES settings,
    opened TEXT, total INTEGER, done INTEGER NOT NULL DEFAULT 0, error TEXT, UNIQUE (sha256, settings)
);
CREATE TABLE batches (
    job INTEGER NOT NULL REFERENCES jobs, first INTEGER NOT NULL, stop INTEGER NOT NULL, anchor INTEGER,
    results TEXT NOT NULL, PRIMARY KEY (job, first)
) WITHOUT ROWID;
CREATE TABLE sources (
    path BLOB PRIMARY KEY, name BLOB NOT NULL, bytes INTEGER, sha256 TEXT, error TEXT,
    missing INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX sources_by_content ON sources (sha256);
CREATE TABLE results (
    path BLOB NOT NULL, kind TEXT NOT NULL, job INTEGER NOT NULL REFERENCES jobs, PRIMARY KEY (path, kind)
) WITHOUT ROWID;
CREATE TABLE extras (path BLOB PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


def connect(path: Path, parameters: str = "mode=rwc") -> sqlite3.Connection:
    """Open a database that may come from somebody else, and whose content the caller checks.

    SQLite opens what lies beside a database, too. It would wait for ever for a pipe there, and a journal can name one
    more file, anywhere, that SQLite deletes after it has undone what the journal says.

    Args:
        path: The database.
        parameters: Those of SQLite's addresses.

    Raises:
        OutputError: It, or what SQLite keeps beside it, is no file, or its journal is not that of one database.
        sqlite3.Error: It cannot be opened.
    """
    place = os.path.realpath(path)
    for beside in (place, *(f"{place}-{each}" for each in ("journal", "wal", "shm"))):
        # They are not opened here: closing a file ends the locks that this process has on it by SQLite.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(beside).st_mode):
                raise OutputError(f"{beside}: expected a file or nothing there; remove it")
    with suppress(FileNotFoundError), open(f"{place}-journal", "rb", opener=regular_file) as journal:
        journal.seek(max(0, journal.seek(0, os.SEEK_END) - len(_JOURNAL_NAMES_ANOTHER)))
        if journal.read() == _JOURNAL_NAMES_ANOTHER:
            raise OutputError(
                f"{place}-journal: expected the journal of one database, got one that names another file, which"
                " reelscribe never writes; choose another --out"
            )
    address = f"{path.absolute().as_uri()}?{parameters}"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def open_ledger(path: Path) -> sqlite3.Connection:
    """Open a ledger to write to it; it is created if it is missing.

    Args:
        path: The ledger.

    Raises:
        OutputError: It is a symbolic link, or `_has_tables` refuses it. Nothing was written to it.
        sqlite3.Error: It cannot be opened.
    """
    if path.is_symlink():  # the lock is that of this folder, and another folder may have the same ledger
        raise OutputError(f"{path}: a symbolic link; expected a file or nothing there; link the folder instead")
    database = connect(path)
    try:
        has_tables = _has_tables(database, path)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if not has_tables:
            database.executescript(f"BEGIN; {_TABLES} COMMIT;")
    except BaseException:
        database.close()
        raise
    return database


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a ledger to read it, also in a folder or on a file system that cannot be written to.

    SQLite refuses to read a database with a write-ahead log where it cannot create the log's files. Where there is no
    log, nobody writes, so the database is opened as one that does not change.

    Args:
        path: The ledger.

    Raises:
        OutputError: `_has_tables` refuses it.
        sqlite3.Error: It cannot be read.
    """
    parameters = "mode=ro"
    if not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists():
        parameters += "&immutable=1"
    database = connect(path, parameters)
    try:
        _has_tables(database, path)
    except BaseException:
        database.close()
        raise
    return database


def copy_ledger(path: Path, copy: Path) -> None:
    """Copy a ledger as it is at one moment, also while a run writes to it, which does not wait for that.

    Args:
        path: The ledger.
        copy: The copy, which does not exist yet.

    Raises:
        OutputError: The ledger cannot be read, or the copy cannot be written.
    """
    with output_errors(copy, "written"), closing(open_to_read(path)) as ledger, closing(sqlite3.connect(copy)) as other:
        ledger.backup(other)


def open_memory(path: Path, *tables: str) -> sqlite3.Connection:
    """Open a small database that one process at a time uses, with any of its threads; it is created if it is missing.

    Args:
        path: The database.
        *tables: Its tables, as `CREATE TABLE IF NOT EXISTS` takes them. One of an earlier version may lack some.

    Raises:
        OutputError: It is a symbolic link, or has anything else than these tables. Nothing was written to it.
        sqlite3.Error: It cannot be opened, or another process has it open.
    """
    if path.is_symlink():
        raise OutputError(f"{path}: a symbolic link; expected a file or nothing there; remove it")
    database = connect(path)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        there = {name for _, name, *_ in _schema(database)}
        created = {each: f"CREATE TABLE IF NOT EXISTS {each};" for each in tables}
        known = "".join(create for each, create in created.items() if each.split()[0] in there)
        _check_schema(database, path, lambda expected: expected.executescript(known))
        database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; BEGIN EXCLUSIVE;"
            f" {''.join(created.values())} COMMIT;"
        )
    except BaseException:
        database.close()
        raise
    return database


def _has_tables(database: sqlite3.Connection, path: Path) -> bool:
    """Return whether a ledger has its tables; a new one has none.

    Raises:
        OutputError: It is of another version, of another program, or has anything else than `_TABLES`.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    tables = {name for kind, name, *_ in _schema(database) if kind == "table"}
    if application or (version and not tables >= _OWN_TABLES) or (not version and tables):
        raise OutputError(
            f"{path}: expected a ledger of reelscribe, got a database of another program, which was left as it is;"
            " choose another --out"
        )
    if version not in (0, VERSION):
        raise OutputError(
            f"{path}: expected a ledger of version {VERSION}, got {version}; use the version of reelscribe that wrote"
            " it, or choose another --out"
        )
    if version:
        _check_schema(database, path, lambda expected: expected.executescript(_TABLES))
    return bool(version)


def other_than_made(database: sqlite3.Connection, make: Callable[[sqlite3.Connection], object]) -> str:
    """Return what a database has, or lacks, that a new one would not; empty if their schemas are equal.

    Every database that may come from somebody else is opened with this check. Triggers, views, generated columns,
    virtual tables and expressions in indexes would otherwise run when it is read or written to.

    Args:
        database: The database. Nothing of it is run.
        make: Makes all tables and indexes of a new database.

    Returns:
        The kind and the name of one that differs, such as "trigger 't'".
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as expected:
        make(expected)
        found, wanted = _schema(database), _schema(expected)
    return "" if found == wanted else "{} {!r}".format(*min(found ^ wanted)[:2])


def _schema(database: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return the type, name, table and statement of everything in a database, but for statistics.

    Versions of reelscribe break the lines of the same statement at other places, so spaces that mean nothing are left
    out.
    """
    rows = database.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master")
    statements = ((*map(str, names), " ".join(str(sql).split())) for *names, sql in rows)
    return {(*names, re.sub(r" ?([(),]) ?", r"\1", sql)) for *names, sql in statements} - _STATISTICS


def _check_schema(database: sqlite3.Connection, path: Path, make: Callable[[sqlite3.Connection], object]) -> None:
    if other := other_than_made(database, make):
        raise OutputError(
            f"{path}: expected the tables that reelscribe makes, and no more, got another {printable(other)}; put"
            " back a copy from before it was changed, or choose another --out"
        )


@contextmanager
def output_errors(path: Path, action: Literal["read", "written"]) -> Iterator[None]:
    """Turn an error of the disk or of SQLite into an OutputError that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if type(error) is sqlite3.DatabaseError:  # SQLite raises it for a file that is damaged or no database
            advice = "choose another --out"
        elif getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            advice = "expected a folder that you may write to, which SQLite needs also to read"
        elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            advice = "another command has it open; run the same command again when that has ended"
        elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:  # JSON or a table that is not ours
            advice = _EDITED
        else:
            advice = "what was saved before is kept; run the same command again to continue"
        raise OutputError(f"{path}: cannot be {action}: {error}; {advice}") from error


@contextmanager
def row_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a row that no version of reelscribe wrote into an OutputError that says what to do."""
    try:
        yield
    except MALFORMED as error:
        what = printable(" ".join(str(error)[:200].split()))
        raise OutputError(
            f"{path}: cannot be read: {type(error).__name__} in what is saved there: {what}; {_EDITED}"
        ) from error


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the text under which the ledger keeps a model with its settings; equal ones have equal texts."""
    return json.dumps(settings, sort_keys=True)


def path_key(path: str) -> bytes:
    """Return what identifies a source in the ledger: the bytes of its absolute path, or of its address."""
    return os.fsencode(absolute_name(path))
