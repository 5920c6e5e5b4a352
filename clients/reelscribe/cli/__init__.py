"""The `reelscribe` command: one file for each group of subcommands.

Words of the command line come in; runs, servers and exports are started by the packages below, and errors leave as one
line and an exit status.
"""

from __future__ import annotations

from typing import Annotated

import typer

from reelscribe import __version__
from reelscribe.cli import archive, models, results, runs, server

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Caption and transcribe whole video libraries on a TorchServe."
)
app.add_typer(server.app, name="server")
app.add_typer(models.app, name="models")
for command in (runs.caption, runs.transcribe, runs.annotate, archive.archive, results.export, results.status):
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
