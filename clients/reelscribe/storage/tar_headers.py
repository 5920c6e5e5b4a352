"""Reads the headers of a .tar archive, and passes over what is between them. An archive may be hostile."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from reelscribe.errors import MALFORMED, MediaError, brief
from reelscribe.storage.address import is_note_of_mac
from reelscribe.storage.objects import ObjectStore, StoredObject, retried

MOST_BESIDE = 2**16
"""Largest size of all files together beside a member that go into its record, in bytes."""

_AHEAD_BYTES = 2**14
"""Number of bytes that are read at once while headers are looked at. Small files beside members may be among them."""

_NEAR_BYTES = 2**16
"""Largest distance to the next header at which all that is between them is read, because a request takes longer."""

_AHEAD_OF_NEAR_BYTES = 2**18
"""Number of bytes that are read at once then."""

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


class Member(NamedTuple):
    """A file in an archive, or a link."""

    name: str
    place: int = 0
    """The byte of the archive with which its content begins."""
    size: int = 0
    modified: float = 0.0
    link: str = ""
    """Where a link leads: a symbolic one from its own folder, a hard one to the name of a member; empty for a file."""
    is_hard: bool = False
    """True for a hard link."""
    problem: str = ""
    """Why it cannot be read; empty if it can."""
    content: bytes | None = None
    """What is in a small file beside others; None for others."""


def is_beside(name: str) -> bool:
    """Return whether a member of this name goes into the records of those with which it belongs together."""
    return name.lower().endswith((".json", ".txt"))


def read_members(store: ObjectStore, archive: StoredObject) -> Iterator[Member]:
    """Yield the files and links in an archive, in their order, without what Macs note of other files.

    Args:
        store: The store of the archive.
        archive: The archive as it is now.

    Raises:
        MediaError: It cannot be read to its end.
    """
    headers = _Headers(store, archive)
    file: Any = headers  # it has the three methods of a file that are needed
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2, tarinfo=_Header) as tar:
            place = -1
            for number, header in enumerate(tar, 1):
                if number > _MOST_MEMBERS:
                    raise MediaError(f"expected an archive with at most {_MOST_MEMBERS:,} members, got more")
                tar.members = []  # type: ignore[attr-defined] # those of a large archive would fill the memory
                if tar.offset <= place or len(tar.pax_headers) > _MOST_GLOBALS:
                    raise MediaError("expected members that follow each other, with at most 100 common attributes")
                place = tar.offset
                headers.passed = 0
                if header.isreg() and not header.issparse() and header.offset_data + header.size > archive.size:
                    raise MediaError(f"expected a whole archive, but it ends within {brief(header.name)}")
                if not (header.isdir() or is_note_of_mac(header.name)):
                    yield _member(header, headers)
            _check_end(headers, tar.offset, archive.size)
    except (tarfile.TarError, *MALFORMED) as error:
        raise MediaError(f"expected a .tar archive that is not compressed: {brief(str(error))}") from None


def _check_end(headers: _Headers, place: int, size: int) -> None:
    """Check that an archive ends where `tarfile` takes it to end, with a block of zeros or with the file."""
    end = place + 2 * tarfile.BLOCKSIZE
    end += -end % tarfile.RECORDSIZE
    headers.passed = 0
    rest = headers.read_at(place, _MOST_HEADERS)
    zeros = len(rest) - len(rest.lstrip(b"\0"))
    if zeros == len(rest):
        return
    if zeros < tarfile.BLOCKSIZE:  # for `tarfile`, a header that is damaged or cut is the end
        raise MediaError(f"expected the header of a member at byte {place:,} of the archive")
    if size == end:  # in the last record, some programs leave behind the end what was in their memory
        return
    begin = zeros - zeros % tarfile.BLOCKSIZE
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(rest[begin : begin + tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
        raise MediaError(
            f"expected one archive, but another one begins at byte {place + begin:,}; join them with tar --concatenate"
        )


def _member(header: tarfile.TarInfo, headers: _Headers) -> Member:
    member = Member(header.name, header.offset_data, header.size, float(header.mtime))
    if header.islnk() or header.issym():
        return member._replace(size=0, link=header.linkname, is_hard=header.islnk())
    if header.issparse():
        return member._replace(size=0, problem=_SPARSE)
    if not header.isreg():
        return member._replace(size=0, problem=_NO_FILE)
    if is_beside(member.name) and member.size <= MOST_BESIDE:
        return member._replace(content=headers.read_at(member.place, member.size))
    return member


_SPARSE = "expected a member that is stored as a whole, got a sparse one; archive it without --sparse"
_NO_FILE = "expected a file in the archive, got a device, a pipe or the rest of a file that begins elsewhere"


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
            is_near = self._block and 0 <= self._at - self._begin - len(self._block) < _NEAR_BYTES
            stop = min(self._stored.size, self._at + max(size, _AHEAD_OF_NEAR_BYTES if is_near else _AHEAD_BYTES))
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
