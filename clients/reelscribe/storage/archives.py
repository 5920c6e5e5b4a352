"""Members of archives: files inside a .tar of this machine or of a store, such as ``shard-000.tar::one.mp4``.

Nothing is unpacked. A member is a stretch of its archive, and its version says where that begins and what the archive
was, so that it is read without looking for it. Members with the same name up to its first dot belong together, as in
WebDataset: what lies beside a video as .json or .txt goes into its record.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from reelscribe._files import file_stat
from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, brief
from reelscribe.storage.address import split_member
from reelscribe.storage.objects import READ_BYTES, ObjectStore, StoredObject

MOST_BESIDE = 2**16
"""Largest size of a file beside a member that goes into its record, in bytes."""

_AHEAD_BYTES = 2**14
"""Number of bytes that are read at once while headers are looked at. Small files beside members may be among them."""

_MOST_HEADER = 2**20
"""Largest size of the header of a member, in bytes. Long names and attributes are part of it."""


class FileStore:
    """The files of this machine, for archives among them; see `ObjectStore`."""

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of a file."""
        stat = file_stat(address)
        if not stat:
            raise NoSuchObject("no such file; check the path, or whether its disk is mounted")
        return StoredObject.from_stat(address, stat)

    def list(self, address: str) -> Iterator[StoredObject]:
        """Refuse, as folders are not searched in this way."""
        raise MediaError(f"{address}: expected a file")

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a file from a byte on, up to another one."""
        try:
            with open(stored.address, "rb", buffering=0) as file:
                if file_stat(file.fileno()) != stored.stat:
                    raise SourceChanged("its archive was changed while it was being read; run the same command again")
                while start < (end := stored.size if stop is None else stop):
                    if not (block := os.pread(file.fileno(), min(READ_BYTES, end - start), start)):
                        return
                    yield block
                    start += len(block)
        except OSError as error:
            raise MediaError(f"its archive cannot be read: {error.strerror}") from None

    def write(self, address: str, content: bytes, replaced: StoredObject | None) -> None:  # noqa: ARG002
        """Refuse, as files of this machine are not written in this way."""
        raise MediaError(f"{address}: expected an object")

    def close(self) -> None:
        """Do nothing, as no file is open."""


class TarStore:
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
        for _, group in groupby(self._members(archive), lambda member: member.key):
            members = list(group)
            beside = {member.suffix: self._content(member.stored) for member in members if member.is_beside}
            extra = json.dumps(beside) if beside else None
            for member in members:
                if member.name.startswith(start) and not member.is_beside:
                    yield member.stored._replace(extra=extra)

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a member from a byte on, up to another one."""
        archive, _ = split_member(stored.address)
        offset, _, stat = stored.version.partition(" ")
        whole, end = StoredObject.from_stat(archive, stat), stored.size if stop is None else stop
        return self._store_of(archive).read(whole, int(offset) + start, int(offset) + end)

    def write(self, address: str, content: bytes, replaced: StoredObject | None) -> None:  # noqa: ARG002
        """Refuse, as archives are not written to."""
        raise MediaError("expected an object, as nothing can be written to archives")

    def close(self) -> None:
        """Do nothing, as the stores of the archives are closed by themselves."""

    def _members(self, archive: str) -> Iterator[_Member]:
        """Yield the files in an archive, in their order."""
        store = self._store_of(archive)
        stored = store.info(archive)
        try:
            headers: Any = _Headers(store, stored)  # it has the three methods of a file that are needed
            with tarfile.open(fileobj=headers, mode="r:", errorlevel=2) as tar:
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined] # those of a large archive would fill the memory
                    if member.isreg() and not member.issparse():
                        if member.offset_data + member.size > stored.size:
                            raise MediaError(f"expected a whole archive, but it ends within {brief(member.name)}")
                        version = f"{member.offset_data} {stored.stat}"
                        address = f"{archive}::{member.name}"
                        yield _Member(member.name, StoredObject(address, member.size, version, float(member.mtime)))
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise MediaError(f"expected a .tar archive that is not compressed: {brief(str(error))}") from None

    def _content(self, stored: StoredObject) -> Any:
        """Return what lies beside a member: a value for JSON, a text otherwise; None if it cannot be taken."""
        if stored.size > MOST_BESIDE:
            return None
        content = b"".join(self.read(stored)).decode("utf-8", "replace")
        if not stored.address.lower().endswith(".json"):
            return content
        try:
            return json.loads(content, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None


class _Member(NamedTuple):
    name: str
    stored: StoredObject

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
        return self.name.lower().endswith((".json", ".txt"))


class _Headers:
    """An archive as a file for `tarfile`, which reads headers and passes over what is between them."""

    def __init__(self, store: ObjectStore, stored: StoredObject) -> None:
        self._store, self._stored = store, stored
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
        if size > _MOST_HEADER:
            raise MediaError(f"expected headers of at most {_MOST_HEADER:,} bytes in the archive, got {size:,}")
        if self._at < self._begin or self._at + size > self._begin + len(self._block):
            stop = min(self._stored.size, self._at + max(size, _AHEAD_BYTES))
            self._begin = self._at
            self._block = b"".join(self._store.read(self._stored, self._at, stop)) if self._at < stop else b""
        start = self._at - self._begin
        found = self._block[start : start + size]
        self._at += len(found)
        return found
