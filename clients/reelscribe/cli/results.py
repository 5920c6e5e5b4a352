"""`reelscribe export` and `reelscribe status`, which read the output folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._options import Cues, one_of
from reelscribe.errors import UsageError


def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    formats: Annotated[
        list[str], typer.Option("--format", help="vtt, srt, csv or parquet. Repeat it for several formats.")
    ],
    cues: Cues = "both",
) -> None:
    """Export the captions and transcripts of a finished run as subtitles or tables."""
    with errors_as_one_line():
        from reelscribe.export.formats import CUE_SOURCES
        from reelscribe.export.formats import export as export_annotations
        from reelscribe.results.annotations import NAME

        for path in export_annotations(out / NAME, out, formats, one_of(cues, CUE_SOURCES, "--cues")):
            typer.echo(f"wrote {path}")


def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """Show the progress of the run that writes to a folder, or how the last one ended."""
    with errors_as_one_line():
        from reelscribe._files import is_locked
        from reelscribe.results.ledger import LedgerReader
        from reelscribe.reporting.meter import Snapshot
        from reelscribe.reporting.progress import describe

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
