"""The copy of a run's folder in a bucket, from which another machine goes on.

A run into a bucket works in a folder of its machine, and copies it: the ledger every few minutes, and at its end
everything. The ledger comes first, and replaces only the one that this folder has sent, so of two runs that go on from
the same copy one ends. What was sent is remembered in the folder, in `sent.sqlite`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from types import TracebackType
from typing import IO, NamedTuple, Self, TypeVar

from reelscribe._files import FolderLock, atomic_file, file_stat, regular_file
from reelscribe.errors import (
    MediaError,
    NoSuchObject,
    OutputError,
    ReelscribeError,
    SourceChanged,
    StoreUnavailable,
    UsageError,
)
from reelscribe.export.beside import NAME as BESIDE
from reelscribe.export.folder import NAME as EXPORTS
from reelscribe.results.annotations import FAILURES_NAME
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.results.schema import copy_ledger, open_memory, output_errors
from reelscribe.storage.address import BUCKET_SCHEMES, check_address, is_object, looks_like_address
from reelscribe.storage.objects import ObjectStore, StoredObject, retried
from reelscribe.storage.stores import Stores
from reelscribe.thumbnails.store import NAME as THUMBNAILS

T = TypeVar("T")

NAME = "sent.sqlite"
"""Name of the file in a folder that says what has been sent."""

SEND_SECONDS = 300.0
"""Seconds between two times that what is new is sent while a run lasts. They are more where sending takes long, so that
it takes at most a tenth of the time."""

MOST_FAILURES = 3
"""Number of times in a row that the store may not be available then."""

_FETCHED = (BESIDE, EXPORTS, FAILURES_NAME, LEDGER)
"""What another machine needs to go on; thumbnails are made anew where pages need them. The ledger comes last."""

_UNFINISHED = (".partial", ".ordered", ".old", "-wal", "-shm", "-journal")
"""What the names of files end in that are being written; earlier versions wrote ".ordered"."""

_SENDERS = 8
"""Number of files that are sent at the same time."""

_FILES_AT_ONCE = 1000

_CLOCK_SECONDS = 2.0
"""Seconds that the time of a folder may be behind, as some file systems keep times."""

_log = logging.getLogger(__name__)


def work_folder(out: str | os.PathLike[str], work_dir: str | os.PathLike[str] | None) -> tuple[Path, str | None]:
    """Return the folder in which a run works, and the address of the bucket's folder for the copy, or None.

    Args:
        out: Where the results shall be: a folder of this machine, or an address such as s3://bucket/results/.
        work_dir: The folder in which the run works, if `out` is an address; None if it is a folder.

    Raises:
        UsageError: `out` is an address that cannot be written to or without a folder to work in, or that is named
            although `out` is a folder; or no folder can be there.
    """
    name = os.fspath(out)
    if isinstance(out, Path) and name.startswith(tuple(f"{scheme}:/" for scheme in BUCKET_SCHEMES)):
        raise UsageError(f"out: expected an address as text, got the path {name}, which lacks a slash")
    if not looks_like_address(name):
        if work_dir is not None:
            raise UsageError(
                f"--work-dir: expected it only with an --out in a bucket, got the folder {name}, in which the run works"
                " itself; leave --work-dir out"
            )
        return _folder("--out", name), None
    if not is_object(name):
        raise UsageError(
            f"--out: expected a folder, or one of a bucket, such as s3://bucket/results/, gs:// or az://, got {name.partition('://')[0]}"
            "://..., where nothing can be written"
        )
    check_address(name)
    if work_dir is None or looks_like_address(os.fspath(work_dir)):
        raise UsageError(
            f"--out {name}: expected --work-dir with a folder of this machine, in which the run works, and which is"
            f" copied to the bucket, got {'none' if work_dir is None else 'an address'}"
        )
    return _folder("--work-dir", os.fspath(work_dir)), f"{name.rstrip('/')}/"


def _folder(option: str, name: str) -> Path:
    """Return a path at which a folder is or can be made. Raises UsageError if something else is there or above."""
    path = Path(name)
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    got = "" if name else "an empty name"
    if os.path.lexists(there) and not there.is_dir():
        got = f"{there}, which is none"
    elif not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        got = f"{there}, where you may not write"
    if got:
        raise UsageError(
            f"{option}: expected a folder, or a path at which one can be made, got {got}; choose another path"
        )
    return path


def send_exports(address: str, folder: Path) -> None:
    """Send what was exported into the folder of a run after its end.

    Args:
        address: Address of the copy, from `work_folder`.
        folder: The folder.

    Raises:
        OutputError: Another folder has gone on from the copy, or it cannot be sent.
    """
    with FolderLock(folder, "export"), BucketCopy(address, folder) as copy:
        copy.send(everything=True)


@contextmanager
def ledger_folder(folder: Path, address: str | None) -> Iterator[Path]:
    """Provide a folder with the ledger from which a run would go on, without changing anything.

    Args:
        folder: The folder in which the run would work.
        address: Address of its copy, from `work_folder`; None if it has none.

    Yields:
        The folder itself, or one for the duration of the block, with what is in the bucket.

    Raises:
        OutputError: The store cannot be read.
    """
    if address is None or (folder / LEDGER).exists():
        yield folder
        return
    with TemporaryDirectory(prefix="reelscribe-") as other, BucketCopy(address, Path(other)) as copy:
        copy.fetch()
        yield Path(other)


class _Sent(NamedTuple):
    """A file as it was sent."""

    sha256: str
    """Digest of its content, in hexadecimal digits."""
    stat: str
    """The `file_stat` of the file; of the ledger "sent". Empty as long as it is not known to have arrived."""
    version: str = ""
    """Version of the ledger in the bucket; empty if there was none, and for other files."""


class BucketCopy:
    """The copy of a run's folder, as a context manager that reserves the folder for whoever sends.

    `fetch` and `send` wait for the store, so that an event loop calls them in threads.
    """

    def __init__(self, address: str, folder: Path) -> None:
        """Ask nothing yet.

        Args:
            address: Address of the copy, which ends with a slash.
            folder: The folder of the run.
        """
        self._address, self._folder = address, folder
        self._stores = Stores(attempts=1)
        self._memory = _Memory(folder, address)
        self._lock = Lock()
        """Held by the thread that asks the store."""
        self._given_up = Event()
        self._is_new = False
        """True if the folder has just begun, so that the bucket was not written to from it."""
        self._failure: ReelscribeError | None = None
        """The error of sending because of which the run ends."""
        self._looked = 0.0
        """When thumbnails were looked for, in seconds since 1970: those of folders that are older were sent."""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in self._folder.iterdir() if not each.name.startswith(".")}
        if names and not names & {LEDGER, NAME}:
            raise UsageError(
                f"--work-dir: expected the folder of a run, or an empty one, as all files in it are copied to the"
                f" bucket; got {self._folder} with {min(names)}; choose another folder"
            )
        self._memory.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up.set()
        with self._lock:  # a thread for which nobody waits any more has it until it sees that
            self._memory.close()
            self._stores.close()

    def fetch(self) -> None:
        """Go on from the copy, if the folder has no ledger; if it has one, check that nobody else has gone on.

        Raises:
            OutputError: Another folder has gone on from the copy, or the store cannot be read.
            UsageError: A package that the store needs is not installed.
        """
        with self._lock, self._errors():
            self._is_new = not (self._folder / LEDGER).exists()
            if self._is_new or self._retried(self._own_ledger) is None:  # or somebody has deleted the copy
                self._memory.forget([*self._memory.names()])
            for name in _FETCHED if self._is_new else ():
                with suppress(NoSuchObject):
                    self._fetch(name)

    def send(self, *, everything: bool) -> None:
        """Send the ledger, and then what is new.

        Args:
            everything: Whether to send all files, and to delete what is gone from the folder; False for thumbnails.

        Raises:
            OutputError: Another folder has gone on from the copy, or the store cannot be written to.
        """
        with self._errors():
            self._send(everything=everything)

    async def keep_sending(self) -> None:
        """Send what is new every few minutes, until cancelled.

        From a new folder, something is sent at once, so that it shows early whether that is possible.

        Raises:
            OutputError: As `send` does, but the store was not available several times in a row.
        """
        pause, failures = 0.0 if self._is_new else SEND_SECONDS, 0
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                with self._errors(passes=failures + 1 < MOST_FAILURES):
                    await asyncio.to_thread(self._send, everything=False)
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                _log.warning("%s: what is new cannot be sent: %s; trying again later", self._address, error)
            except ReelscribeError as error:
                self._failure = error
                raise
            pause = max(SEND_SECONDS, 9 * (time.monotonic() - began))

    async def finish(self, ended_by: BaseException | None) -> None:
        """Send everything at the end of a run, unless it was ended at once, or ended because nothing can be sent.

        Args:
            ended_by: The error that has ended the run; None if it was done or stopped.

        Raises:
            OutputError: As `send` does, unless an error has ended the run.
        """
        if not self._failure and (ended_by is None or isinstance(ended_by, ReelscribeError)):
            try:
                await asyncio.to_thread(self.send, everything=True)
            except ReelscribeError as error:
                self._failure = error
        if self._failure and ended_by is None:
            raise self._failure
        if self._failure and ended_by is not self._failure:
            _log.warning("%s", self._failure)

    @property
    def _store(self) -> ObjectStore:
        return self._stores.of(self._address)

    # The ledger.

    def _own_ledger(self) -> StoredObject | None:
        """Return the ledger in the bucket; None if there is none. Raises OutputError if another folder has sent it."""
        address, sent = self._address + LEDGER, self._memory.find(LEDGER)
        try:
            there = self._store.info(address)
        except NoSuchObject:
            return None
        if sent and not sent.stat and there.version != sent.version and self._digest(there) == sent.sha256:
            # It has arrived, but its answer has not, or the process was killed before.
            sent = sent._replace(stat="sent", version=there.version)
            self._memory.remember({LEDGER: sent})
        if sent is None or there.version != sent.version:
            raise self._taken_over()
        return there

    def _taken_over(self) -> OutputError:
        return OutputError(
            f"{self._address}{LEDGER}: expected the ledger that was last sent from {self._folder}, got another one, so"
            " another machine or folder has gone on from it; to take over from there, run the command with an empty"
            " --work-dir"
        )

    def _send_ledger(self) -> None:
        copy = self._folder / f".{LEDGER}.copy"
        copy.unlink(missing_ok=True)  # of a process that was killed
        try:
            copy_ledger(self._folder / LEDGER, copy)
            with copy.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._retried(lambda: self._put_ledger(file, digest))
        finally:
            copy.unlink(missing_ok=True)

    def _put_ledger(self, file: IO[bytes], digest: str) -> None:
        """Put the ledger in the place of the one that was last sent, unless it is that."""
        there, sent = self._own_ledger(), self._memory.find(LEDGER)
        if there and sent and sent.stat and sent.sha256 == digest:
            return
        # Remembered before it is there, so that it is known as ours however this process ends.
        self._memory.remember({LEDGER: _Sent(digest, "", there.version if there else "")})
        try:
            version = self._store.write(self._address + LEDGER, file, there)
        except SourceChanged:  # by another machine, or by an attempt whose answer was lost, which the next one tells
            raise StoreUnavailable("the ledger was replaced while it was sent, again and again") from None
        self._memory.remember({LEDGER: _Sent(digest, "sent", version)})

    def _digest(self, stored: StoredObject) -> str:
        digest = hashlib.sha256()
        for block in self._read(stored, 0):
            digest.update(block)
        return digest.hexdigest()

    def _read(self, stored: StoredObject, start: int) -> Iterator[bytes]:
        for block in self._store.read(stored, start):
            self._check_wanted()
            yield block

    def _check_wanted(self) -> None:
        if self._given_up.is_set():
            raise StoreUnavailable("the run was ended at once, so nobody waits for the store")

    def _fetch(self, name: str) -> None:
        """Fetch a file, which appears when it is whole. Raises NoSuchObject if there is none."""
        path = self._folder / name
        stored = self._retried(lambda: self._store.info(self._address + name))
        for suffix in ("-wal", "-shm"):  # of a database that somebody has deleted
            path.with_name(name + suffix).unlink(missing_ok=True)
        with atomic_file(path, durable=True, partial=f".{name}.partial") as file:

            def read_on() -> None:
                if file.tell() < stored.size:
                    file.writelines(self._read(stored, file.tell()))
                if file.tell() < stored.size:
                    raise StoreUnavailable("the store sends fewer bytes than it has told")

            self._retried(read_on)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._memory.remember({name: _Sent(digest, "sent", stored.version)})

    # All files.

    def _send(self, *, everything: bool) -> None:
        with self._lock:
            now = time.time()
            self._send_ledger()
            results = _files(self._folder, but=(LEDGER, NAME, THUMBNAILS)) if everything else ()
            self._send_files(chain(self._thumbnails(), results))
            self._looked = now - _CLOCK_SECONDS
            if everything:
                self._delete_gone()

    def _thumbnails(self) -> Iterator[Path]:
        """Yield the thumbnails of sources that have got any since they were last looked for."""
        for source in chain.from_iterable(map(_folders, _folders(self._folder / THUMBNAILS))):
            with suppress(FileNotFoundError):  # it was deleted to make room
                if source.stat().st_mtime >= self._looked:
                    yield from _files(source)

    def _send_files(self, files: Iterable[Path]) -> None:
        """Send files that are new or have changed."""
        named = ((str(path.relative_to(self._folder)), path) for path in files)
        known = ((name, path, self._memory.find(name)) for name, path in named)
        changed = (each for each in known if each[2] is None or each[2].stat != file_stat(str(each[1])))
        with ThreadPoolExecutor(_SENDERS, "bucket") as threads:
            while some := list(islice(changed, _FILES_AT_ONCE)):
                done: dict[str, _Sent] = {}
                try:
                    for (name, _, _), sent in zip(
                        some, threads.map(self._send_file, *zip(*some, strict=True)), strict=True
                    ):
                        if sent:
                            done[name] = sent
                finally:
                    self._memory.remember(done)

    def _send_file(self, name: str, path: Path, sent: _Sent | None) -> _Sent | None:
        """Send a file if its content is new; return how it was sent, or None if it is gone."""
        self._check_wanted()
        address = self._address_of(name)
        try:
            with open(path, "rb", opener=regular_file) as file:
                stat, digest = file_stat(file.fileno()), hashlib.file_digest(file, "sha256").hexdigest()
                if sent is None or sent.sha256 != digest:
                    anything = StoredObject(address, 0, "")
                    self._retried(lambda: self._store.write(address, file, anything))
        except FileNotFoundError:
            return None
        return _Sent(digest, stat)

    def _delete_gone(self) -> None:
        """Delete what was sent and is not in the folder any more."""
        gone = [name for name in self._memory.names() if not os.path.lexists(self._folder / name)]
        with ThreadPoolExecutor(_SENDERS, "bucket") as threads:
            for _ in threads.map(lambda name: self._retried(lambda: self._store.delete(self._address_of(name))), gone):
                pass
        self._memory.forget(gone)

    def _address_of(self, name: str) -> str:
        """Return the address of the copy of a file. Keys are UTF-8, which names of files need not be."""
        return self._address + os.fsencode(name).decode("utf-8", "backslashreplace")

    def _retried(self, work: Callable[[], T]) -> T:
        return retried(work, give_up=self._given_up.wait)

    @contextmanager
    def _errors(self, *, passes: bool = False) -> Iterator[None]:
        """Turn errors of the store into an OutputError; one that may be gone later passes if it shall."""
        try:
            yield
        except SourceChanged:  # while it was read, by who goes on
            raise self._taken_over() from None
        except (MediaError, OSError) as error:
            if passes and isinstance(error, StoreUnavailable):
                raise
            raise OutputError(
                f"{self._address}: expected a folder of a bucket to which {self._folder} can be copied: {error}; then"
                " run the same command again, as nothing is lost"
            ) from None


class _Memory:
    """What was sent to a copy. One process at a time has it open, and one of its threads at a time uses it."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path, self._address = folder / NAME, address

    def open(self) -> None:
        """Open the file, which is created if it is missing."""
        table = (
            "sent (copy TEXT, name BLOB, sha256 TEXT, stat TEXT, version TEXT, PRIMARY KEY (copy, name)) WITHOUT ROWID"
        )
        with output_errors(self._path, "written"):
            self._database = open_memory(self._path, table)
            self._database.execute("PRAGMA synchronous = FULL")  # what is known of the ledger survives a loss of power

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def find(self, name: str) -> _Sent | None:
        """Return how a file was sent; None if it was not."""
        key = (self._address, os.fsencode(name))
        with output_errors(self._path, "read"):
            rows = self._database.execute("SELECT sha256, stat, version FROM sent WHERE copy = ? AND name = ?", key)
            return next((_Sent(*row) for row in rows), None)

    def names(self) -> Iterator[str]:
        """Yield the names of all files."""
        with output_errors(self._path, "read"):
            for (name,) in self._database.execute("SELECT name FROM sent WHERE copy = ?", (self._address,)):
                yield os.fsdecode(name)

    def remember(self, sent: Mapping[str, _Sent]) -> None:
        """Remember how files were sent, by their names."""
        with output_errors(self._path, "written"):
            self._database.execute("BEGIN")
            rows = ((self._address, os.fsencode(name), *values) for name, values in sent.items())
            self._database.executemany("INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")

    def forget(self, names: Iterable[str]) -> None:
        """Forget files."""
        with output_errors(self._path, "written"):
            for name in names:
                self._database.execute(
                    "DELETE FROM sent WHERE copy = ? AND name = ?", (self._address, os.fsencode(name))
                )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, and is neither hidden nor being written; nothing if there is no such folder."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [each for each in entries if not each.name.startswith(".") and not each.name.endswith(_UNFINISHED)]
    return []


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder. No symbolic link is followed."""
    return (folder / each.name for each in _entries(folder) if each.is_dir(follow_symlinks=False))


def _files(folder: Path, but: Container[str] = ()) -> Iterator[Path]:
    """Yield the files below a folder, except for some files and folders in it. No symbolic link is followed."""
    for each in _entries(folder):
        if each.is_file(follow_symlinks=False) and each.name not in but:
            yield folder / each.name
    for inner in _folders(folder):
        if inner.name not in but:
            yield from _files(inner)
