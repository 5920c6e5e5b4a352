"""Reads options from `reelscribe.toml`, in the working folder and in the user's folder of settings.

The section [shared] has options of all commands, [annotate] those of one command, [server] those of a group of
commands, and [server.start] those of one of them. Keys are the long names of options, such as `decode-workers`.
Relative paths start from the folder of the file; addresses stay as they are.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from reelscribe._files import read_small_file
from reelscribe.cli.parser.precedence import effective_options
from reelscribe.errors import UsageError
from reelscribe.storage.address import looks_like_address

NAME = "reelscribe.toml"
"""Name of the files."""

SHARED = "shared"
"""Name of the section for all commands."""

PATHS = frozenset({"FILE", "FOLDER"})
"""The metavars of options whose values are paths."""


@dataclass(frozen=True)
class Settings:
    """The options of one command, as the files give them."""

    values: dict[str, Any]
    """Values by the names of parameters."""
    files: tuple[Mapping[str, Any], ...]
    """Values by the names of parameters that each file gives; what is later is nearer to the user."""
    in_working_folder: frozenset[str] = frozenset()
    """Those which the file in the working folder gives; somebody else may have put it there."""


def read_settings(root: Any, words: tuple[str, ...]) -> Settings:
    """Read the options of a command from the files.

    Args:
        root: The group of all commands.
        words: The words of the command, such as ("server", "start").

    Raises:
        UsageError: A file cannot be read, or holds an unknown section or option, or a value that cannot be used.
    """
    paths = _files()
    files = tuple(_values(_File(path), root, words) for path in paths)
    in_working_folder = frozenset(files[-1]) if Path(NAME) in paths else frozenset()
    return Settings(effective_options(files), files, in_working_folder)


def _files() -> list[Path]:
    """Return the files that exist, the user's first, because the one in the working folder is nearer."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [path for path in (home / "reelscribe" / NAME, Path(NAME)) if path.is_file()]


def _values(file: _File, root: Any, words: tuple[str, ...]) -> dict[str, Any]:
    """Check a whole file, and return its options of a command; the section of the command is nearer than [shared]."""
    file.check(root)
    command, table = root, file.table
    for word in words:
        command = command.commands[word]
    options = _options(command)
    sections = [table.get(SHARED, {})]
    for word in words:
        table = table.get(word, {})
        sections.append(table)
    given = [
        {options[key].name: file.value(options[key], value) for key, value in section.items() if key in options}
        for section in sections
    ]
    return effective_options((), given)


class _File:
    """A file with options."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.table = tomllib.loads(read_small_file(path).decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise UsageError(f"{path}: expected a file in the format TOML: {error}") from None

    def check(self, root: Any) -> None:
        """Raise UsageError for an unknown section or option, or a value that cannot be used."""
        sections = {SHARED, *root.commands}
        for name, section in self.table.items():
            if not isinstance(section, Mapping):
                raise UsageError(
                    f"{self.path}: {name}: expected options in a section: [{SHARED}] for all commands, or one that is"
                    " named like a command"
                )
            if name not in sections:
                raise UsageError(f"{self.path}: [{name}]: no such command{_hint(name, sections)}")
            self._check_section(name, section, root if name == SHARED else root.commands[name], typer.Context(root))

    def _check_section(self, title: str, section: Mapping[str, Any], command: Any, context: Any) -> None:
        options, commands = _options(command), getattr(command, "commands", {})
        for key, value in section.items():
            if isinstance(value, Mapping) and key in commands and title != SHARED:
                self._check_section(f"{title}.{key}", value, commands[key], context)
            elif key not in options:
                raise UsageError(f"{self.path}: [{title}] {key}: no such option{_hint(key, {*options, *commands})}")
            else:
                self._check_value(f"{self.path}: [{title}] {key}", options[key], value, context)

    def _check_value(self, place: str, option: Any, value: Any, context: Any) -> None:
        given = value if option.multiple and isinstance(value, list) else [value]
        if any(isinstance(each, bool) != bool(option.is_flag) for each in given):
            raise UsageError(f"{place}: expected {'true or false' if option.is_flag else 'a value'}, got {value!r}")
        if not all(isinstance(each, str | int | float) for each in given):
            raise UsageError(f"{place}: expected text, a number, or true or false, got {value!r}")
        if option.metavar in PATHS and not all(isinstance(each, str) for each in given):
            raise UsageError(f"{place}: expected a path, got {value!r}; put it in quotation marks")
        try:
            option.process_value(context, self.value(option, value))
        except typer.BadParameter as error:
            raise UsageError(f"{place}: got {value!r}: {error.message}") from None

    def value(self, option: Any, value: Any) -> Any:
        """Return a value as the command line would give it."""
        values = value if isinstance(value, list) else [value]
        if option.metavar in PATHS:
            values = [
                each if looks_like_address(each) else str(self.path.parent / os.path.expanduser(each))
                for each in values
            ]
        return values if option.multiple else values[0]


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command, or of all commands of a group, by their long names without dashes."""
    options = {
        name.removeprefix("--"): parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.is_eager
        for name in parameter.opts
        if name.startswith("--")
    }
    for inner in getattr(command, "commands", {}).values():
        options = {**_options(inner), **options}
    return options


def _hint(name: str, known: set[str]) -> str:
    matches = get_close_matches(name, sorted(known), n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else f"; there are {', '.join(sorted(known))}"
