"""The thumbnails in the folder of a run.

They are files, with OUT for the folder::

    OUT/thumbnails/<first two digits>/<SHA-256 of the source, 64 hexadecimal digits>/<milliseconds, 9 digits>.webp

The ledger knows nothing of them, so they can be deleted and made again. A copy of a source has the same thumbnails, and
a file that was changed has none. What is written is bounded in three ways: the pictures of a source, the bytes of a
picture, and, about, the bytes of them all. Nothing is read or written through a symbolic link inside of the folder,
because somebody else may have put it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from reelscribe._files import atomic_file, regular_file
from reelscribe.errors import OutputError, UsageError

NAME = "thumbnails"
"""Name of the folder in an output folder."""

MOST_PICTURES = 1000
"""Largest number of thumbnails of a source; of a film of two hours with as many shots, they have about 8 MB."""

MOST_PICTURE_BYTES = 2**18
"""Largest size of a thumbnail, in bytes. One of noise, 320 pixels wide, has half of it; a usual one has 8,000."""

MOST_BYTES = 16 * 2**30
"""Largest size of all thumbnails of a folder, in bytes, about: a folder with the same first two digits, of which there
are 256, has its equal part."""

MOST_MILLISECONDS = 10**9 - 1
"""Latest time of a thumbnail; a picture of a later one, after 277 hours, cannot be kept."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"([0-9]{9})\.webp")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class ThumbnailTask:
    """The thumbnails of a source that a decode process shall keep."""

    out: str
    """Absolute path of the output folder."""
    sha256: str
    """Digest of the source's bytes, 64 hexadecimal digits in lower case."""
    most: int | None = None
    """Number of thumbnails; None for one of each shot or, if shots are not known, one in 5 seconds, at most 12."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned. Raises TypeError if a field is unknown or missing."""
        return cls(**value)


