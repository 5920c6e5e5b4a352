"""Escapes texts for the files that are made from results: JSON, CSV, and all others.

Texts come from models and from the names of files, so anything may be in them. A terminal obeys control characters. A
spreadsheet takes a text that begins like a formula for one, and may then run a program or ask another server for
something.
"""

from __future__ import annotations

import json
import re
from typing import Any

from reelscribe.errors import CONTROL_CHARACTERS, REORDERING_CHARACTERS

_SURROGATE = re.compile("[\ud800-\udfff]")
# What a terminal obeys, what turns text around, and what some readers take for the end of a line: escaped, it is the
# same text for every reader of JSON. The control characters below U+0020 are escaped anyway.
_UNSEEN = re.compile(f"[{CONTROL_CHARACTERS}{REORDERING_CHARACTERS}\u2028\u2029]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ESCAPED_BYTE = re.compile(r"\\u(dc[89a-f][0-9a-f])")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
# Those that reorder text stay: texts of some languages need them, and programs compare cells with annotations.jsonl.
_CONTROL_CHARACTER = re.compile(f"[{CONTROL_CHARACTERS}]")


def escape_surrogates(text: str) -> str:
    """Return text that is valid Unicode, as the files of results have it.

    Python keeps bytes of a path that are not UTF-8 as halves of surrogate pairs, which no reader of JSON accepts. Each
    becomes a backslash, `u` and four digits, which stand in the text as such.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text  # not a copy: many callers keep many of them


def restore_path(text: str) -> str:
    """Return a path with the bytes that are not UTF-8 as Python keeps them, from what `escape_surrogates` returned."""
    return _ESCAPED_BYTE.sub(lambda escape: chr(int(escape[1], 16)), text)


def to_json(value: Any) -> str:
    """Return a value as JSON in which no text has a character that a terminal obeys, or half a surrogate pair."""
    text = _ENCODER.encode(value)
    if text.isascii() and "\x7f" not in text:
        return text
    text = _UNSEEN.sub(lambda char: f"\\u{ord(char[0]):04x}", text)
    # In JSON, a backslash that stands in the text as such is written twice.
    return _SURROGATE.sub(lambda half: "\\" + escape_surrogates(half[0]), text)


def csv_cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula, and no terminal for a command.

    A formula gets an apostrophe before it. So does a formula that has one already, so that removing one apostrophe
    always restores the text.

    Args:
        value: A number, a text, several texts, which become one with spaces between them, or None.

    Returns:
        The value for the cell. In texts, control characters are U+FFFD, except for tabs and line breaks: a null
        character would end a text in some readers.
    """
    if isinstance(value, tuple):
        value = " ".join(value)
    if not isinstance(value, str):
        return value
    return ("'" if _FORMULA.match(value) else "") + _CONTROL_CHARACTER.sub("\ufffd", value)
