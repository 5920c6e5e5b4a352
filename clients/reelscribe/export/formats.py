"""The formats of exports, and `export`, the entry of this package. docs/exports.md describes the files.

`_FORMATS` lists the formats. To add one, write a function like `rttm` (speakers.py) or a context manager like
`csv_writer` (tables.py), and list it there. To add a column to the tables, list it in `tables.TABLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Literal

from reelscribe.contract.speech import ENGLISH
from reelscribe.errors import UsageError, brief, missing_package, reason_of
from reelscribe.export.annotations_reader import (
    AnnotatedSource,
    annotated_source,
    check_annotations,
    read_lines,
    read_models,
    source_path,
)
from reelscribe.export.chapters import chapter_texts
from reelscribe.export.cue_rules import DEFAULT_RULES, CueRules
from reelscribe.export.folder import ExportFolder, FileNames, common_folder_of, folders_of
from reelscribe.export.plain_text import transcript_texts
from reelscribe.export.speakers import SpeakerNames, read_speaker_names, rttm
from reelscribe.export.subtitles import SUBTITLE_FORMATS, subtitle_texts
from reelscribe.export.tables import TableName, WriteSource, csv_writer, parquet_writer
from reelscribe.reporting.formatting import count
from reelscribe.results.records import Kind
from reelscribe.viewer.site import SiteOptions


@dataclass(frozen=True, kw_only=True)
class _Format:
    """The requirements of a format."""

    library: str | None = None
    """The package that it needs; None if it needs none."""
    extra: str | None = None
    """The extra of reelscribe that installs the package."""


@dataclass(frozen=True)
class _SourceFormat(_Format):
    """A format with files of its own for each source."""

    suffixes: tuple[str, ...]
    """The suffixes of the files of a source, with their dots."""
    texts: Callable[[AnnotatedSource, CueRules], Sequence[str]]
    """Returns the texts of the files of a source, by the rules for cues; there is no file for an empty one."""
    has_cues: bool = False
    """True if the files show cues."""
    needs: Kind | Literal["speakers"] | None = None
    """What some record must have; None if the format is made of several kinds of annotations."""

    def writer(self, name: str, folder: ExportFolder, common_folder: str, rules: CueRules) -> WriteSource:
        """Return a function that writes the files of a source into the folder with the name of the format."""
        given = folder.names()
        known = {source: stem for kind, source, stem in given if kind == name}
        names = FileNames(common_folder, *self.suffixes, known=known, folders=folders_of(given))

        def write(source: AnnotatedSource) -> None:
            if any(texts := self.texts(source, rules)):
                stem = names.name_for(source.absolute_path)
                for suffix, text in zip(self.suffixes, texts, strict=True):
                    if text:
                        with folder.result(f"{name}/{stem}{suffix}") as file:
                            if source.absolute_path not in known:
                                folder.memory.remember_name(name, source.absolute_path, stem)
                            file.write(text.encode(errors="backslashreplace"))

        return write


@dataclass(frozen=True)
class _TableFormat(_Format):
    """A format of tables."""

    writer: Callable[[ExportFolder, TableName], AbstractContextManager[WriteSource]]
    """Takes the folder of the export and the name of a table; yields a function that adds the rows of a source."""


@dataclass(frozen=True)
class _WholeFormat(_Format):
    """A format that needs all sources together, and reads them itself."""

    writer: Callable[[ExportFolder, Path, SiteOptions, Callable[[str], None]], None]
    """Takes the folder of the export, annotations.jsonl, choices, and what is told in lines what was done."""


def _write_site(folder: ExportFolder, annotations: Path, options: SiteOptions, tell: Callable[[str], None]) -> None:
    from reelscribe.viewer.site.site_writer import write_site

    write_site(folder, annotations, options, tell)


def _write_compressed(folder: ExportFolder, annotations: Path) -> None:
    from pyarrow import CompressedOutputStream

    with (
        folder.result(f"{annotations.name}.zst") as file,
        CompressedOutputStream(file, "zstd") as compressed,  # a single frame: some readers end after the first
    ):
        for line in read_lines(annotations, bytes):
            compressed.write(line)


_FORMATS: Mapping[str, _SourceFormat | _TableFormat | _WholeFormat] = {
    **{
        name: _SourceFormat(
            (f".{name}", f".{ENGLISH}.{name}"),
            partial(subtitle_texts, name),
            has_cues=True,
            library="pysubs2",
            extra="client",
        )
        for name in SUBTITLE_FORMATS
    },
    "txt": _SourceFormat((".txt", f".{ENGLISH}.txt"), transcript_texts, needs="transcript"),
    "rttm": _SourceFormat((".rttm",), lambda source, rules: [rttm(source)], needs="speakers"),
    "csv": _TableFormat(csv_writer),
    "parquet": _TableFormat(parquet_writer, library="pyarrow", extra="parquet"),
    "jsonl.zst": _WholeFormat(
        lambda folder, annotations, options, tell: _write_compressed(folder, annotations),
        library="pyarrow",
        extra="parquet",
    ),
    "chapters": _SourceFormat((".ffmetadata", ".chapters.txt"), lambda source, rules: chapter_texts(source)),
    "html": _WholeFormat(_write_site, library="jinja2", extra="client"),
}
FORMATS: tuple[str, ...] = tuple(_FORMATS)
"""The names of all formats. Those of subtitles and tables are also the suffixes of their files."""


def export(
    annotations: Path,
    out: Path,
    formats: Sequence[str],
    cues: CueRules = DEFAULT_RULES,
    site: SiteOptions | None = None,
    tell: Callable[[str], None] = lambda line: None,
    *,
    drop_doubtful: bool = False,
    overwrite: bool = False,
) -> ExportFolder:
    """Export the annotations of a run.

    A file or the folder of a table is called `<name>.partial` until it is whole; then it replaces one of an earlier
    export. What fails unexpectedly at one source costs the others nothing.

    Args:
        annotations: Path of annotations.jsonl.
        out: Folder to write to; it is created if it is missing.
        formats: Names from `FORMATS`.
        cues: The rules by which subtitles are made. Tables and pages hold all annotations.
        site: Choices about pages; None for those of a run whose folder has the annotations.
        tell: Is told in whole lines what was done besides writing the files that are returned.
        drop_doubtful: Whether segments of speech that have flags are left out, except of pages and compressed records.
        overwrite: Whether to replace files, other than pages, that somebody else has made or changed.

    Returns:
        The folder, with the files that were written, of the many that pages consist of `index.html` alone, those that
        were kept, and the sources that failed.

    Raises:
        UsageError: A format is unknown, a library is missing, no record has the annotations that `cues` names,
            a line is not a record, `speakers.toml` is not as it should be, or a file cannot be read or written.
    """
    check_formats(formats)
    check_annotations(annotations)
    kinds = {type(each) for name, each in _FORMATS.items() if name in formats}
    site = site or SiteOptions(annotations.parent)
    is_of_run = out.exists() and out.samefile(annotations.parent)
    with ExportFolder(out, overwrite=overwrite, is_of_run=is_of_run) as folder:
        try:
            if kinds & {_SourceFormat, _TableFormat}:
                names = read_speaker_names(site.run)
                _export_each(annotations, folder, formats, cues, tell, names, drop_doubtful=drop_doubtful)
                for line in names.unused():
                    tell(line)
            for name, each in _FORMATS.items():
                if name in formats and isinstance(each, _WholeFormat):
                    each.writer(folder, annotations, site, tell)
        except UsageError as error:
            if not folder.written:
                raise
            done = f"{count(len(folder.written), 'file')} before, such as {folder.written[0]}"
            raise UsageError(f"{error}; the export has written {done}") from None
    if folder.kept:
        tell(
            f"kept {count(len(folder.kept), 'file')} that others have made or changed, such as {folder.kept[0]};"
            " --overwrite replaces them"
        )
    return folder


def check_formats(formats: Sequence[str]) -> None:
    """Check that all formats can be written. A run calls this before it starts.

    Args:
        formats: Names of formats.

    Raises:
        UsageError: A format is unknown, or the library that it needs is missing.
    """
    for name in formats:
        if name not in _FORMATS:
            raise UsageError(f"export: expected formats out of {', '.join(FORMATS)}, got {brief(name)}")
        library, extra = _FORMATS[name].library, _FORMATS[name].extra
        if library and find_spec(library) is None:
            raise UsageError(f"export: {name}: {missing_package(library, extra or 'client')}")


def _check_needed(
    annotations: Path,
    chosen: Iterable[_SourceFormat],
    cues: CueRules,
    sources: Iterable[AnnotatedSource],
    names: SpeakerNames,
) -> None:
    """Raise UsageError if no record has what formats need, before anything is written."""
    needed: dict[str, None] = {each.needs: None for each in chosen if each.needs}
    if cues.made_from not in ("auto", "both") and any(each.has_cues for each in chosen):
        needed[cues.made_from] = None
    for source in sources if needed else ():
        for kind in (*source.kinds, *(["speakers"] if names.any_found else [])):
            needed.pop(kind, None)
        del source
        if not needed:
            return
    if needed:
        kind = next(iter(needed))
        raise _missing(annotations, kind, is_shown=kind == cues.made_from)


def _export_each(
    annotations: Path,
    folder: ExportFolder,
    formats: Sequence[str],
    cues: CueRules,
    tell: Callable[[str], None],
    names: SpeakerNames,
    *,
    drop_doubtful: bool,
) -> None:
    """Write the formats to which sources are added one after the other."""
    parse = partial(annotated_source, models=read_models(annotations), drop_doubtful=drop_doubtful)
    chosen = {name: each for name, each in _FORMATS.items() if name in formats and isinstance(each, _SourceFormat)}
    _check_needed(annotations, chosen.values(), cues, map(names.applied, read_lines(annotations, parse)), names)
    common_folder = common_folder_of(read_lines(annotations, source_path)) if chosen else ""
    writers = [each.writer(name, folder, common_folder, cues) for name, each in chosen.items()]
    table_formats = [each for name, each in _FORMATS.items() if name in formats and isinstance(each, _TableFormat)]
    tables: dict[TableName, list[WriteSource]] = {}
    with ExitStack() as stack:

        def open_tables(name: TableName) -> None:
            tables[name] = [stack.enter_context(each.writer(folder, name)) for each in table_formats]

        open_tables("sources")
        for source in map(names.applied, read_lines(annotations, parse)):
            for kind in source.kinds:
                if kind not in tables:
                    open_tables(kind)
            _write(source, chain(writers, tables["sources"], *(tables[kind] for kind in source.kinds)), folder)
            del source  # each may take hundreds of megabytes, so that it must not stay while the next one is read
    older = [str(path) for name in tables if (path := folder.path / f"{name}.parquet").exists()]
    if older and "parquet" in formats:
        tell(
            f"{', '.join(older)}: of an earlier version, and not updated; the tables are now in"
            f" {folder.path / 'parquet'}, so delete what you do not need"
        )


def _write(source: AnnotatedSource, writers: Iterable[WriteSource], folder: ExportFolder) -> None:
    try:
        for write in writers:
            write(source)
    except OSError:  # the disk's
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other sources are exported
        path = source.absolute_path
        folder.failures.append(f"{path}: cannot be exported: {reason_of(error, path)}")


def _missing(annotations: Path, kind: str, *, is_shown: bool) -> UsageError:
    """Return the error for what no record has; with `is_shown`, cues shall show it."""
    command, option = {
        "captions": ("caption", ""),
        "clips": ("caption", " --clips shots"),
        "transcript": ("transcribe", ""),
        "speakers": ("transcribe", " --speakers auto"),
    }[kind]
    wanted = "transcripts" if kind == "transcript" else kind
    return UsageError(
        f"export: expected records with {wanted}, and {annotations} has none; make them with"
        f" `reelscribe {command}{option}` or `reelscribe annotate{option}` first, or choose another format"
        f"{', or --cues auto, for what is there' if is_shown else ''}"
    )
