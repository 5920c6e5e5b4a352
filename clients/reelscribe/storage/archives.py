"""Members of archives: files inside a .tar of this machine or of a store, such as ``shard-000.tar::one.mp4``.

Nothing is unpacked. A member is a stretch of its archive, and its version says where that begins and what the archive
was, so that it is read without looking for it. Members with the same name up to its first dot belong together, as in
WebDataset: what lies beside a video as .json or .txt goes into its record.

Which members there are is known at the end of an archive: the last one of a name replaces those before it, links may
lead to what comes later, and what belongs together need not be neighbours. So an archive is looked through into a table
before its members are listed. They are what a program that unpacks it would find, except that no link leads out of it.
"""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import unicodedata
import weakref
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from reelscribe._files import file_stat, regular_file
from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, brief
from reelscribe.storage.address import split_member, suffix
from reelscribe.storage.objects import READ_BYTES, ObjectStore, StoredObject, byte_order, json_value, retried
from reelscribe.storage.tar_headers import MOST_BESIDE, Member, is_beside, read_members

MOST_TOGETHER = 100
"""Largest number of files with one suffix that belong together; more of the same name are taken for others."""

_MOST_STEPS = 200
"""Largest number of parts of paths that are followed from a link to its file."""

_MOST_TABLES = 8
"""Number of archives whose tables are kept. A list may name the members of an archive one by one."""

_CREATE = """
CREATE TABLE members (
    path BLOB PRIMARY KEY, name BLOB NOT NULL, place INTEGER NOT NULL, size INTEGER NOT NULL, modified REAL,
    link BLOB NOT NULL, problem TEXT NOT NULL, content BLOB, number INTEGER NOT NULL, sample BLOB NOT NULL,
    suffix BLOB NOT NULL, is_beside INTEGER NOT NULL
)
"""
_INDEX = "CREATE INDEX samples ON members (sample, number) WHERE is_beside"
_ADD = "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = "name, place, size, modified, link, problem, content"
_ONE = f"SELECT {_COLUMNS} FROM members WHERE path = ?"  # noqa: S608 - the text is our own
_BESIDE = f"SELECT {_COLUMNS} FROM members WHERE sample = ? AND is_beside ORDER BY number LIMIT ?"  # noqa: S608
_OTHERS = f"""
SELECT {_COLUMNS}, sample, row_number() OVER (PARTITION BY sample, suffix ORDER BY number) FROM members
WHERE NOT is_beside ORDER BY number
"""  # noqa: S608
_ROWS_AT_ONCE = 100


class FileStore(ObjectStore):
    """The files of this machine, for archives among them; see `ObjectStore`."""

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of a file."""
        stat = file_stat(address)
        if not stat:
            raise NoSuchObject("no such file; check the path, or whether its disk is mounted")
        return StoredObject.from_stat(address, stat)

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a file from a byte on, up to another one."""
        try:
            with open(stored.address, "rb", buffering=0, opener=regular_file) as file:
                if file_stat(file.fileno()) != stored.stat:
                    raise SourceChanged("its archive was changed while it was being read; run the same command again")
                while start < (end := stored.size if stop is None else stop):
                    if not (block := os.pread(file.fileno(), min(READ_BYTES, end - start), start)):
                        return
                    yield block
                    start += len(block)
        except OSError as error:
            raise MediaError(f"its archive cannot be read: {error.strerror}") from None


