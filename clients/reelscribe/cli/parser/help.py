"""The help of a command, for terminals of any width.

typer's own help cuts the names of options where they are too long for a column. Here they get a line of their own.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from typing import Any


class Heading(StrEnum):
    """The headings of the help, in their order."""

    ARGUMENTS = "Arguments"
    OUTPUT = "Output"
    SUBTITLES = "Subtitles"
    SOURCES = "Which sources"
    FRAMES = "Which frames"
    CLIPS = "Clips"
    SHOTS = "Shots"
    SPEECH = "Speech"
    SUMMARY = "Summaries"
    SERVER = "Server"
    OPENAI = "Servers with OpenAI's API"
    CLUSTER = "Many machines"
    SPEED = "Speed"
    OTHER = "Options"
    COMMANDS = "Commands"


MOST_COLUMNS = 100
"""Longer lines are hard to read, however wide the terminal is."""

FEWEST_COLUMNS = 60
"""In narrower terminals, explanations begin below the names instead of beside them."""

NAME_COLUMNS = 28
"""Width of the column of names, with the space beside it."""


def help_of(command: Any, context: Any) -> str:
    """Return the help of a command for the width of the terminal.

    Args:
        command: A command or group of typer.
        context: The context that it was called in.
    """
    columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    lines = [*_wrapped(f"Usage: {usage_of(command, context)}", columns, hang=4), ""]
    for paragraph in _paragraphs(command):
        lines += [*_wrapped(paragraph, columns), ""]
    for heading, entries in sections_of(command, context).items():
        if entries:
            lines += [f"{heading}:", *(line for names, text in entries for line in _entry(names, text, columns)), ""]
    return "\n".join(lines).rstrip("\n")


def usage_of(command: Any, context: Any) -> str:
    """Return how a command is called, such as "reelscribe export [OPTIONS] OUT"."""
    arguments = [p for p in command.get_params(context) if p.param_type_name == "argument"]
    pieces = [_argument(each) if each.required else f"[{_argument(each)}]" for each in arguments]
    if hasattr(command, "commands"):
        pieces.append("COMMAND ...")
    return " ".join([context.command_path, "[OPTIONS]", *pieces])


def _paragraphs(command: Any) -> list[str]:
    """Return the paragraphs of the text that explains a command, each on one line."""
    return [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]


def sections_of(command: Any, context: Any) -> dict[Heading, list[tuple[str, str]]]:
    """Return the names and meanings of all arguments, options and commands that can follow the name of a command.

    Args:
        command: A command or group of typer.
        context: The context that it was called in.
    """
    sections: dict[Heading, list[tuple[str, str]]] = {heading: [] for heading in Heading}
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            heading, names = Heading.ARGUMENTS, _argument(parameter)
        else:
            heading, names = getattr(parameter, "rich_help_panel", None) or Heading.OTHER, _names(parameter)
        sections[Heading(heading)].append((names, _text(parameter, context)))
    for name, inner in getattr(command, "commands", {}).items():
        sections[Heading.COMMANDS].append((name, _paragraphs(inner)[0]))
    return sections


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + ("" if argument.nargs == 1 else "...")


def _names(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    return " / ".join([names, *option.secondary_opts]) if option.is_flag else f"{names} {option.metavar}"


def _text(parameter: Any, context: Any) -> str:
    notes = [f"environment: {parameter.envvar}"] if parameter.envvar else []
    default = parameter.get_default(context, call=False)
    if isinstance(shown := getattr(parameter, "show_default", None), str) and default is None:
        notes.append(f"default: {shown}")
    elif default is True:
        notes.append(f"default: {parameter.opts[0]}")
    elif default is not None and default is not False and not callable(default):
        values = default if isinstance(default, list | tuple) else [default]
        notes.append(
            f"default: {' '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)}"
        )
    if parameter.required:
        notes.append("required")
    return " ".join((parameter.help or "").split()) + (f" [{'; '.join(notes)}]" if notes else "")


def _entry(names: str, text: str, columns: int) -> Iterator[str]:
    if columns < FEWEST_COLUMNS:
        yield f"  {names}"
        yield from _wrapped(text, columns, indent=6)
        return
    lines = _wrapped(text, columns, indent=NAME_COLUMNS)
    if len(names) + 4 > NAME_COLUMNS:
        yield f"  {names}"
    else:
        first, *lines = lines
        yield f"  {names}".ljust(NAME_COLUMNS) + first.lstrip()
    yield from lines


def _wrapped(text: str, columns: int, *, indent: int = 0, hang: int = 0) -> list[str]:
    """Wrap a paragraph without cutting words; all lines but the first are indented by `hang` more."""
    first, rest = " " * indent, " " * (indent + hang)
    return textwrap.wrap(
        text, columns, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
