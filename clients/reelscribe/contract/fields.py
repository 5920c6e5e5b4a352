"""Check fields of JSON that another program wrote, a server or whoever edits a ledger, before they are used.

The last functions are for confidences: how probable a model finds its own answer, as handlers send it.

Python's `json` reads numbers of any size and any kind of value anywhere; a wrong one would surface far from its cause,
or never. Each function returns the value if it is as expected, and raises TypeError with a message that names the field
if it is not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reelscribe.errors import UsageError, brief

LARGEST = 2**53
"""Largest whole number that is expected anywhere; up to it, every program reads numbers of JSON exactly."""


_ABSENT = ("speaker", "translation", "stream_index", "other_streams", "mirrored", "gaps")
"""Fields that are left out where they are None."""


def known_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object as JSON has them: without those that hardly any object has, where it has none.

    So what has none is written as it was before there were any.

    Args:
        fields: The names and the values of the fields.
    """
    return {name: value for name, value in fields if value is not None or name not in _ABSENT}


def read_text(name: str, value: Any) -> str:
    """Return a text; raise TypeError for anything else."""
    if type(value) is not str:
        raise TypeError(f"{name}: expected a text, got {brief(value)}")
    return value


def read_list(name: str, value: Any) -> list[Any]:
    """Return a list; raise TypeError for anything else."""
    if type(value) not in (list, tuple):  # a dataclass that was taken apart has tuples
        raise TypeError(f"{name}: expected a list, got {brief(value)}")
    return list(value)


def read_count(name: str, value: Any, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number from `least` to `most`; raise TypeError for anything else, also for true and 1.0."""
    if type(value) is not int or not least <= value <= most:
        raise TypeError(f"{name}: expected a whole number from {least} to {most}, got {brief(value)}")
    return value


def read_number(name: str, value: Any, lowest: float = -1e12, highest: float = 1e12) -> float:
    """Return a number from `lowest` to `highest` as a float; raise TypeError for anything else."""
    # NaN fails every comparison. bool is a subclass of int, and numpy's floats are of float.
    if not isinstance(value, (float, int)) or isinstance(value, bool) or not lowest <= value <= highest:
        raise TypeError(f"{name}: expected a number from {lowest:g} to {highest:g}, got {_shown(value)}")
    return float(value)


def check_types(value: Any) -> None:
    """Check that each field of a dataclass has the type that it is declared with.

    It knows texts, booleans, whole and other finite numbers, None, mappings, literals and tuples of these. Fields of
    other types are left alone.

    Args:
        value: An instance of a dataclass.

    Raises:
        TypeError: A field has another type.
    """
    hints = _hints(type(value))
    for field in fields(value):
        if not _fits(getattr(value, field.name), hints[field.name]):
            got = _shown(getattr(value, field.name))
            raise TypeError(f"{field.name}: expected {field.type}, got {got}")


def check_options(options: Any) -> None:
    """Check that each field of a dataclass that a program has made has the type that it is declared with.

    Args:
        options: An instance of a dataclass. Whether its values are in their ranges is left to the dataclass.

    Raises:
        UsageError: A field has another type.
    """
    hints = _hints(type(options))
    for each in fields(options):
        value, kind = getattr(options, each.name), hints[each.name]
        is_choice = isinstance(value, str) and any(get_origin(part) is Literal for part in (kind, *get_args(kind)))
        if not is_choice and not _fits(0.0 if isinstance(value, float) else value, kind):
            raise UsageError(f"{each.name}: expected {each.type}, got {_shown(value)}")


_hints: Callable[[Any], dict[str, Any]] = lru_cache(get_type_hints)


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if kind is float:
        return type(value) in (float, int) and -LARGEST <= value <= LARGEST
    if kind is int:
        return type(value) is int and -LARGEST <= value <= LARGEST
    if kind in (str, bool, NoneType):
        return type(value) is kind
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return type(value) is str and value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, Mapping)
    return not isinstance(kind, type) or isinstance(value, kind)


def _shown(value: Any) -> str:
    return repr(value) if type(value) is float and math.isfinite(value) else brief(value)


DECIMALS = 4
"""Decimals of probabilities and of log-probabilities. Devices, and batches of other sizes, do not agree on more."""

_LARGEST = sys.float_info.max


def round_confidence(value: float) -> float | None:
    """Round a probability or a log-probability for JSON.

    Args:
        value: The probability or log-probability.

    Returns:
        The value with DECIMALS decimals; None if it is no finite number, for which JSON has no name.
    """
    return round(value, DECIMALS) + 0.0 if math.isfinite(value) else None  # + 0.0 makes -0.0 a plain 0


def read_confidence(name: str, value: Any) -> float | None:
    """Read a probability (0 to 1) or a log-probability (at most 0) from parsed JSON.

    Args:
        name: What it is called; names of log-probabilities end in "logprob".
        value: A number, or None where it is not known.

    Raises:
        TypeError: It is neither, or out of its range.
    """
    if value is None:
        return None
    lowest, highest = (-_LARGEST, 0) if name.endswith("logprob") else (0, 1)
    # NaN fails every comparison.
    if (type(value) not in (float, int) and not isinstance(value, float)) or not lowest <= value <= highest:
        raise TypeError(f"{name}: expected a number of at most {highest}, or null")
    return float(value)