class TarStore(ObjectStore):
    """The members of archives; see `ObjectStore`."""

    def __init__(self, store_of: Callable[[str], ObjectStore]) -> None:
        """Take what returns the store of an archive."""
        self._store_of = store_of
        self._lock = Lock()
        self._tables: dict[StoredObject, _Table] = {}

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of a member, for which the whole archive is looked through."""
        archive, name = split_member(address)
        table = self._table(archive)
        if (member := table.find(name)) is None:
            raise table.failure or NoSuchObject("the archive has no such member; check its name")
        if member.problem:
            raise MediaError(member.problem)
        return _stored(table.archive, address, member)

    def list(self, address: str) -> Iterator[StoredObject]:
        """Yield the members of an archive whose names begin like this, with what lies beside them."""
        archive, start = split_member(address)
        table = self._table(archive)
        for member, extra in table.members():
            if member.name.startswith(start):
                yield _stored(table.archive, f"{archive}::{member.name}", member)._replace(extra=extra)
        if table.failure:
            raise table.failure

    def glance(self, address: str) -> Iterator[StoredObject]:
        """Yield the members of an archive as its headers come."""
        archive, start = split_member(address)
        store = self._store_of(archive)
        stored = store.info(archive)
        for member in read_members(store, stored):
            if member.name.startswith(start) and not is_beside(member.name):
                yield _stored(stored, f"{archive}::{member.name}", member)

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a member from a byte on, up to another one."""
        archive, _ = split_member(stored.address)
        offset, _, stat = stored.version.partition(" ")
        whole, end = StoredObject.from_stat(archive, stat), stored.size if stop is None else stop
        return self._store_of(archive).read(whole, int(offset) + start, int(offset) + end)

    def close(self) -> None:
        """Forget what is in the archives."""
        with self._lock:
            self._tables.clear()

    def _table(self, archive: str) -> _Table:
        """Return the table of an archive as it is now."""
        store = self._store_of(archive)
        stored = store.info(archive)
        with self._lock:
            table = self._tables.pop(stored, None) or _Table(store, stored)
            self._tables[stored] = table
            if len(self._tables) > _MOST_TABLES:
                del self._tables[next(iter(self._tables))]  # which was wanted least recently
        table.fill()
        if isinstance(table.failure, StoreUnavailable):  # the next one who asks tries again
            with self._lock:
                self._tables.pop(stored, None)
        return table


def _stored(archive: StoredObject, address: str, member: Member) -> StoredObject:
    version = f"{member.place} {archive.stat}"
    return StoredObject(address, member.size, version, member.modified, problem=member.problem)


