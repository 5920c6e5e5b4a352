"""The `reelscribe` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe import __version__, cli_archive, cli_models, cli_runs, cli_server, run_command
from reelscribe.cli_errors import errors_as_one_line
from reelscribe.errors import UsageError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Caption and transcribe whole video libraries on a TorchServe."
)
app.add_typer(cli_server.app, name="server")
app.add_typer(cli_models.app, name="models")
for command in (cli_runs.caption, cli_runs.transcribe, cli_runs.annotate, cli_archive.archive):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    format: Annotated[list[str], typer.Option(help="vtt, srt, csv or parquet; several are allowed.")],  # noqa: A002 - the option's name
    cues: cli_runs.Cues = "both",
) -> None:
    """Write the captions and transcripts of a finished run as subtitles or tables too."""
    with errors_as_one_line():
        from reelscribe import exports
        from reelscribe.writers import NAME

        for path in exports.export(out / NAME, out, format, run_command.one_of(cues, exports.CUES, "--cues")):
            typer.echo(f"wrote {path}")


@app.command()
def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """How the run into a folder gets on, or how it ended."""
    with errors_as_one_line():
        from reelscribe.folder_lock import is_locked
        from reelscribe.ledger import LedgerReader
        from reelscribe.meter import Snapshot
        from reelscribe.progress import describe

        with LedgerReader(out) as ledger:
            run = ledger.run()
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


if __name__ == "__main__":
    app()
