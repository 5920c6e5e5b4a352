"""The options of every run: its sources, its output folder, and how it reports."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError, brief
from reelscribe.run.file_search import Selection
from reelscribe.run.source_list import SourceList
from reelscribe.run.watching import REST_SECONDS
from reelscribe.storage.spool import SpoolOptions

T = TypeVar("T")

FORMATS = ("vtt", "srt", "ass", "txt", "rttm", "csv", "parquet", "jsonl.zst", "chapters", "html")
FORMAT_NAMES = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
BESIDE_FORMATS = ("srt", "vtt", "ass", "json")

source_option = partial(typer.Option, rich_help_panel=Heading.SOURCES)
output_option = partial(typer.Option, rich_help_panel=Heading.OUTPUT)
speed_option = partial(typer.Option, rich_help_panel=Heading.SPEED)

Beside = Annotated[
    str | None,
    output_option(
        metavar="FORMATS",
        autocompletion=lambda: BESIDE_FORMATS,
        help="Also write these formats beside the sources, in their folders or buckets: srt, vtt, ass and json, with"
        " commas between them. film.mp4 gets film.en.srt.",
    ),
]
Overwrite = Annotated[
    bool,
    output_option(
        "--overwrite/--no-overwrite",
        help="Replace exported files that others have made or changed. By default they stay.",
    ),
]
DropDoubtful = Annotated[
    bool,
    output_option(
        "--drop-doubtful/--no-drop-doubtful",
        help="Leave segments of speech that have flags, because nobody may have said them, out of subtitles, texts and"
        " tables. Records and pages keep them.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run: its sources, its output folder, and how it reports."""

    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Media files, folders (searched at every depth), or globs, on this machine or as s3://bucket/films/,"
            " gs:// or az://; or https:// addresses of files."
        ),
    ] = None
    out: Annotated[
        str,
        output_option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for annotations.jsonl and for the ledger, which lets the same command continue; or, with"
            " --work-dir, s3://bucket/results/, where they are copied to.",
        ),
    ]
    work_dir: Annotated[
        Path | None,
        output_option(
            metavar="FOLDER", help="If --out is in a bucket, the folder of this machine in which the run works."
        ),
    ] = None
    formats: Annotated[
        list[str] | None,
        output_option(
            "--format",
            metavar="FORMAT",
            autocompletion=lambda: FORMATS,
            help=f"Also export to this format: {FORMAT_NAMES}. May be repeated. parquet and jsonl.zst need"
            " reelscribe[parquet].",
        ),
    ] = None
    beside: Beside = None
    overwrite: Overwrite = False
    drop_doubtful: DropDoubtful = False
    dry_run: Annotated[
        bool,
        source_option("--dry-run", help="Say what the run would do, and end. Nothing is written."),
    ] = False
    limit: Annotated[
        int | None,
        source_option(
            min=1,
            metavar="N",
            help="Do at most this many sources: the first in the order of names that are not yet done. The run begins"
            " when all are listed.",
        ),
    ] = None
    lists: Annotated[
        list[str] | None,
        source_option(
            "--from",
            metavar="FILE",
            help="Take sources from a list, too: a name in each line (- for standard input), or a .csv, .jsonl or"
            " .parquet table with a column path or url. Its other columns go into the records; language, hotwords,"
            " initial_prompt, start, end and prompt are options of each source. May be repeated.",
        ),
    ] = None
    null: Annotated[
        bool, source_option("--null", "-0", help="Names in the lists of --from end with a NUL character.")
    ] = False
    include: Annotated[
        list[str] | None,
        source_option(
            metavar="GLOB", help="Take only sources whose path or file name fits this glob. May be repeated."
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        source_option(
            metavar="GLOB", help="Leave out sources whose path or file name fits this glob. May be repeated."
        ),
    ] = None
    shard: Annotated[
        str | None,
        source_option(
            metavar="I/N",
            help="Take only the I-th of N parts of the sources, such as 2/4. The part of a source depends on its name"
            " alone; each machine needs an --out of its own.",
        ),
    ] = None
    newer_than: Annotated[
        str | None,
        source_option(
            metavar="TIME", help="Take only sources written since then: a date, a date with a time, or 7d, 12h or 30m."
        ),
    ] = None
    watch: Annotated[
        bool,
        source_option("--watch", help="When all is done, go on with sources that appear, until interrupted."),
    ] = False
    retry_failed: Annotated[
        bool,
        source_option(
            "--retry-failed/--no-retry-failed",
            help="Retry sources that failed in an earlier run into --out; other results stay, whatever the options.",
        ),
    ] = False
    spool: Annotated[
        Path | None,
        speed_option(
            metavar="FOLDER",
            help="Keep copies of sources from stores and web servers on the disk of this folder while they are read,"
            " instead of that of --out or, with --ray, of the temporary files of each node.",
        ),
    ] = None
    spool_gb: Annotated[
        float | None,
        speed_option(min=0, metavar="GB", help="Largest size of these copies; by default half of what is free there."),
    ] = None
    stall_seconds: Annotated[
        float,
        speed_option(
            min=2,
            metavar="SECONDS",
            help="Replace a decode process or a connection to a store that makes no progress for this many seconds.",
        ),
    ] = 60
    quiet: Annotated[bool, output_option("--quiet/--no-quiet", "-q", help="Report errors only.")] = False
    json_log: Annotated[
        bool,
        output_option(
            "--json-log/--no-json-log",
            help="Report progress, one line a second, and all else as JSON on standard error.",
        ),
    ] = False
    metrics_port: Annotated[
        int | None,
        output_option(
            min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics of the run at 127.0.0.1:PORT/metrics."
        ),
    ] = None

    @cached_property
    def place(self) -> tuple[Path, str | None]:
        """The folder in which the run works, and the address of its copy. Raises UsageError if there is none."""
        from reelscribe.export.bucket_copy import work_folder

        return work_folder(self.out, self.work_dir)

    @property
    def folder(self) -> Path:
        """The folder of this machine in which the run works."""
        return self.place[0]

    @cached_property
    def names(self) -> list[str | SourceList]:
        """The names of sources, and the lists. Raises UsageError if a list cannot be read."""
        if self.null and not self.lists:
            raise UsageError("--null: expected --from with it, got none")
        return [*(self.sources or ()), *(SourceList(path, null=self.null) for path in self.lists or ())]

    @property
    def selection(self) -> Selection:
        """Which of the sources belong to the run. Raises UsageError if an option is wrong."""
        return Selection(
            self.include or (),
            self.exclude or (),
            None if self.shard is None else _shard(self.shard),
            None if self.newer_than is None else _time(self.newer_than),
            REST_SECONDS if self.watch else 0.0,
        )

    @property
    def spool_options(self) -> SpoolOptions:
        """The room for copies of sources from stores and web servers."""
        return SpoolOptions(
            self.spool, None if self.spool_gb is None else round(self.spool_gb * 1e9), self.stall_seconds
        )


def beside_formats(beside: str | None, formats: Sequence[str] | None, overwrite: bool) -> list[str]:
    """Return the formats of --beside.

    Raises:
        UsageError: One of them cannot be written, or there is --overwrite alone.
    """
    from reelscribe.export.beside import check_beside

    if overwrite and beside is None and not formats:
        raise UsageError("--overwrite: expected --beside or --format with it, as nothing else replaces files")
    next_to = [] if beside is None else beside.split(",")
    check_beside(next_to)
    return next_to


def one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    """Check the value of an option, and return the equal member of `allowed`, which has the narrower type.

    Raises:
        UsageError: The value is not in `allowed`.
    """
    for choice in allowed:
        if value == choice:
            return choice
    raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def text_of(option: str, value: str) -> str:
    """Return the text of an option, or that of the file that it names after an @.

    Raises:
        UsageError: The file is no text file.
    """
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8-sig").strip()  # editors of Windows write a mark first
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{option}: expected a text file after the @, got {value[1:]}: {error}") from None


def _shard(value: str) -> tuple[int, int]:
    """Return the number of a part and the number of parts."""
    if match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", value, re.ASCII):
        number, parts = int(match[1]), int(match[2])
        if 1 <= number <= parts:
            return number, parts
    raise UsageError(f"--shard: expected the number of a part and of all parts, such as 1/4, got {brief(value)}")


def _time(value: str) -> float:
    """Return a time, in seconds since 1970; one without a zone is that of this machine."""
    if match := re.fullmatch(r"(\d{1,6})([dhm])", value, re.ASCII):
        return time.time() - int(match[1]) * {"d": 86400, "h": 3600, "m": 60}[match[2]]
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--newer-than: expected a time such as 2026-11-01, 2026-11-01T18:00, 7d, 12h or 30m, got {brief(value)}"
        ) from None
