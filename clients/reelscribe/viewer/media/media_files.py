"""The bytes of sources: which a browser can play, and an open file of the source that a record names.

Where the ledger knows a file, its size and the time at which it was written must be those that the run has seen: a
library may be moved or copied with its times. Without a ledger the size alone counts, and no symbolic link may be on
the way. Of a source in a store, the ledger must know the version.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.storage.address import is_stored, suffix
from reelscribe.storage.objects import StoredObject
from reelscribe.viewer.index.saved_record import SavedRecord
from reelscribe.viewer.index.source_row import BadLine, SourceRow, path_bytes
from reelscribe.viewer.pages.views import Playback

_VIDEO_CODECS = {"h264", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "libaom-av1"}
_AUDIO_CODECS = {"aac", "mp3", "mp3float", "opus", "libopus", "vorbis", "libvorbis", "flac", "pcm_s16le", "pcm_u8"}
_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",  # browsers that know its codecs read it, but not under its own type
    ".webm": "video/webm",
    ".mkv": "video/x-matroska",
    ".ogv": "video/ogg",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
    ".aac": "audio/aac",
    ".flac": "audio/flac",
    ".wav": "audio/wav",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
}


class MediaRefused(Exception):
    """The bytes of a source are not shown; the message says why."""


class MediaNotNow(MediaRefused):
    """The bytes of a source are not shown now, and may be later."""


@dataclass(frozen=True)
class OpenMedia:
    """A source that is open for reading."""

    descriptor: int
    type: str
    """Its media type, such as "video/mp4"."""


@dataclass(frozen=True)
class StoredMedia:
    """A source in a store."""

    stored: StoredObject
    """The source as the run has read it."""
    type: str
    """Its media type."""


class MediaFiles:
    """Opens the sources of a folder of results, and nothing else. Any thread may use it."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def open(self, row: SourceRow) -> OpenMedia:
        """Open a source that is still what the run has read.

        Args:
            row: Its row in the index.

        Returns:
            The open file, whose descriptor the caller closes.

        Raises:
            MediaRefused: It is gone, is not the file that the run has read, or is nothing that a browser plays.
        """
        media_type = _type_of(row)
        return OpenMedia(self._open(row), media_type)

    def stored(self, row: SourceRow) -> StoredMedia:
        """Return a source in a store as the run has read it. The store is not asked.

        Args:
            row: Its row in the index.

        Raises:
            MediaRefused: No run has read it, or it is nothing that a browser plays.
        """
        return StoredMedia(self._stored(row), _type_of(row))

    @contextmanager
    def checked_path(self, row: SourceRow) -> Iterator[Path]:
        """Open a source that is still what the run has read, and yield a path of the open file for child processes.

        Whatever takes the place of the source meanwhile, the path leads to the file that was checked.

        Args:
            row: Its row in the index.

        Raises:
            MediaRefused: It is gone, or is not the file that the run has read.
        """
        descriptor = self._open(row)
        try:
            yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def check(self, row: SourceRow) -> str:
        """Return why a source cannot be read, as a sentence; empty if it can. No store is asked.

        Args:
            row: Its row in the index.
        """
        try:
            if is_stored(row.path):
                self._stored(row)
            else:
                os.close(self._open(row))
        except MediaRefused as error:
            return f"{error}."
        return ""

    def _stored(self, row: SourceRow) -> StoredObject:
        known = self._stat_in_ledger(path_bytes(row.path))
        if known is None or known.split(" ")[0] != str(row.bytes):
            raise MediaRefused(f"{row.path} is in a store, and no ledger knows which version of it the run has read")
        return StoredObject.from_stat(row.path, known)

    def _open(self, row: SourceRow) -> int:
        if is_stored(row.path):
            raise MediaRefused(f"{row.path} is in a store; only reelscribe browse plays it, and only as it is")
        try:
            path = path_bytes(row.path)
            # O_NONBLOCK: opening a pipe would wait for its other end.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError, BadLine) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise MediaRefused(f"{row.path} cannot be read: {reason}") from None
        try:
            status = os.fstat(descriptor)
            # What the file that is open is called tells of links on the way, whatever the path leads to by now.
            is_linked = os.readlink(f"/proc/self/fd/{descriptor}".encode()) != path
            self._check(row, path, status, is_linked=is_linked)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check(self, row: SourceRow, path: bytes, status: os.stat_result, *, is_linked: bool) -> None:
        """Raise MediaRefused for what is not the file that the run has read."""
        if not stat.S_ISREG(status.st_mode):
            raise MediaRefused(f"{row.path} is not a file any more")
        known = self._stat_in_ledger(path)
        if is_linked and known is None:
            raise MediaRefused(
                f"{row.path} leads through a symbolic link, and no ledger knows which file the run has read"
            )
        if row.bytes != status.st_size:
            said = "no size" if row.bytes is None else format(row.bytes, ",")
            raise MediaRefused(
                f"{row.path} has changed since the run: it has {status.st_size:,} bytes, and its record says {said}"
            )
        if known is not None and known.split()[:2] != [str(status.st_size), str(status.st_mtime_ns)]:
            what = "leads through a symbolic link to a file" if is_linked else "is a file"
            raise MediaRefused(
                f"{row.path} {what} that the run has not read, or that has changed since; run it again to read it"
            )

    def _stat_in_ledger(self, path: bytes) -> str | None:
        """Return the `file_stat` that the source had when a run read it; None if no ledger knows it."""
        if not (self._out / LEDGER).exists():
            return None
        try:
            with LedgerReader(self._out) as ledger:
                return ledger.stat_of(path)
        except OutputError:
            return None


