"""Bodies in shared memory: a request to a server on the same machine carries no frames, but says where they are.

Without this, a frame is copied again and again on its way through two sockets and TorchServe's Java process, which
takes several times as long as reading it from memory once. This is the specification of such a request, a "reference",
version 2. Integers are unsigned and little-endian::

    offset  size      content
    0       8         magic: the byte 93 (hexadecimal), "RSMEM" in ASCII, the byte 0, and the version, 2
    8       16        `machine` of the process that has the memory, in ASCII
    24      16        the secret of the memory, random bytes
    40      4         id of this process
    44      4         its file descriptor for the memory: an anonymous file (`memfd_create`) whose size is sealed, and
                      whose name is NAME, a hyphen and the secret in hexadecimal
    48      4         N: number of pieces, at most 16,384
    52      16 * N    offset and size of each piece in the memory, in bytes; an offset of 2**64 - 1 means that the piece
                      is in the reference itself
    52+16*N ...       the pieces that are in the reference, one after the other

The pieces, one after the other, are the body, of at most MAX_BYTES. It is any body that could be sent by itself.

Both sides must know the same version, and be processes of the same user that see the same processes; `machine` tells
all of this. A reader refuses the references of other machines, because an address may lead to another server than the
one that described itself. It copies what it reads, so that the memory may change at any time without harm. It reads
nothing but anonymous files of this name, whatever a reference says: the kernel shows the name to processes of the same
user alone, so whoever guesses a process and a descriptor reaches nothing without the secret, and no file of that name
on a disk has such seals. A server that is sent a reference can have any other worker of the same user look at the
frames of the run while it lasts. But it was sent these frames anyway, and programs of the user can read each other's
memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import mmap
import os
import secrets
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from reelscribe.errors import MemoryNotShared, WireError

NAME = "reelscribe-media"
"""How the names of the anonymous files begin."""

MAGIC = b"\x93RSMEM\0\2"
"""First bytes of a reference."""

MAX_BYTES = 16 * 2**20
"""Largest body; larger ones are sent. The limits of a server on bodies do not know of references, so this is one: it is
twice as much as the requests of our client have, unless a single frame or clip is larger."""

MAX_PIECES = 16_384
"""Largest number of pieces: more than the segments of any body that `wire.pack` makes."""

_HEAD = struct.Struct("<8s16s16sIII")
_PIECE = struct.Struct("<QQ")
_IN_REFERENCE = 2**64 - 1
_SECRET_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The seals of a memory. Other files of a tmpfs have F_SEAL_SEAL and can get no other; those of disks have none."""

Segment = bytes | memoryview


