"""`reelscribe export` and `reelscribe status`: what lies in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._run import one_of
from reelscribe.cli.runs import Cues
from reelscribe.errors import UsageError


def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    format: Annotated[list[str], typer.Option(help="vtt, srt, csv or parquet; several are allowed.")],  # noqa: A002 - the option's name
    cues: Cues = "both",
) -> None:
    """Write the captions and transcripts of a finished run as subtitles or tables too."""
    with errors_as_one_line():
        from reelscribe.export import formats as exports
        from reelscribe.results.jsonl import NAME

        for path in exports.export(out / NAME, out, format, one_of(cues, exports.CUES, "--cues")):
            typer.echo(f"wrote {path}")


def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """How the run into a folder gets on, or how it ended."""
    with errors_as_one_line():
        from reelscribe._files import is_locked
        from reelscribe.results.ledger import LedgerReader
        from reelscribe.run.meter import Snapshot
        from reelscribe.run.progress import describe

        with LedgerReader(out) as ledger:
            run = ledger.run_state()
        if run is None:
            raise UsageError(f"{out}: no run has got so far as to say how it gets on")
        state, pid = run.pop("state"), run.pop("pid")
        snapshot = Snapshot.from_json(run)
        if is_locked(out):
            told = f"running, process {pid}"
        elif state == "running":
            told = "ended without notice; the same command goes on"
        else:
            told = state
        typer.echo(f"{told}: {snapshot.sources_done} of {snapshot.sources} sources, {describe(snapshot)}")