def playback(row: SourceRow, record: SavedRecord, files: MediaFiles, *, previews: bool) -> Playback:
    """Decide how a source is played. A store is only asked when its source is played.

    Args:
        row: Its row in the index.
        record: Its record.
        files: The files of the sources.
        previews: Whether previews are made of what browsers cannot play.
    """
    if problem := files.check(row):
        return Playback("none", f"The file cannot be played: {problem}")
    return playback_of_format(row, record, previews=previews)


def playback_of_format(row: SourceRow, record: SavedRecord, *, previews: bool) -> Playback:
    """Decide how a source is played whose file is there.

    Args:
        row: Its row in the index.
        record: Its record.
        previews: Whether previews are made of what browsers cannot play.
    """
    media_type, in_store = _TYPES.get(suffix(row.path)), is_stored(row.path)
    previews = previews and not in_store
    video = record.media.video_codec if record.media else ""
    audio = record.audio.codec if record.audio else record.media.audio_codec if record.media else None
    video_plays, audio_plays = not video or video in _VIDEO_CODECS, not audio or audio in _AUDIO_CODECS
    others = any(stream and stream.other_streams for stream in (record.media, record.audio))
    if media_type and video_plays and audio_plays and (video or audio) and not (others and previews):
        player: Literal["video", "audio"] = "video" if video else "audio"
        return Playback(player, type=media_type, or_preview=previews and bool(video), in_store=in_store)
    if previews and (video or audio):
        why = "may play another of its streams" if others and video_plays and audio_plays else "cannot play the file"
        return Playback("preview", f"This is a small preview, because browsers {why}.", "video/webm")
    if not video and not audio:
        return Playback("none", "No video and no audio that could be played was found in the file.")
    codecs = " and ".join(codec for codec in (video, audio) if codec)
    advice = "To watch small previews of such files, start reelscribe browse with --transcode."
    if in_store:
        advice = "Previews are made of files of this machine only."
    return Playback("none", f"Browsers cannot play {suffix(row.path) or 'such'} files with {codecs}. {advice}")


def _type_of(row: SourceRow) -> str:
    media_type = _TYPES.get(suffix(row.path))
    if media_type is None:
        raise MediaRefused(f"{row.path}: no browser plays files of this suffix")
    return media_type
