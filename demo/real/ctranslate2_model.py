"""Reads the weights of a CTranslate2 model, as numpy arrays.

The file `model.bin` has no index, so it is read from its start. All numbers are little-endian:

    uint32 version of the format, string name of the kind of model, uint32 revision of that kind
    uint32 number of variables, and for each one:
        string name, uint8 number of dimensions, uint32 each dimension, uint8 data type, uint32 size in bytes, data
    uint32 number of aliases, and for each one: string alias, string name of a variable

A string is a uint16 length and so many bytes, of which the last one is 0.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 6
"""The version of the format that this module reads."""

_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""The data type of each number that stands for one."""


def read_variables(path: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Read all variables of a model, which fit into memory.

    Args:
        path: The file `model.bin`.
        kind: The kind of model that is expected, such as "WhisperSpec".

    Returns:
        The value of each variable by its name, such as "encoder/conv1/weight"; aliases are further names.

    Raises:
        ValueError: The file has another version, another kind of model, or bytes that the format does not explain.
    """
    with path.open("rb") as file:
        version, found = _number(file, "I"), _string(file)
        if (version, found) != (FORMAT_VERSION, kind):
            raise ValueError(f"{path}: expected {kind} in version {FORMAT_VERSION}, got {found} in version {version}")
        _number(file, "I")  # the revision of the kind, which says nothing about the layout
        variables = {}
        for _ in range(_number(file, "I")):
            name, value = _string(file), _array(file)
            variables[name] = value
        aliases = {_string(file): _string(file) for _ in range(_number(file, "I"))}
        if rest := file.read():
            raise ValueError(f"{path}: expected the end of the file after its aliases, got {len(rest)} bytes more")
    return {**variables, **{alias: variables[name] for alias, name in aliases.items()}}


def _number(file: BinaryIO, code: str) -> int:
    """Read a number that `struct` calls by this code."""
    number: int
    (number,) = struct.unpack(f"<{code}", file.read(struct.calcsize(f"<{code}")))
    return number


def _string(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()


def _array(file: BinaryIO) -> NDArray[Any]:
    shape = [_number(file, "I") for _ in range(_number(file, "B"))]
    dtype = np.dtype(_DTYPES[_number(file, "B")]).newbyteorder("<")
    return np.frombuffer(file.read(_number(file, "I")), dtype).reshape(shape)
