"""`annotations.jsonl` as subtitles and tables: docs/exports.md describes the files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from reelscribe.errors import UsageError, brief
from reelscribe.export.annotations import Kind, annotated_source, each_line, source_path
from reelscribe.export.cues import Cues
from reelscribe.export.subtitles import SubtitleFormat, SubtitleNames, common_folder, subtitle_files
from reelscribe.export.tables import TableFormat, Write, table_file

Format = Literal["vtt", "srt", "csv", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)
CUES: tuple[Cues, ...] = get_args(Cues)

_LIBRARIES = {"vtt": ("pysubs2", "client"), "srt": ("pysubs2", "client"), "parquet": ("pyarrow", "parquet")}
"""The package that a format needs, and the extra of ours that installs it."""


def export(annotations: Path, out: Path, formats: Sequence[str], cues: Cues = "both") -> list[Path]:
    """Write `annotations` into the folder `out` in each of `formats`; returns the files that were written.

    `cues` says what subtitles are made of; tables hold everything. A file is called `<name>.partial` until it is whole,
    and then takes the place of an older one. Raises UsageError for an unknown format, a library that is missing, `cues`
    of what no record has, a line that is no record, and a file that cannot be read or written.
    """
    formats = list(dict.fromkeys(formats))
    check_formats(formats)
    if cues not in CUES:
        raise UsageError(f"export: expected cues out of {', '.join(CUES)}, got {brief(cues)}")
    _check_file(annotations)
    written: list[Path] = []
    subtitles = _subtitles(annotations, out, formats, cues, written)
    tables: dict[Kind, list[Write]] = {}
    with ExitStack() as stack:

        def open_tables(kind: Kind) -> None:
            chosen = [name for name in get_args(TableFormat) if name in formats]
            tables[kind] = [stack.enter_context(table_file(kind, name, out, written)) for name in chosen]

        for record in each_line(annotations, annotated_source):
            for kind in record.kinds:
                if kind not in tables:
                    open_tables(kind)
            for write in chain(subtitles, *(tables[kind] for kind in record.kinds)):
                write(record)
            del record  # or the next one would be read beside it, and each may take hundreds of MB
        if not tables:
            open_tables("captions")
        elif subtitles and cues != "both" and cues not in tables:
            raise _nothing_to_show(annotations, cues)
    return written


def check_formats(formats: Sequence[str]) -> None:
    """Raises UsageError for an unknown format and for a library that is missing: better before a run than after it."""
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"export: expected formats out of {', '.join(FORMATS)}, got {brief(name)}")
        library, extra = _LIBRARIES.get(name, (None, None))
        if library and find_spec(library) is None:
            raise UsageError(
                f"export: {name} needs the package {library}; in the project's folder, pip install '.[{extra}]'"
            )


def _check_file(annotations: Path) -> None:
    if not annotations.is_file():  # nor a pipe: subtitles need a second reading
        reason = "is no regular file" if annotations.exists() else "does not exist"
        raise UsageError(f"export: {annotations} {reason}; expected the annotations.jsonl of a run that is done")


def _subtitles(annotations: Path, out: Path, formats: Sequence[str], cues: Cues, written: list[Path]) -> list[Write]:
    """What writes the subtitles of a record, for each of their formats."""
    chosen = [name for name in get_args(SubtitleFormat) if name in formats]
    folder = common_folder(each_line(annotations, source_path)) if chosen else ""
    return [subtitle_files(name, out / name, SubtitleNames(folder, f".{name}"), cues, written) for name in chosen]


def _nothing_to_show(annotations: Path, cues: Cues) -> UsageError:
    return UsageError(
        f"export: cues of {cues} need records that have them; {annotations} has none, as it is of a run that was not"
        f" asked for them; export the cues that are there (both means whatever there is), or make {cues} by"
        f" `reelscribe {'caption' if cues == 'captions' else 'transcribe'}` or `reelscribe annotate` first"
    )
