"""Reads of a line of annotations.jsonl what the index keeps, without making objects of all the rest."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.viewer.index.saved_record import Clip, Error, SourcePart, Text, in_order, summary_texts
from reelscribe.viewer.index.word_rules import folded, indexed_text
from reelscribe.viewer.pages.parameters import TEXT_KINDS

MOST_BYTES = 2**28
"""Longest line that is read, in bytes."""

MOST_TEXTS = 2**22
"""Largest number of texts of one kind in a source that are indexed."""

_ESCAPED_BYTE = re.compile(r"\\u(dc[89a-f][0-9a-f])")
_MESSAGE_CHARACTERS = 500
_MOST_NAMES = 100


class _Media(msgspec.Struct, gc=False):
    duration_seconds: float | None = None


class _Audio(msgspec.Struct, gc=False):
    duration_seconds: float | None = None
    seconds: float | None = None


class _Nothing(msgspec.Struct, gc=False):
    """An object that is only counted."""


class _Flagged(msgspec.Struct, gc=False):
    flags: tuple[str, ...] = ()


class _Segment(Text, gc=False):
    language: str | None = None
    flags: tuple[str, ...] = ()


class _Line(msgspec.Struct, gc=False):
    source: SourcePart
    error: Error | None = None
    media: _Media | None = None
    audio: _Audio | None = None
    summary: SourceSummary | None = None
    speaker_settings: str | None = None
    summary_settings: str | None = None
    shots: list[_Nothing] = []
    shot_settings: str | None = None
    captions: list[_Flagged] = []
    caption_spans: list[Text] = []
    caption_failures: list[_Nothing] = []
    caption_settings: str | None = None
    clips: list[Clip] = []
    clip_failures: list[_Nothing] = []
    clip_settings: str | None = None
    segments: list[_Segment] = []
    translations: list[_Segment] = []
    speech_failures: list[_Nothing] = []
    speech_settings: str | None = None


_DECODER = msgspec.json.Decoder(_Line)


class BadLine(Exception):
    """A line is not a record; the message says why."""


class SourceRow(NamedTuple):
    """The row of a source in the index, in the order of the columns of its table."""

    doc: int
    """Its number in the index of texts."""
    id: str
    file: int
    """The file that has its record: ANNOTATIONS or JOURNAL of `reelscribe.viewer.index.databases`."""
    start: int
    """The position of its line in that file, in bytes."""
    size: int
    """Length of the line in bytes."""
    digest: bytes
    """Digest of the line, by which it is known again."""
    fingerprint: bytes
    """A digest of the facts that the ledger knows of it without reading its results, from `fingerprint`."""
    path: str
    content: str | None
    """Names its thumbnails and its preview: its SHA-256, or if that is not known, digits of its address and version."""
    bytes: int | None
    missing: int
    video: int
    """1 if it was opened as a video, otherwise 0."""
    seconds: float | None
    state: str
    error_type: str
    error: str
    title: str
    """The title that its summary gives it; empty if it has none."""
    captions: int
    clips: int
    segments: int
    shots: int
    failures: int
    languages: str
    """Codes with a space before and after each, the most frequent one first; empty for none."""
    flags: str
    """The same for flags."""
    found_by: str
    """Its path and then its tags, folded: what the library finds it by."""


class IndexedLine(NamedTuple):
    """A line as the index has it."""

    row: SourceRow
    texts: Sequence[Sequence[str]]
    """The texts of each kind, in the order of TEXT_KINDS."""

    def indexed(self) -> list[tuple[int, str]]:
        """Return the number of each text and its words."""
        return [
            (number, text if text.isascii() else indexed_text(text))
            for kind, texts in enumerate(self.texts)
            for number, text in enumerate(texts[:MOST_TEXTS], text_number(self.row.doc, kind, 0))
        ]


def text_number(doc: int, kind: int, position: int) -> int:
    """Return the number of a text in the index: a smaller one for an earlier text of a source.

    Args:
        doc: Number of its source, below 2**38.
        kind: Its kind, as an index of TEXT_KINDS.
        position: Its place among the texts of this kind, below MOST_TEXTS.
    """
    return (doc << 2 | kind) << 22 | position


def split_number(number: int) -> tuple[int, int, int]:
    """Return doc, kind and position of what `text_number` returned.

    Args:
        number: The number of a text.
    """
    return number >> 24, number >> 22 & 3, number & MOST_TEXTS - 1


def digest_of(line: bytes) -> bytes:
    """Return the digest of a line, by which it is known again. Processors have instructions for this one.

    Args:
        line: The line.
    """
    return hashlib.sha1(line, usedforsecurity=False).digest()


def source_id(path: bytes) -> str:
    """Return the id of a source: 16 hexadecimal digits of the SHA-256 of its absolute path.

    Args:
        path: The absolute path, as the operating system has it.
    """
    return hashlib.sha256(path).hexdigest()[:16]


def path_bytes(path: str) -> bytes:
    """Return a path of a record as the operating system has it; bytes that are not UTF-8 are text in records.

    Args:
        path: The absolute path of a record.

    Raises:
        BadLine: No system can have such a path.
    """
    try:
        return os.fsencode(_ESCAPED_BYTE.sub(lambda escape: chr(int(escape[1], 16)), path) if "\\" in path else path)
    except ValueError as error:
        raise BadLine(f"its path is none: {error}") from None


def fingerprint(*facts: Any) -> bytes:
    """Return a digest of what both a record and the ledger tell of a source, 8 bytes.

    Args:
        facts: The path as it was given, the size, the SHA-256, whether it is missing, the type of its error and the
            message, and the ids of the settings of captions, clips, shots, transcript, speakers and summary; None for
            what there is not.
    """
    return hashlib.blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=8).digest()


def read_line(line: bytes, *, doc: int, file: int, start: int) -> IndexedLine:
    """Read a line of annotations.jsonl.

    Args:
        line: The line.
        doc: The number that its source shall have.
        file: In which file it is.
        start: Where it begins there, in bytes.

    Raises:
        BadLine: It is not a record.
    """
    try:
        record = _DECODER.decode(line)
    except (ValueError, RecursionError, OverflowError) as problem:  # msgspec's own errors are ValueErrors
        raise BadLine(str(problem)) from None
    source, error = record.source, record.error
    media = record.media.duration_seconds if record.media else None
    audio = record.audio.duration_seconds or record.audio.seconds if record.audio else None
    failures = len(record.caption_failures) + len(record.clip_failures) + len(record.speech_failures)
    languages = _joined([text.language for text in record.segments if text.language])
    flagged = (record.captions, record.clips, record.segments, record.translations)
    flags = _joined([flag for items in flagged for item in items for flag in item.flags])
    error_type = error.type[:_MESSAGE_CHARACTERS] if error else ""
    tags = [*(["failed", error_type] if error else []), *(["gone"] if source.missing else []), flags, languages]
    row = SourceRow(
        doc=doc,
        id=source_id(path_bytes(source.absolute_path)),
        file=file,
        start=start,
        size=len(line),
        digest=digest_of(line),
        fingerprint=fingerprint(
            source.path,
            source.bytes,
            source.sha256,
            source.missing,
            error and error.type,
            error and error.message,
            record.caption_settings,
            record.clip_settings,
            record.shot_settings,
            record.speech_settings,
            record.speaker_settings,
            record.summary_settings,
        ),
        path=source.absolute_path,
        content=source.content,
        bytes=_integer(source.bytes),
        missing=int(source.missing),
        video=int(record.media is not None),
        seconds=media or audio,
        state="error" if error else "ok",
        error_type=error_type,
        error=error.message[:_MESSAGE_CHARACTERS] if error else "",
        title=record.summary.title[:_MESSAGE_CHARACTERS] if record.summary else "",
        captions=len(record.captions),
        clips=len(record.clips),
        segments=len(record.segments),
        shots=len(record.shots),
        failures=failures,
        languages=languages,
        flags=flags,
        found_by=folded(" ".join([source.absolute_path, *tags])),
    )
    texts: dict[str, Sequence[Text | Clip]] = {
        "summary": summary_texts(record.summary),
        "captions": record.caption_spans,
        "clips": record.clips,
        "transcript": in_order([*record.segments, *record.translations]),
    }
    return IndexedLine(row, [[text.text for text in texts[kind]] for kind in TEXT_KINDS])


def _integer(value: int | None) -> int | None:
    return value if value is not None and abs(value) < 2**63 else None


def _joined(names: list[str]) -> str:
    """Join short names, such as codes of languages. What has a space would be taken for two."""
    different = set(names)
    if not different:
        return ""
    # Counting is slow, and most sources have one language and one flag.
    ordered = [*different] if len(different) == 1 else [name for name, _ in Counter(names).most_common(_MOST_NAMES)]
    known = [name for name in ordered if len(name.split()) == 1 and len(name) <= 40]
    return f" {' '.join(known)} " if known else ""
