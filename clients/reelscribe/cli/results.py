"""`reelscribe export`, `status` and `forget`, which work with the output folder of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._options import FORMATS, Cues, one_of, output_option
from reelscribe.errors import UsageError


def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    formats: Annotated[
        list[str],
        output_option(
            "--format",
            metavar="|".join(FORMATS),
            autocompletion=lambda: FORMATS,
            help="A format to write. May be repeated.",
        ),
    ],
    cues: Cues = "auto",
) -> None:
    """Export the captions and transcripts of a run as subtitles or tables, also while it lasts."""
    with errors_as_one_line():
        from reelscribe.export.formats import CUE_SOURCES
        from reelscribe.export.formats import export as export_annotations
        from reelscribe.results.folder import current_annotations

        with current_annotations(out) as annotations:
            written = export_annotations(annotations, out, formats, one_of(cues, CUE_SOURCES, "--cues"))
        typer.echo(describe_written(written, out))


def describe_written(paths: Sequence[Path], out: Path) -> str:
    """Describe in one line which files an export has written, such as "wrote 200 .vtt files below out/vtt".

    Args:
        paths: The files.
        out: The folder of the run.
    """
    places: dict[Path, list[Path]] = {}
    for path in paths:
        inside = path.relative_to(out)
        places.setdefault(out / inside.parts[0], []).append(path)
    described = [
        str(place)
        if paths == [place]
        else f"{len(paths)} {paths[0].suffix} {'file' if len(paths) == 1 else 'files'} below {place}"
        for place, paths in places.items()
    ]
    return f"wrote {', '.join(described) or 'nothing'}"


def forget(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs, also of files that are gone from the disk."),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Forget all sources that were gone when the last run ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be forgotten, and change nothing.")
    ] = False,
) -> None:
    """Delete the results of sources from the ledger and from annotations.jsonl.

    Without this command nothing disappears: the records of sources that a later run does not name, or that are gone
    from the disk, stay.
    """
    with errors_as_one_line():
        from reelscribe.results.folder import forget as forget_sources

        if not sources and not missing:
            raise UsageError("forget: expected SOURCES or --missing, got neither")
        forgotten = asyncio.run(forget_sources(out, sources or [], missing=missing, dry_run=dry_run))
        for source in forgotten:
            typer.echo(source.name)
        sources_noun = "source" if len(forgotten) == 1 else "sources"
        typer.echo(f"{'would forget' if dry_run else 'forgot'} {len(forgotten)} {sources_noun}", err=True)


def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Show the progress of the run that writes to a folder, or how the last one ended."""
    with errors_as_one_line():
        from reelscribe._files import is_locked
        from reelscribe.results.ledger_reader import LedgerReader
        from reelscribe.run.meter import Snapshot
        from reelscribe.run.progress import describe

        with LedgerReader(out) as ledger:
            run = ledger.run_state()
        if run is None:
            raise UsageError(f"{out}: no run there has saved its progress yet; start one with --out {out}")
        state, pid = run.pop("state"), run.pop("pid")
        if is_locked(out):
            state = f"running, process {pid}"
        elif state == "running":
            state = "ended without notice; run the same command again to continue"
        snapshot = Snapshot.from_json(run)
        typer.echo(f"{state}: {snapshot.sources_done} of {snapshot.sources} sources, {describe(snapshot)}")
