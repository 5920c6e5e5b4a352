"""The commands of reelscribe and their options."""

import sys

from typer.main import get_command

from reelscribe.cli import app


def command_options() -> dict[str, set[str]]:
    """The options of each command, such as `--out` and `-o`, by its words, such as `server start`."""
    found = {}

    def walk(words: str, command) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(f"{words} {name}".strip(), inner)
        options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        found[words] = {option for option in options if option.startswith("-")}

    walk("", get_command(app))
    return found


def reelscribe(*words: object) -> list[str]:
    """A command of reelscribe as a command line, for a process of its own."""
    return [sys.executable, "-m", "reelscribe.cli", *map(str, words)]
