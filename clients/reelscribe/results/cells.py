"""Values as cells of CSV, which people open with spreadsheets and look at in terminals.

Texts come from models and from the names of files, so anything may be in them. A spreadsheet takes a text that begins
like a formula for one, and may then run a program or ask another server for something.
"""

from __future__ import annotations

import re
from typing import Any

from reelscribe.errors import CONTROL_CHARACTERS

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
# Those that reorder text stay: texts of some languages need them, and programs compare cells with annotations.jsonl.
_CONTROL_CHARACTER = re.compile(f"[{CONTROL_CHARACTERS}]")


def cell(value: Any) -> Any:
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
