"""The `reelscribe` command.

Each module holds one group of subcommands. They parse the command line, leave the work to the packages below, and turn
errors into one line and an exit status. `reelscribe --help` imports none of the large packages.
"""

from __future__ import annotations

from typing import Annotated, Literal

from reelscribe import __version__
from reelscribe.errors import missing_package

try:
    import typer
except ModuleNotFoundError:  # reelscribe was installed without an extra
    raise SystemExit(f"reelscribe: {missing_package('typer', 'client')}") from None
from typer.completion import (  # type: ignore[attr-defined]  # typer does not say that it exports them
    completion_init,
    get_completion_script,
)

from reelscribe.cli import archive_command, model_commands, result_commands, run_commands, server_commands
from reelscribe.cli.parser.command import BareCommand, Command, group

NAME = "reelscribe"
"""Name of the program, whatever the name of the file was that started it."""

app = group(
    """Caption and transcribe whole video libraries with TorchServe.

    Options can also be in files, in the format TOML: reelscribe.toml in the working folder, and
    ~/.config/reelscribe/reelscribe.toml. The section [shared] has options of all commands, [annotate] those of
    `reelscribe annotate`, and [server.start] those of `reelscribe server start`; keys are the names of options without
    the leading dashes. The command line overrides the environment, that overrides the file in the working folder, and
    that the file of the user.
    """
)
for command in (
    run_commands.caption,
    run_commands.transcribe,
    run_commands.annotate,
    run_commands.shots,
    result_commands.status,
    result_commands.browse,
    result_commands.export,
    result_commands.forget,
    archive_command.archive,
):
    app.command(cls=Command)(command)
app.add_typer(server_commands.app, name="server")
app.add_typer(model_commands.app, name="models")

completion_init()  # typer does this by itself only for commands with its own options for completion


@app.command(cls=BareCommand)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell: bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands and options in a shell.

    For bash, add this line to ~/.bashrc: eval "$(reelscribe completion bash)". For zsh, add this line to ~/.zshrc,
    after compinit: eval "$(reelscribe completion zsh)". For fish, write the script to reelscribe.fish in
    ~/.config/fish/completions.
    """
    typer.echo(get_completion_script(prog_name=NAME, complete_var=f"_{NAME.upper()}_COMPLETE", shell=shell))


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