class SharedMemory:
    """An anonymous file in memory that other processes may map or read. It disappears with the last of them."""

    def __init__(self, size: int) -> None:
        """Reserve the memory; pages that are never written take none.

        Args:
            size: Its size in bytes, at least 1.
        """
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        """Secret that a reference to the memory must hold."""
        self.fd = os.memfd_create(_name(self.secret), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.view = mmap.mmap(self.fd, size)
        """The memory itself."""
        self._size, self._address = size, np.frombuffer(self.view, np.uint8).ctypes.data

    def offset_of(self, segment: Segment) -> int | None:
        """Return where in the memory a segment lies, in bytes; None if it lies elsewhere."""
        if isinstance(segment, bytes) or not segment.nbytes:
            return None
        offset = np.frombuffer(segment, np.uint8).ctypes.data - self._address
        return offset if 0 <= offset <= self._size - segment.nbytes else None

    def close(self) -> None:
        """Close the file. The memory remains as long as processes map it or arrays view it."""
        os.close(self.fd)


def refer(body: Sequence[Segment], memories: Iterable[SharedMemory]) -> bytes | None:
    """Make a reference to a body.

    Args:
        body: The segments of the body, as `wire.pack` returns them.
        memories: Where its arrays may lie. The body must not change until the answer has arrived.

    Returns:
        The reference; None if none of the segments lies in one of the memories, or the body is too large.
    """
    size = sum(memoryview(segment).nbytes for segment in body)
    for memory in memories:
        offsets = [memory.offset_of(segment) for segment in body]
        if size <= MAX_BYTES and len(body) <= MAX_PIECES and any(offset is not None for offset in offsets):
            pieces = [
                _PIECE.pack(_IN_REFERENCE if offset is None else offset, memoryview(segment).nbytes)
                for segment, offset in zip(body, offsets, strict=True)
            ]
            inside = [segment for segment, offset in zip(body, offsets, strict=True) if offset is None]
            head = _HEAD.pack(MAGIC, machine().encode(), memory.secret, os.getpid(), memory.fd, len(body))
            return b"".join([head, *pieces, *inside])
    return None


def resolve(body: bytes | bytearray) -> bytes | bytearray:
    """Return the body that a reference refers to; any other body is returned as it is.

    Args:
        body: What a client has sent.

    Raises:
        WireError: It begins like a reference and breaks a rule.
        MemoryNotShared: The memory is that of another machine or user, has another secret, or cannot be read.
    """
    if not body.startswith(MAGIC):
        return body
    try:
        _, of_machine, secret, pid, fd, count = _HEAD.unpack_from(body)
        if of_machine != machine().encode():
            raise MemoryNotShared("reference: expected memory of this machine and user; send the frames themselves")
        if count > MAX_PIECES:
            raise WireError(f"reference: at most {MAX_PIECES} pieces, got more")
        pieces = [_PIECE.unpack_from(body, _HEAD.size + k * _PIECE.size) for k in range(count)]
    except struct.error:
        raise WireError(f"reference: expected more than {len(body)} bytes; it is cut short") from None
    size = sum(size for _, size in pieces)
    inside = sum(size for offset, size in pieces if offset == _IN_REFERENCE)
    if size > MAX_BYTES:
        raise WireError(f"reference: expected a body of at most {MAX_BYTES} bytes, got a longer one")
    at = _HEAD.size + count * _PIECE.size
    if at + inside != len(body):
        raise WireError(f"reference: expected the pieces that it announces and nothing else, got {len(body)} bytes")
    file = _open(pid, fd, secret)
    try:
        whole, end = bytearray(size), 0
        view = memoryview(whole)
        for offset, length in pieces:
            begin, end = end, end + length
            if offset == _IN_REFERENCE:
                view[begin:end] = body[at : at + length]
                at += length
            else:
                _read(file, offset, view[begin:end])
        return whole
    finally:
        os.close(file)


@cache
def machine() -> str:
    """Return a text that is equal for two processes if each can read the memory of the other; empty if nobody can tell.

    It is a hash of the version of references, and of what identifies the running kernel, the namespaces of processes
    and users, and the user. So a client sends no reference to a server of another version, but the frames themselves.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "user")]
    except OSError:
        return ""
    return hashlib.sha256(repr([MAGIC, boot, *namespaces, os.geteuid()]).encode()).hexdigest()[:16]


def _name(secret: bytes) -> str:
    """The name of the memory with this secret."""
    return f"{NAME}-{secret.hex()}"


def _open(pid: int, fd: int, secret: bytes) -> int:
    """Open the memory of a process; raises MemoryNotShared, always in the same words, for everything else."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        # The name is looked at first, because to open a pipe or a device may already do something.
        if _is_named(path, secret):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if _is_named(f"/proc/self/fd/{file}", secret) and _is_sealed(file):
                return file
            os.close(file)  # another file took its place meanwhile, or it is on a disk
    except OSError:
        pass  # whoever guesses does not learn why
    raise MemoryNotShared(
        "reference: expected memory of reelscribe, with its secret, that the server's user may read; send the frames"
        " themselves"
    )


def _is_named(path: str, secret: bytes) -> bool:
    """Return whether a descriptor in /proc is that of a file with the name of an anonymous file with this secret."""
    return hmac.compare_digest(os.fsencode(os.readlink(path)), f"/memfd:{_name(secret)} (deleted)".encode())


def _is_sealed(file: int) -> bool:
    """Return whether a file has the seals that only an anonymous file can have."""
    return fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS  # OSError for a file on a disk


def _read(file: int, offset: int, view: memoryview) -> None:
    """Fill a view with bytes of a file from an offset."""
    done = 0
    while done < view.nbytes:
        try:
            count = os.preadv(file, [view[done:]], offset + done)
        except (OSError, OverflowError):  # no file has such an offset
            count = 0
        if not count:
            raise WireError("reference: expected pieces inside of the memory, got one beyond its end")
        done += count
