"""The `reelscribe` command.

Each module holds one group of subcommands. They parse the command line, leave the work to the packages below, and turn
errors into one line and an exit status. `reelscribe --help` imports none of the large packages.
"""

from __future__ import annotations

from typing import Annotated

import typer

from reelscribe import __version__
from reelscribe.cli import archive, models, results, runs, server

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Caption and transcribe whole video libraries with TorchServe."
)
app.add_typer(server.app, name="server")
app.add_typer(models.app, name="models")
for command in (
    runs.caption,
    runs.transcribe,
    runs.annotate,
    archive.archive,
    results.export,
    results.status,
    results.forget,
):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