class ThumbnailStore:
    """The thumbnails of all sources of a run. Several processes may use the same folder."""

    def __init__(self, out: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """Describe the folder; nothing is read or written yet.

        Args:
            out: The output folder of the run.
            most_bytes: Largest size of all thumbnails together, about.
        """
        self._out, self._part_bytes = out, most_bytes // 256
        self._used: dict[str, int] = {}
        """Bytes of the folders that this object has written to, by their first two digits."""

    def times(self, sha256: str) -> list[float]:
        """Return the presentation times of a source's thumbnails, in seconds, ascending; [] if there are none.

        Args:
            sha256: Digest of the source's bytes, 64 hexadecimal digits in lower case.

        Raises:
            UsageError: It is no such digest.
        """
        with suppress(OSError), self._folder(sha256) as folder, os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            return sorted(int(match[1]) / 1000 for name in names if (match := _FILE_NAME.fullmatch(name)))
        return []

    def path(self, sha256: str, seconds: float) -> Path:
        """Return where the thumbnail of a time is, whether or not there is one.

        Args:
            sha256: Digest of the source's bytes, 64 hexadecimal digits in lower case.
            seconds: Presentation time, from 0 to MOST_MILLISECONDS / 1000; it counts in whole milliseconds.

        Raises:
            UsageError: It is no such digest, or no such time.
        """
        return self._out.joinpath(NAME, *_parts(sha256), _file_name(seconds))

    def read(self, sha256: str, seconds: float) -> bytes | None:
        """Return the WebP file of exactly this time; None if there is none that may be read.

        Args:
            sha256: Digest of the source's bytes, 64 hexadecimal digits in lower case.
            seconds: Presentation time in seconds.

        Raises:
            UsageError: It is no such digest, or no such time.
        """
        name = _file_name(seconds)
        with suppress(OSError), self._folder(sha256) as folder:
            with open(regular_file(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                webp = file.read(MOST_PICTURE_BYTES + 1)
            return webp if 0 < len(webp) <= MOST_PICTURE_BYTES else None
        return None

    def write(self, sha256: str, seconds: float, webp: bytes) -> None:
        """Keep a thumbnail, in place of one of the same time. It appears when it is complete.

        Args:
            sha256: Digest of the source's bytes, 64 hexadecimal digits in lower case.
            seconds: Presentation time, from 0 to MOST_MILLISECONDS / 1000; it counts in whole milliseconds.
            webp: The picture as a WebP file.

        Raises:
            UsageError: It is no such digest, or no such time.
            OutputError: A bound is reached, a folder on the way is a symbolic link, or the disk refuses.
        """
        name, prefix = _file_name(seconds), _parts(sha256)[0]
        if len(webp) > MOST_PICTURE_BYTES:
            raise OutputError(f"a thumbnail: expected at most {MOST_PICTURE_BYTES} bytes, got {len(webp)}")
        try:
            if prefix not in self._used:
                self._used[prefix] = self._size_of(prefix)
            if self._used[prefix] + len(webp) > self._part_bytes:
                raise OutputError(
                    f"{self._out / NAME}: expected at most {self._part_bytes * 256} bytes of thumbnails; delete the"
                    " folder to make room for others"
                )
            with _opened(self._out, [NAME, *_parts(sha256)], create=True) as folder:
                names = os.listdir(folder)
                if len(names) >= MOST_PICTURES and name not in names:
                    raise OutputError(f"{self._out / NAME}: expected at most {MOST_PICTURES} thumbnails of a source")
                # Several processes may make the same thumbnail.
                with atomic_file(name, partial=f".{name}.{os.getpid()}.partial", dir_fd=folder) as file:
                    file.write(webp)
        except OSError as error:
            raise OutputError(f"{self._out / NAME}: a thumbnail cannot be written: {error.strerror}") from None
        self._used[prefix] += len(webp)

    def forget(self, sha256: str) -> None:
        """Delete the thumbnails of a source, if it has any.

        Args:
            sha256: Digest of the source's bytes, 64 hexadecimal digits in lower case.

        Raises:
            UsageError: It is no such digest.
            OutputError: The disk refuses.
        """
        prefix, name = _parts(sha256)
        try:
            with suppress(FileNotFoundError), _opened(self._out, [NAME, prefix]) as parent:
                with self._folder(sha256) as folder:
                    for file in os.listdir(folder):
                        os.unlink(file, dir_fd=folder)
                os.rmdir(name, dir_fd=parent)
        except OSError as error:
            raise OutputError(f"{self._out / NAME}: thumbnails cannot be deleted: {error.strerror}") from None
        self._used.pop(prefix, None)

    def forget_oldest(self, sha256: str) -> None:
        """Delete the thumbnails that were written first, of another source, to make room for those of a source.

        Args:
            sha256: Digest of the bytes of the source that needs room; the other one has the same first two digits.

        Raises:
            UsageError: It is no such digest.
            OutputError: The disk refuses.
        """
        prefix, name = _parts(sha256)
        written: dict[str, int] = {}
        with suppress(OSError), _opened(self._out, [NAME, prefix]) as parent:
            for other in filter(_DIGEST.fullmatch, os.listdir(parent)):
                written[other] = os.stat(other, dir_fd=parent, follow_symlinks=False).st_mtime_ns
        written.pop(name, None)
        if written:
            self.forget(min(written, key=lambda other: written[other]))

    def _folder(self, sha256: str) -> AbstractContextManager[int]:
        return _opened(self._out, [NAME, *_parts(sha256)])

    def _size_of(self, prefix: str) -> int:
        """Return the bytes of all thumbnails of sources whose digests begin with two digits."""
        size = 0
        with suppress(FileNotFoundError), _opened(self._out, [NAME, prefix]) as folder:
            for source in os.listdir(folder):
                with suppress(OSError), _opened(self._out, [NAME, prefix, source]) as inner, os.scandir(inner) as files:
                    size += sum(file.stat(follow_symlinks=False).st_size for file in files)
        return size


@contextmanager
def _opened(out: Path, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open a folder below an output folder without following symbolic links on the way."""
    with ExitStack() as stack:
        # The output folder itself may be a link: its owner chose it.
        folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        for name in names:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            folder = os.open(name, _FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
        yield folder


def _parts(sha256: str) -> tuple[str, str]:
    """Return the names of the folders of a source."""
    if not _DIGEST.fullmatch(sha256):
        raise UsageError(f"digest: expected 64 hexadecimal digits in lower case, got {sha256!r:.80}")
    return sha256[:2], sha256


def _file_name(seconds: float) -> str:
    # A NaN and an infinity are refused, too.
    if not 0 <= seconds * 1000 <= MOST_MILLISECONDS:
        raise UsageError(f"time of a thumbnail: expected 0 to {MOST_MILLISECONDS / 1000} seconds, got {seconds}")
    return f"{round(seconds * 1000):09}.webp"
