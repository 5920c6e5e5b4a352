"""Members of archives: files inside a .tar of this machine or of a store, such as ``shard-000.tar::one.mp4``.

Nothing is unpacked. A member is a stretch of its archive, and its version says where that begins and what the archive
was, so that it is read without looking for it. Members with the same name up to its first dot belong together, as in
WebDataset: what lies beside a video as .json or .txt goes into its record.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from reelscribe._files import file_stat, regular_file
from reelscribe.errors import MALFORMED, MediaError, NoSuchObject, SourceChanged, brief
from reelscribe.storage.address import split_member
from reelscribe.storage.objects import READ_BYTES, ObjectStore, StoredObject, json_value, retried

MOST_BESIDE = 2**16
"""Largest size of all files together beside a member that go into its record, in bytes."""

MOST_TOGETHER = 100
"""Largest number of members that belong together; more of the same name are taken for others."""

_AHEAD_BYTES = 2**14
"""Number of bytes that are read at once while headers are looked at. Small files beside members may be among them."""

_ATTEMPTS = 5
"""Number of times that headers are asked for until the store answers."""

_MOST_HEADERS = 2**20
"""Largest size of all headers of a member together, in bytes. The map of a sparse file is among them."""

_MOST_DIGITS = 255
"""Largest number of digits in a row among attributes. No name of a file is longer, and for many more `tarfile` takes
time that grows with their square."""

_MOST_MEMBERS = 10**6
"""Largest number of files in an archive. A web server can invent others for ever, and sources after it would never be
done."""

_MOST_GLOBALS = 100
"""Largest number of attributes that an archive gives to all its members. They are copied for each of them."""


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

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of a member, for which the archive is searched from its beginning."""
        archive, name = split_member(address)
        for member in self._members(archive):
            if member.name == name:
                return member.stored
        raise NoSuchObject("the archive has no such member; check its name")

    def list(self, address: str) -> Iterator[StoredObject]:
        """Yield the members of an archive whose names begin like this, with what lies beside them."""
        archive, start = split_member(address)
        for members in _together(self._members(archive)):
            extra = _beside(members)
            for member in members:
                if member.name.startswith(start) and not member.is_beside:
                    yield member.stored._replace(extra=extra)

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a member from a byte on, up to another one."""
        archive, _ = split_member(stored.address)
        offset, _, stat = stored.version.partition(" ")
        whole, end = StoredObject.from_stat(archive, stat), stored.size if stop is None else stop
        return self._store_of(archive).read(whole, int(offset) + start, int(offset) + end)

    def _members(self, archive: str) -> Iterator[_Member]:
        """Yield the files in an archive, in their order."""
        store = self._store_of(archive)
        stored = store.info(archive)
        headers = _Headers(store, stored)
        file: Any = headers  # it has the three methods of a file that are needed
        try:
            with tarfile.open(fileobj=file, mode="r:", errorlevel=2, tarinfo=_Header) as tar:
                place = -1
                for number, member in enumerate(tar, 1):
                    if number > _MOST_MEMBERS:
                        raise MediaError(f"expected an archive with at most {_MOST_MEMBERS:,} members, got more")
                    tar.members = []  # type: ignore[attr-defined] # those of a large archive would fill the memory
                    if tar.offset <= place or len(tar.pax_headers) > _MOST_GLOBALS:
                        raise MediaError("expected members that follow each other, with at most 100 common attributes")
                    place = tar.offset
                    headers.passed = 0
                    if member.isreg() and not member.issparse():
                        if member.offset_data + member.size > stored.size:
                            raise MediaError(f"expected a whole archive, but it ends within {brief(member.name)}")
                        version = f"{member.offset_data} {stored.stat}"
                        found = StoredObject(f"{archive}::{member.name}", member.size, version, float(member.mtime))
                        content = None
                        if _is_beside(member.name) and member.size <= MOST_BESIDE:
                            content = headers.read_at(member.offset_data, member.size)
                        yield _Member(member.name, found, content)
                # For `tarfile`, a header that is damaged or cut is the end.
                if headers.read_at(tar.offset, tarfile.BLOCKSIZE).strip(b"\0"):
                    raise MediaError(f"expected the header of a member at byte {tar.offset:,} of the archive")
        except (tarfile.TarError, *MALFORMED) as error:
            raise MediaError(f"expected a .tar archive that is not compressed: {brief(str(error))}") from None


def _together(members: Iterator[_Member]) -> Iterator[list[_Member]]:
    """Yield the members that follow each other and belong together."""
    for _, group in groupby(members, lambda member: member.key):
        while some := list(islice(group, MOST_TOGETHER)):
            yield some


def _beside(members: Sequence[_Member]) -> str | None:
    """Return what lies beside the videos among members, as a JSON object; None for nothing."""
    left, beside = MOST_BESIDE, {}
    for member in members:
        if member.is_beside:
            size = member.stored.size
            beside[json_value(member.suffix)] = _value(member) if size <= left else None
            left -= size
    return json.dumps(beside) if beside else None


def _value(member: _Member) -> Any:
    """Return a value for JSON, a text otherwise; None if it cannot be taken."""
    text = (member.content or b"").decode("utf-8", "replace")
    if not member.name.lower().endswith(".json"):
        return text
    try:
        return json_value(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _is_beside(name: str) -> bool:
    return name.lower().endswith((".json", ".txt"))


class _Member(NamedTuple):
    name: str
    stored: StoredObject
    content: bytes | None
    """What is in it, if that is small and may go into a record."""

    @property
    def key(self) -> str:
        """The name up to the first dot of its last part."""
        folder, slash, base = self.name.rpartition("/")
        return folder + slash + base.partition(".")[0]

    @property
    def suffix(self) -> str:
        return self.name[len(self.key) + 1 :]

    @property
    def is_beside(self) -> bool:
        return _is_beside(self.name)


class _Header(tarfile.TarInfo):
    """A header of an archive, which is checked before `tarfile` reads the name or the attributes that it announces."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _ANNOUNCE:
            if not 0 <= self.size <= _MOST_HEADERS:
                raise MediaError(
                    f"expected headers of at most {_MOST_HEADERS:,} bytes in the archive, got {self.size:,}"
                )
            if self.type in _ATTRIBUTES:
                file: Any = tar.fileobj
                place = file.tell()
                _check_attributes(file.read(self.size))
                file.seek(place)
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc] # which is there to be overridden
        return member


