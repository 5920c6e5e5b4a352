"""Prints options.md: the options of all commands, as their help says them. `scripts/docs --options` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from reelscribe.cli import app
from reelscribe.cli.parser.help import Heading, sections_of, usage_of

RUNS = ("caption", "transcribe", "annotate", "shots")
"""The commands that share most of their options; their options are in one table."""


def commands(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each command that is no group, with its words and its context.

    Args:
        command: A command or group.
        context: Its context.
    """
    inner = getattr(command, "commands", {})
    if not inner:
        yield context.command_path.removeprefix("reelscribe").strip(), command, context
    for name, each in inner.items():
        yield from commands(each, each.context_class(each, parent=context, info_name=name))


def rows_of_runs(runs: list[tuple[str, Any, Any]]) -> dict[Heading, dict[tuple[str, str], list[str]]]:
    """Return for each heading the options with their meanings, and the commands that have them.

    Args:
        runs: The commands of `RUNS`.
    """
    rows: dict[Heading, dict[tuple[str, str], list[str]]] = {}
    for words, command, context in runs:
        for heading, entries in sections_of(command, context).items():
            for entry in entries:
                rows.setdefault(heading, {}).setdefault(entry, []).append(words)
    return rows


def cell(text: str) -> str:
    """Return a text as a cell of a table.

    Args:
        text: The text.
    """
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    root: Any = get_command(app)
    every = list(commands(root, root.context_class(root, info_name="reelscribe")))
    runs = [each for each in every if each[0] in RUNS]
    yield "# Options\n\nThese are the options of all commands, as their help has them. [cli.md](cli.md) is the guide.\n"
    yield "\n## caption, transcribe, annotate, shots\n"
    for heading, rows in rows_of_runs(runs).items():
        yield f"\n### {heading}\n\n| | of | |\n|---|---|---|\n"
        for (names, text), owners in rows.items():
            having = "all" if len(owners) == len(RUNS) else ", ".join(owners)
            yield f"| `{cell(names)}` | {having} | {cell(text)} |\n"
    for words, command, context in every:
        if words not in RUNS:
            yield f"\n## {words}\n\n`{usage_of(command, context)}`\n\n| | |\n|---|---|\n"
            for entries in sections_of(command, context).values():
                yield from (f"| `{cell(names)}` | {cell(text)} |\n" for names, text in entries)


if __name__ == "__main__":
    print("".join(lines()), end="")
