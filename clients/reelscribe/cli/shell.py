"""`reelscribe completion` and `reelscribe man`: what a shell and a reader of manuals need."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import (  # type: ignore[attr-defined]  # typer does not say that it exports them
    completion_init,
    get_completion_script,
)

from reelscribe import __version__
from reelscribe.cli.parser.manual import man_page

NAME = "reelscribe"
"""Name of the program, whatever the name of the file was that started it."""

completion_init()  # typer does this by itself only for commands with its own options for completion


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell: bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands and options in a shell.

    For bash, add this line to ~/.bashrc: eval "$(reelscribe completion bash)". For zsh, add this line to ~/.zshrc,
    after compinit: eval "$(reelscribe completion zsh)". For fish, write the script to reelscribe.fish in
    ~/.config/fish/completions.
    """
    typer.echo(get_completion_script(prog_name=NAME, complete_var=f"_{NAME.upper()}_COMPLETE", shell=shell))


def man(context: typer.Context) -> None:
    """Print the man page of all commands.

    To read it: reelscribe man | man -l -. To install it: reelscribe man > ~/.local/share/man/man1/reelscribe.1
    """
    root = context.find_root()
    root.info_name = NAME
    typer.echo(man_page(root.command, root, __version__), nl=False)