class _Table:
    """The members of an archive, in a file without a name, because those of a large one would fill the memory."""

    def __init__(self, store: ObjectStore, archive: StoredObject) -> None:
        self._store, self.archive = store, archive
        self.failure: MediaError | None = None
        """Why the archive cannot be read to its end, maybe now only; None if it can."""
        self._lock = Lock()
        self._is_filled = False
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)

    def fill(self) -> None:
        """Look the archive through, unless that has been done.

        Raises:
            SourceChanged: It was changed meanwhile.
        """
        with self._lock:
            if self._is_filled:
                return
            # Nobody needs the table after a crash.
            self._database.executescript(f"PRAGMA journal_mode = OFF; DROP TABLE IF EXISTS members; {_CREATE}; BEGIN")
            try:
                for number, member in enumerate(read_members(self._store, self.archive)):
                    self._add(number, member)
            except SourceChanged:
                raise
            except MediaError as error:
                self.failure = error
            finally:
                self._database.execute("COMMIT")
            self._database.execute(_INDEX)
            self._is_filled = True

    def find(self, name: str) -> Member | None:
        """Return the file to which a name leads, or what says why there is none; None if the archive has no such name.

        A Mac composes the letters of names in another way than others, so one composed differently will do.
        """
        path = _path_of(name)
        with self._lock:
            if (member := self._one(path)) is None and not path.isascii():
                paths = (_decoded(other) for (other,) in self._database.execute("SELECT path FROM members"))
                if like := next((other for other in paths if _composed(other) == _composed(path)), None):
                    path, member = like, self._one(like)
            return member and self._followed(path, member)

    def members(self) -> Iterator[tuple[Member, str | None]]:
        """Yield all members but those beside others, in their order, with what lies beside each, as a JSON object."""
        with self._lock:
            found = self._database.execute(_OTHERS)
        while True:
            with self._lock:
                page = []
                for *columns, sample, number in found.fetchmany(_ROWS_AT_ONCE):
                    member = _member_of(columns)
                    extra = self._beside(sample) if number <= MOST_TOGETHER else None
                    page.append((self._followed(_path_of(member.name), member), extra))
            if not page:
                return
            yield from page

    def _add(self, number: int, member: Member) -> None:
        """Add a member in the place of one with the same name, as unpacking does."""
        path = _path_of(member.name)
        if member.is_hard:
            target = _path_of(member.link)
            if there := self._one(target):  # what has its name later is another file
                member = there._replace(name=member.name, link=there.link)
            else:
                member = member._replace(link=posixpath.relpath(target, posixpath.dirname(path) or "."))
        self._database.execute(
            _ADD,
            (
                _encoded(path),
                _encoded(member.name),
                member.place,
                member.size,
                member.modified,
                _encoded(member.link),
                member.problem,
                member.content,
                number,
                _encoded(_sample_of(path)),
                _encoded(suffix(path)),
                is_beside(path),
            ),
        )

    def _one(self, path: str) -> Member | None:
        row = self._database.execute(_ONE, (_encoded(path),)).fetchone()
        return row and _member_of(row)

    def _followed(self, path: str, member: Member) -> Member:
        """Return a member with the place of the file to which it leads, or with the reason why it leads to none."""
        if not member.link:
            return member
        done, to_do = path.split("/"), list[str]()
        found: Member | None = member
        for _ in range(_MOST_STEPS):
            if found and found.link:
                if found.link.startswith("/"):
                    return member._replace(problem=_LEADS_OUT.format(brief(found.link)))
                done.pop()
                to_do += reversed(found.link.split("/"))
            if not to_do:
                break
            part, found = to_do.pop(), None
            if part == "..":
                if not done:
                    return member._replace(problem=_LEADS_OUT.format(brief(member.link)))
                done.pop()
            elif part not in ("", "."):
                done.append(part)
                found = self._one("/".join(done))
        else:
            return member._replace(problem=_IN_CIRCLES.format(brief(member.link)))
        return (
            found._replace(name=member.name)
            if found
            else member._replace(problem=_NO_TARGET.format(brief(member.link)))
        )

    def _beside(self, sample: bytes) -> str | None:
        """Return what lies beside the members of a sample, as a JSON object; None for nothing."""
        left, beside = MOST_BESIDE, {}
        for row in self._database.execute(_BESIDE, (sample, MOST_TOGETHER)).fetchall():
            named = _member_of(row)
            path = _path_of(named.name)
            member = self._followed(path, named)
            value = None
            if member.size <= left and not member.problem:
                value = _value(path, self._content(member))
            beside[json_value(path.rpartition("/")[2].partition(".")[2].lower())] = value
            left -= member.size
        return json.dumps(beside) if beside else None

    def _content(self, member: Member) -> bytes:
        if member.content is not None:
            return member.content
        return retried(lambda: b"".join(self._store.read(self.archive, member.place, member.place + member.size)))


_LEADS_OUT = "expected a link to a member of the archive, but it leads out of the archive, by {}"
_IN_CIRCLES = "expected a link to a member of the archive, but it leads in circles, by {}"
_NO_TARGET = "expected a link to a member of the archive, but there is no such file: {}"


def _value(name: str, content: bytes) -> Any:
    """Return a value for JSON, a text otherwise; None if it cannot be taken."""
    mark, encoding = byte_order(content)
    text = content[mark:].decode(encoding, "replace")
    if not name.lower().endswith(".json"):
        return text
    try:
        return json_value(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _path_of(name: str) -> str:
    """Return the path at which a program that unpacks the archive would write a member."""
    return posixpath.normpath(name.lstrip("/"))


def _sample_of(path: str) -> str:
    """Return what those that belong together have in common: the path up to the first dot of its last part."""
    folder, slash, base = path.rpartition("/")
    return _composed(folder + slash + base.partition(".")[0])


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _member_of(columns: Any) -> Member:
    name, place, size, modified, link, problem, content = columns
    return Member(_decoded(name), place, size, modified, _decoded(link), problem=problem, content=content)