_ATTRIBUTES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_ANNOUNCE = (*_ATTRIBUTES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def _check_attributes(content: bytes) -> None:
    """Check that each attribute is as long as it says, so that `tarfile` reads them in time that grows as they do."""
    at = 0
    while content[at : at + 1].strip(b"\0"):
        length, space, _ = content[at : at + len(str(_MOST_HEADERS)) + 1].partition(b" ")
        stop = at + int(length) if space and length.isdigit() else at
        if b"=" not in content[at:stop] or content[stop - 1 : stop] != b"\n":
            raise MediaError("expected attributes of members in the archive that are as long as they say")
        at = stop
    if max(map(len, re.findall(rb"\d+", content)), default=0) > _MOST_DIGITS:
        raise MediaError(f"expected at most {_MOST_DIGITS} digits in a row among attributes of members in the archive")


class _Headers:
    """An archive as a file for `tarfile`, which reads headers and passes over what is between them."""

    def __init__(self, store: ObjectStore, stored: StoredObject) -> None:
        self._store, self._stored = store, stored
        self.passed = 0
        """Number of bytes that were read of the headers of a member."""
        self._at = self._begin = 0
        self._block = b""

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, place: int) -> int:
        """Go to a place."""
        self._at = place
        return place

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        self.passed += size
        if self.passed > _MOST_HEADERS:
            raise MediaError(f"expected headers of at most {_MOST_HEADERS:,} bytes for a member of the archive")
        if self._at < self._begin or self._at + size > self._begin + len(self._block):
            stop = min(self._stored.size, self._at + max(size, _AHEAD_BYTES))
            self._begin = self._at
            self._block = self._fetch(self._at, stop) if self._at < stop else b""
        start = self._at - self._begin
        found = self._block[start : start + size]
        self._at += len(found)
        return found

    def read_at(self, place: int, size: int) -> bytes:
        """Return the bytes at a place; the next header is looked for where it is all the same."""
        self.seek(place)
        return self.read(size)

    def _fetch(self, start: int, stop: int) -> bytes:
        return retried(lambda: b"".join(self._store.read(self._stored, start, stop)), _ATTEMPTS)
