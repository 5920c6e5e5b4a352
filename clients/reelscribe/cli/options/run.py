"""The options of every run: its sources, its output folder, and how it reports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError
from reelscribe.storage.spool import SpoolOptions

T = TypeVar("T")

CUES = ("auto", "captions", "clips", "transcript", "both")
FORMATS = ("vtt", "srt", "txt", "csv", "parquet", "chapters", "html")
FORMAT_NAMES = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"

source_option = partial(typer.Option, rich_help_panel=Heading.SOURCES)
output_option = partial(typer.Option, rich_help_panel=Heading.OUTPUT)
speed_option = partial(typer.Option, rich_help_panel=Heading.SPEED)

Cues = Annotated[
    str,
    output_option(
        metavar="KIND",
        autocompletion=lambda: CUES,
        help="What subtitles show: captions, clips, transcript, both (what is said, with clips or captions), or auto:"
        " what is said, or else clips, or else captions.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run: its sources, its output folder, and how it reports."""

    sources: Annotated[
        list[str],
        typer.Argument(
            help="Media files, folders (searched at every depth), or globs, on this machine or as s3://bucket/films/;"
            " or https:// addresses of files."
        ),
    ]
    out: Annotated[
        Path,
        output_option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for annotations.jsonl and for the ledger, which lets the same command continue.",
        ),
    ]
    formats: Annotated[
        list[str] | None,
        output_option(
            "--format",
            metavar="FORMAT",
            autocompletion=lambda: FORMATS,
            help=f"Also export to this format: {FORMAT_NAMES}. May be repeated.",
        ),
    ] = None
    dry_run: Annotated[bool, source_option("--dry-run", help="Say what the run would do, and end.")] = False
    limit: Annotated[
        int | None,
        source_option(min=1, metavar="N", help="Do at most this many sources, of those not yet done."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        source_option(metavar="GLOB", help="Leave out sources whose path fits this glob. May be repeated."),
    ] = None
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
            " instead of that of --out.",
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
            help="Replace a decode process, and a connection to a store, that makes no progress for this many seconds.",
        ),
    ] = 60
    quiet: Annotated[bool, output_option("--quiet/--no-quiet", "-q", help="Report errors only.")] = False
    json_log: Annotated[
        bool,
        output_option("--json-log/--no-json-log", help="Report progress as lines of JSON on standard error."),
    ] = False
    metrics_port: Annotated[
        int | None,
        output_option(
            min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics of the run at 127.0.0.1:PORT/metrics."
        ),
    ] = None

    @property
    def spool_options(self) -> SpoolOptions:
        """The room for copies of sources from stores and web servers."""
        return SpoolOptions(
            self.spool, None if self.spool_gb is None else round(self.spool_gb * 1e9), self.stall_seconds
        )


def one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    """Check the value of an option, and return the equal member of `allowed`, which has the narrower type.

    Raises:
        UsageError: The value is not in `allowed`.
    """
    for choice in allowed:
        if value == choice:
            return choice
    raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value!r}")
