"""Results beside their sources: `film.en.srt` next to `film.mp4`, in the same folder or in the same bucket.

The folders belong to somebody else. So every file appears whole, and replaces nothing but what a run into the same
output folder has put there and nobody has changed since.

A name has the language only where cues show speech: captions and clips have none that is known, and a wrong one would
hide them from viewers who have chosen theirs. The record is not `film.json`, `film.info.json` or `film.mp4.json`, which
are names that downloaders and photo libraries give to files of their own.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from reelscribe._files import atomic_file, file_stat, regular_file
from reelscribe.contract.speech import ENGLISH
from reelscribe.errors import MediaError, NoSuchObject, UsageError, brief, reason_of
from reelscribe.export.annotations_reader import (
    AnnotatedSource,
    annotated_source,
    check_annotations,
    present_path,
    read_lines,
    read_models,
)
from reelscribe.export.cue_rules import DEFAULT_RULES, CueRules
from reelscribe.export.cues import shown_language
from reelscribe.export.folder import Memory
from reelscribe.export.formats import check_formats
from reelscribe.export.speakers import read_speaker_names
from reelscribe.export.subtitles import SubtitleFormat, subtitle_texts
from reelscribe.storage.address import is_address, is_member, is_web_address
from reelscribe.storage.objects import ObjectStore, StoredObject
from reelscribe.storage.stores import Stores

NAME = "beside.sqlite"
"""Name of the file in an output folder that says what has been written beside sources."""

_SUBTITLES: tuple[SubtitleFormat, ...] = ("srt", "vtt", "ass")
BESIDE_FORMATS = (*_SUBTITLES, "json")
"""The formats that can be written beside sources."""

_WRITERS = 8
"""Number of files that are written at the same time, as each waits for its disk or its store."""

_Outcome = Literal["written", "unchanged", "kept"]


@dataclass
class Beside:
    """What has become of the files beside sources."""

    written: int = 0
    """Number of the files that were written."""
    unchanged: int = 0
    """Number of those that were there already, with the same content."""
    kept: list[str] = field(default_factory=list)
    """Those that somebody else has made or changed, and that stay."""
    unwritable: int = 0
    """Number of the sources on web servers and in archives, which cannot be written to."""
    unused_names: list[str] = field(default_factory=list)
    """A line for each name in `speakers.toml` that is of nothing."""
    failures: list[str] = field(default_factory=list)
    """A line for each file that could not be written."""

    def add(self, name: str, outcome: Future[_Outcome]) -> None:
        """Wait for what becomes of a file, and add it."""
        try:
            what = outcome.result()
        except (OSError, ValueError, MediaError) as error:  # ValueError: no file can have this name
            self.add_failure(name, (isinstance(error, OSError) and error.strerror) or str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other files are written
            self.add_failure(name, reason_of(error, name))
        else:
            self.written += what == "written"
            self.unchanged += what == "unchanged"
            self.kept += [name] if what == "kept" else []

    def add_failure(self, name: str, reason: str) -> None:
        """Add a file, or a source, of which something cannot be written."""
        self.failures.append(f"{name}: cannot be written beside its source: {reason}")


def check_beside(formats: Sequence[str]) -> None:
    """Check that results can be written beside sources in all formats. A run calls this before it starts.

    Args:
        formats: Names of formats.

    Raises:
        UsageError: A format is none of `BESIDE_FORMATS`, or the library that it needs is missing.
    """
    for name in formats:
        if name not in BESIDE_FORMATS:
            raise UsageError(
                f"--beside: expected formats out of {', '.join(BESIDE_FORMATS)}, with commas, got {brief(name)}"
            )
    check_formats([name for name in formats if name in _SUBTITLES])


def write_beside(
    annotations: Path,
    out: Path,
    formats: Sequence[str],
    cues: CueRules = DEFAULT_RULES,
    *,
    overwrite: bool = False,
    drop_doubtful: bool = False,
) -> Beside:
    """Write results beside the sources that a run could read, and that were not gone when the last run ended.

    A source that failed has a file of its record only if something of it was annotated.

    A file that cannot be written costs the others nothing.

    Args:
        annotations: Path of annotations.jsonl.
        out: The output folder of the run, which remembers what was written.
        formats: Names from `BESIDE_FORMATS`.
        cues: The rules by which subtitles are made.
        overwrite: Whether to replace files that somebody else has made or changed.
        drop_doubtful: Whether segments of speech that have flags are left out of subtitles.

    Returns:
        What has become of the files.

    Raises:
        UsageError: A line is not a record, a package is not installed, or `speakers.toml` is not as it should be.
        OutputError: The output folder cannot remember what is written.
    """
    check_annotations(annotations)
    done = Beside()
    parse = partial(annotated_source, models=read_models(annotations), drop_doubtful=drop_doubtful)
    speakers = read_speaker_names(out)
    folders, waiting = _Folders(out), deque[tuple[str, Future[_Outcome]]]()
    with closing(Stores()) as stores, Memory(out / NAME) as memory, ThreadPoolExecutor(_WRITERS, "beside") as threads:
        names = _Names(filter(None, read_lines(annotations, present_path)), memory)
        for line, source in read_lines(annotations, lambda line: (line, speakers.applied(parse(line)))):
            if source.missing or source.bytes is None:
                continue
            if is_web_address(source.absolute_path) or is_member(source.absolute_path):
                done.unwritable += 1
                continue
            try:
                contents = list(_contents(line, source, formats, cues))
            except Exception as error:  # noqa: BLE001 - whatever it is, files are written beside the other sources
                done.add_failure(source.absolute_path, reason_of(error, source.absolute_path))
                continue
            for suffix, content in contents:
                name, is_free = names.take(source.absolute_path, suffix)
                place = _Objects(stores.of(name)) if is_address(name) else folders
                waiting.append((name, threads.submit(_write, place, name, content, memory, is_free, overwrite)))
                if len(waiting) == _WRITERS:
                    done.add(*waiting.popleft())
            del line, source, contents  # each may take hundreds of megabytes, so none stays while the next one is read
        for name, outcome in waiting:
            done.add(name, outcome)
    done.unused_names = speakers.unused()
    return done


def _contents(
    line: bytes, source: AnnotatedSource, formats: Sequence[str], cues: CueRules
) -> Iterator[tuple[str, bytes]]:
    """Yield what the name of each file of a source ends in, and its content."""
    language = shown_language(source, cues)
    for name in _SUBTITLES:
        said, english = subtitle_texts(name, source, cues) if name in formats else ("", "")
        # Where what is said is in English, too, it has the name of both.
        texts = {f".{ENGLISH}.{name}": english, f".{language}.{name}" if language else f".{name}": said}
        yield from ((suffix, text.encode(errors="backslashreplace")) for suffix, text in texts.items() if text)
    if "json" in formats and (source.has_results or source.error is None):
        yield ".reelscribe.json", line


def _write(place: _Place, name: str, content: bytes, memory: Memory, is_free: bool, overwrite: bool) -> _Outcome:
    """Write a file, unless it is there already or what is there is not ours."""
    if not is_free:
        raise FileExistsError("another source, or a file beside another source, has this name; rename one of them")
    digest = hashlib.sha256(content).hexdigest()
    there = place.find(name)
    if there and there.sha256 == digest:
        return "unchanged"
    if there and not overwrite and not memory.has_written(name, there.sha256):
        return "kept"
    memory.remember(name, digest)  # before it is there, so that it is known as ours however this process ends
    place.write(name, content, there)
    return "written"


class _Names:
    """Gives the files of each source names that nothing else has, and that stay when other sources are added."""

    def __init__(self, paths: Iterable[str], memory: Memory) -> None:
        self._taken, self._memory = set(paths), memory
        self._stems = Counter(os.path.splitext(path)[0] for path in self._taken)
        self._known = {  # who has made the memory may want to write elsewhere
            source: stem
            for _, source, stem in memory.names()
            if source in self._taken and stem in (source, os.path.splitext(source)[0])
        }
        self._owners = Counter(self._known.values())

    def take(self, path: str, suffix: str) -> tuple[str, bool]:
        """Return the name of a file of a source, and whether neither a source nor the file of another one has it.

        The name has the suffix of the source only where that told it from another source when it got its first file.
        """
        short = os.path.splitext(path)[0]
        stem = self._known.get(path, "")
        if self._owners[stem] != 1:  # it has no name yet, or shares it with a source that was gone for a while
            stem = short if self._stems[short] == 1 else path
        self._memory.remember_name("beside", path, stem)
        name = f"{stem}{suffix}"
        is_free = name not in self._taken
        self._taken.add(name)
        return name, is_free


class _There(NamedTuple):
    """A file that is there."""

    sha256: str
    """Digest of its content, in hexadecimal digits."""
    version: str
    """What changes whenever it is written to or replaced."""


class _Place(Protocol):
    """Where files can be, and be written to."""

    def find(self, name: str) -> _There | None:
        """Return the file that is there, or None."""

    def write(self, name: str, content: bytes, there: _There | None) -> None:
        """Write a file in the place of the one that was found, or of nothing."""


class _Folders:
    """The folders of this machine."""

    def __init__(self, out: Path) -> None:
        self._out = os.fsencode(out.absolute())

    def find(self, name: str) -> _There | None:
        with suppress(OSError):  # as a rule there is none
            Path(name).with_name(self._partial(name)).unlink()  # of a process that was killed
        try:
            mode = os.lstat(name).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            kind = "symbolic link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "special file"
            raise FileExistsError(f"a {kind}; expected a file or nothing there; remove it")
        version = file_stat(name)
        with open(name, "rb", opener=regular_file) as file:
            return _There(hashlib.file_digest(file, "sha256").hexdigest(), version)

    def write(self, name: str, content: bytes, there: _There | None) -> None:
        with atomic_file(name, partial=self._partial(name)) as file:
            file.write(content)
            file.flush()
            if file_stat(name) != (there.version if there else ""):
                raise FileExistsError("something else was put there in the meantime; run the same command again")

    def _partial(self, name: str) -> str:
        """Return what a file is called while it is incomplete, the same in every run into the output folder.

        Nobody else uses that name: one process at a time writes for an output folder (`Memory`).
        """
        key = hashlib.sha256(self._out + b"\0" + os.fsencode(name)).hexdigest()[:16]
        return f".reelscribe-{key}.partial"


class _Objects:
    """A store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, name: str) -> _There | None:
        try:
            stored = self._store.info(name)
        except NoSuchObject:
            return None
        digest = hashlib.sha256()
        for block in self._store.read(stored):
            digest.update(block)
        return _There(digest.hexdigest(), stored.stat)

    def write(self, name: str, content: bytes, there: _There | None) -> None:
        self._store.write(name, io.BytesIO(content), StoredObject.from_stat(name, there.version) if there else None)
