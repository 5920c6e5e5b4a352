"""The man page, made from the same commands, options and texts as `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reelscribe.cli.parser.help import paragraphs_of, sections_of, usage_of


def man_page(root: Any, context: Any, version: str) -> str:
    """Return the man page of a program and all of its commands, in the language of man(7).

    Args:
        root: The group of all commands.
        context: The context that it was called in.
        version: Version of the program.
    """
    name = context.info_name
    summary, *description = paragraphs_of(root)
    lines = [f'.TH {name.upper()} 1 "" "{name} {version}"', ".SH NAME", _text(f"{name} - {summary}")]
    lines += [".SH SYNOPSIS", _text(usage_of(root, context)), ".SH DESCRIPTION"]
    for paragraph in description:
        lines += [".PP", _text(paragraph)]
    lines += [".SH COMMANDS", *_commands(root, context)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, context: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = type(context)(command, parent=context, info_name=name)
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
            continue
        yield f".SS {_escaped(usage_of(command, inner))}"
        for paragraph in paragraphs_of(command):
            yield from (".PP", _text(paragraph))
        for section in sections_of(command, inner):
            yield from (".PP", f".B {_escaped(section.title)}")
            for names, text in section.entries:
                yield from (".TP", f".B {_escaped(names)}", _text(text))


def _text(text: str) -> str:
    """Escape a line of text, which must not be taken for a request."""
    escaped = _escaped(text)
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    return re.sub(r"-", r"\\-", text.replace("\\", r"\e"))
