"""Media files in the bodies of requests: videos and recordings, which decode processes read beside the worker.

A body becomes a file in memory, which a decode process opens by its name under /proc. What is chosen of it, how it is
decoded, and what becomes of the answers is the client's own code (`reelscribe.run.tracks`), and the response has the
fields of the file's record in a run. A file that crashes a codec, makes it hang or wants too much memory costs its
process alone.

The processes, and the modules of the client, are loaded when the first file comes, which takes a second. A `FileKind`
has what differs between captions, clips and transcripts.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from reelscribe.errors import CallFull, FileRefused, LimitExceeded, MediaError, UnsupportedFormat, UsageError
from worker.request_batch import Headers, Unread

if TYPE_CHECKING:
    from reelscribe.run.tracks.medium import Medium, Options

T = TypeVar("T")

FILE_SECONDS = 60.0
"""The most seconds for decoding a file."""

CALL_SECONDS = 120.0
"""The most seconds for decoding all files of a call, well below TorchServe's responseTimeout, after which it would
replace the worker."""

STALL_SECONDS = 10.0
"""A decode process that makes no progress for so many seconds is killed."""

PROCESS_BYTES = 4 * 2**30
"""Limit for the address space of a decode process. Decoding 8K takes 1.5 GB."""

DECODED_BYTES = 2**29
"""The most bytes of all frames or samples that are chosen of a file, and of all files of a call."""

_OPTION = "x-reelscribe-"
"""What the names of headers with options begin with."""

_STARTS = (
    (0, b"\x1aE\xdf\xa3"),  # Matroska, WebM
    (0, b"fLaC"),
    (0, b"OggS"),
    (0, b"ID3"),
    (8, b"AVI "),
    (8, b"WAVE"),
    (0, b"FLV"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),  # ASF, WMA, WMV
    (0, b"\x00\x00\x01\xba"),  # MPEG program stream
    (0, b"FORM"),  # AIFF
    (0, b"caff"),
    (0, b"#!AMR"),
    *((4, box) for box in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # MP4, M4A, MOV
)
"""Offset and bytes by which containers are known."""

_STILLS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
"""Brands of pictures in the container of MP4."""

_PACKET = 188
"""Bytes of a packet of an MPEG transport stream, each of which begins with 0x47."""


def is_media_file(body: bytes | bytearray) -> bool:
    """Return whether the first bytes of `body` are those of a video or a recording."""
    if any(body.startswith(start, offset) for offset, start in _STARTS):
        return body[8:12] not in _STILLS
    if body[:1] == b"\x47" and len(body) >= _PACKET:
        return body[_PACKET : _PACKET + 1] in (b"\x47", b"")
    # MP3 and AAC without a container: eleven bits that are set, and neither a JPEG nor a layer that does not exist.
    return len(body) > 3 and body[0] == 0xFF and body[1] & 0xE0 == 0xE0 and body[1] not in (0xFF, 0xD8, 0xE8)


class FileKind(ABC):
    """What differs between captions, clips and transcripts of media files."""

    headers: ClassVar[frozenset[str]]
    """The names of the options, without "X-Reelscribe-" and in lower case."""
    fields: ClassVar[tuple[str, ...]]
    """The fields of a record that the response has, besides its status and error."""

    def __init__(self, description: Any, most_items: int) -> None:
        """Take the description of the model, as a client has it, and the most frames, clips or chunks of a file."""
        self.description, self.most_items = description, most_items

    @abstractmethod
    def options(self, values: Mapping[str, str]) -> Options:
        """Return the client's options of these values of headers.

        Raises:
            UsageError: A value cannot be used. ValueError: it is no number.
        """

    @abstractmethod
    def items(self, batches: Sequence[Any], options: Any) -> Any:
        """Return the items of decoded batches, as the model takes them."""

    @abstractmethod
    def results(self, saved: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of saved batches, in the order of time."""

    def summary(self, fields: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - only transcripts have one
        """Return what the response has before the fields of the record."""
        return {}


class CallLimits:
    """What the files of a call may take together."""

    def __init__(self) -> None:
        """Begin a call now."""
        self.ends = time.monotonic() + CALL_SECONDS
        """The time of the monotonic clock until when they may be decoded."""
        self.bytes_left = DECODED_BYTES
        """How many bytes more they may have when they are decoded."""


@dataclass(frozen=True)
class _Decoded:
    """What was read of a file."""

    opened: Any
    batches: list[Any]
    error: MediaError | None
    """Why it could not be read to its end."""


class FileRequest:
    """A request whose file has been decoded."""

    def __init__(self, kind: FileKind, medium: Medium, decoded: _Decoded) -> None:
        """Take what was decoded.

        Args:
            kind: What the file is made into.
            medium: The client's medium, with the options of the request.
            decoded: What was read of the file.
        """
        self._kind, self._medium, self._decoded = kind, medium, decoded
        self._counts = [len(batch.items) for batch in decoded.batches]
        self.items = kind.items(decoded.batches, medium.options)

    def response(self, results: list[Any]) -> dict[str, Any]:
        """Return the fields of the file's record, as JSON. It has an error, too, if the file is damaged."""
        from reelscribe.contract.source import Source
        from reelscribe.results.records import Model, ModelSettings, Record, with_job

        saved, at = [], 0
        for batch, count in zip(self._decoded.batches, self._counts, strict=True):
            saved.append(self._medium.results(batch, results[at : at + count]))
            at += count
        description, options = self._kind.description, self._medium.options
        model = Model(description.name, description.revision)
        settings = ModelSettings("", model, options.settings(description))
        job = self._job(saved)
        record = with_job(Record(Source("")), self._medium.kind, settings, job, lambda: self._kind.results(saved))
        fields = {name: value for name, value in record.fields() if name in {"status", "error", *self._kind.fields}}
        fields = {name: [*value] if isinstance(value, Iterator) else value for name, value in fields.items()}
        return {**self._kind.summary(fields), **fields}

    def _job(self, saved: list[Any]) -> Any:
        """Return the job that a run over the file would have ended with."""
        from reelscribe.contract.outcomes import SourceError
        from reelscribe.results.jobs import Job, missing_spans

        opened, failed = self._decoded.opened, self._decoded.error
        missing = missing_spans(sorted((each.first, each.stop, each.anchor) for each in saved), opened.total)
        job = Job(0, opened.to_save(), opened.total, done=True, error=None, missing=missing)
        if failed:
            error: Any = SourceError(type(failed).__name__, str(failed))
        else:
            error = self._medium.verdict(job, dict(Counter(why for each in saved for why in each.failure_reasons)))
        return Job(0, job.opened, job.total, done=True, error=error, missing=missing)


class MediaFiles:
    """Reads the media files of a worker's requests."""

    def __init__(self, kind: FileKind, processes: int) -> None:
        """Start nothing yet.

        Args:
            kind: What files are made into.
            processes: The most decode processes.
        """
        self._kind, self._processes = kind, max(1, processes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Any = None

    def request(self, body: bytes | bytearray, headers: Headers, call: CallLimits) -> Unread:
        """Accept a file, which is decoded later.

        Args:
            body: Its bytes.
            headers: The headers of the request, which hold the options.
            call: What is left for it and for the other files of the call.

        Raises:
            FileRefused: An option cannot be used.
            UnsupportedFormat: The server lacks the client's packages, which read files.
        """
        if self._loop is None:
            self._start()
        medium = self._medium(headers)
        return Unread(lambda: self._read(body, medium, call), values=10 * len(body) + 10**6)

    def _start(self) -> None:
        """Start the thread that waits for decode processes, and the first of these."""
        try:
            from reelscribe.decode_pool.pool import DecodePool
        except ImportError as error:
            raise UnsupportedFormat(
                f"body: media files are read by the client's packages, and {error.name} is not installed on the server;"
                " install reelscribe[server] there, or send arrays"
            ) from None
        started = Future[tuple[asyncio.AbstractEventLoop, Any]]()
        slot_bytes = self._kind.options({}).slot_bytes(self._kind.description)
        processes = DecodePool(
            self._processes, slot_bytes, self._processes, stall_seconds=STALL_SECONDS, memory_bytes=PROCESS_BYTES
        )

        async def keep_pool() -> None:
            try:
                async with processes as pool:
                    started.set_result((asyncio.get_running_loop(), pool))
                    await asyncio.Event().wait()
            except Exception as error:  # noqa: BLE001 - the thread of the request raises it
                started.set_exception(error)

        # It lives as long as the worker: the system kills a decode process when the thread that started it ends.
        threading.Thread(target=lambda: asyncio.run(keep_pool()), name="media files", daemon=True).start()
        self._loop, self._pool = started.result()

    def _medium(self, headers: Headers) -> Medium:
        """Return the client's medium with the options of a request."""
        values = {name.removeprefix(_OPTION): value for name, value in headers.items() if name.startswith(_OPTION)}
        known = ", ".join(f"X-Reelscribe-{name.title()}" for name in sorted(self._kind.headers))
        if unknown := sorted(values.keys() - self._kind.headers):
            raise FileRefused(f"option: expected one of {known}, got X-Reelscribe-{unknown[0].title()}; leave it out")
        try:
            options = self._kind.options(values)
            options.settings(self._kind.description)  # it checks them
        except UsageError as error:
            raise FileRefused(f"option: {error}") from None
        except ValueError:
            raise FileRefused(f"option: expected numbers where {known} have them, got something else") from None
        if options.slot_bytes(self._kind.description) > self._pool.slot_bytes:
            raise FileRefused("option: expected no more frames or pixels than by default, got more; ask for less")
        return options.medium(options, self._kind.description)

    def _read(self, body: bytes | bytearray, medium: Medium, call: CallLimits) -> FileRequest:
        """Decode a file.

        Raises:
            FileRefused: Nothing can be read of it.
            LimitExceeded: There is too much of it, or it takes too long.
            CallFull: The files that were joined with it took too long, or too much.
        """
        with _file_in_memory(body) as path:
            decoded = self._wait_for(self._decode(path, medium, call))
        if decoded.opened is None or (decoded.error and not decoded.batches):
            raise FileRefused(f"{type(decoded.error).__name__}: {decoded.error}")
        return FileRequest(self._kind, medium, decoded)

    async def _decode(self, path: str, medium: Medium, call: CallLimits) -> _Decoded:
        left = call.ends - time.monotonic()
        try:
            async with asyncio.timeout(min(FILE_SECONDS, left)):
                return await self._read_all(path, medium, call)
        except TimeoutError:
            if left < FILE_SECONDS:
                raise CallFull("call: the files that were joined with this one took too long; try again") from None
            raise LimitExceeded(
                f"file: at most {FILE_SECONDS:g} s to decode it, got more; ask for less of it, or use the client"
            ) from None

    async def _read_all(self, path: str, medium: Medium, call: CallLimits) -> _Decoded:
        from reelscribe.contract.source import Source, Span
        from reelscribe.decode_pool.commands import DecodedBatch

        command = medium.read(Source(path), None, None, ())
        opened, batches, items, size = None, list[Any](), 0, 0
        most, error = self._kind.most_items, None
        try:
            async with aclosing(self._pool.read(command, [Span(0, None)])) as read:
                async for item in read:
                    if not isinstance(item, DecodedBatch):
                        opened = item
                        continue
                    batch = item.copy_out()
                    batches.append(batch)
                    items, size = items + len(batch.items), size + batch.nbytes
                    call.bytes_left -= batch.nbytes
                    if items > most or size > DECODED_BYTES:
                        raise LimitExceeded(
                            f"file: at most {most} {medium.item}s with {DECODED_BYTES >> 20} MiB, got more; ask for"
                            " less of it, or use the client"
                        )
                    if call.bytes_left < 0:
                        raise CallFull("call: the files that were joined with this one hold too much; try again")
        except MediaError as failed:
            error = failed
        except BaseException:  # what is dropped leaves its room to the others
            call.bytes_left += size
            raise
        batches.sort(key=lambda batch: (batch.first, batch.stop))  # several processes may have read portions of it
        return _Decoded(opened, batches, error)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns in the thread of the processes."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def _file_in_memory(body: bytes | bytearray) -> Iterator[str]:
    """Copy a body into an anonymous file, and yield the name by which another process can open it."""
    with os.fdopen(os.memfd_create("body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as file:
        file.write(body)
        file.flush()
        # Of a file that nobody can change, a reader need not find out whether it does.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"
