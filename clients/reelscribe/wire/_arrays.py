"""How pickles spell arrays, each name with the checked constructor that stands for it.

Spellings: `ndarray.__reduce__` and `ndarray.__reduce_ex__` of numpy 1 and 2, and the one of `reelscribe.wire`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import WireError, brief

Array = NDArray[Any]

MAX_DIMENSIONS = 32

ITEM_SIZES = {code: int(code[1:]) for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()}  # noqa: SIM905 - a table
"""Every dtype that is accepted, without its byte order, and the bytes of one item."""


def checked_array(buffer: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """An array on `buffer` (bytes-like): `dtype` like "<f4", `shape` of ints, `order` "C" or "F". Raises WireError."""
    code = dtype.lstrip("<>|=") if type(dtype) is str else ""
    if code not in ITEM_SIZES or len(dtype) > len(code) + 1:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {brief(dtype)}")
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"array shape: expected up to {MAX_DIMENSIONS} lengths of 0 or more, got {brief(shape)}")
    if type(order) is not str or order not in ("C", "F"):
        raise WireError(f'array order: expected "C" or "F", got {brief(order)}')
    if not isinstance(buffer, (bytes, bytearray, memoryview)):
        raise WireError(f"array data: expected bytes, got {brief(buffer)}")
    size, expected = memoryview(buffer).nbytes, math.prod(shape) * ITEM_SIZES[code]
    if size != expected:
        raise WireError(f"array data: {dtype} of shape {brief(shape)} takes {expected} bytes, got {size}")
    try:
        return np.ndarray(shape, np.dtype(dtype), buffer if size else None, order="F" if order == "F" else "C")
    except (ValueError, MemoryError):  # lengths whose product overflows beside one of 0
        raise WireError(f"array shape: {brief(shape)} is too large even for no data") from None


class Name:
    """A name that the pickle wants called; `make` is what we do instead."""

    def __init__(self, make: Callable[[tuple[Any, ...]], Any]) -> None:
        self.make = make


class DtypeInTheMaking:
    """A dtype in the making: its code, then its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.byte_order = code, "|"

    def __str__(self) -> str:
        return self.byte_order + self.code

    def build(self, state: Any) -> None:
        """Take numpy's state, (version, byte order, no fields ...)."""
        plain = type(state) is tuple and len(state) == 8 and all(field is None for field in state[2:5])
        if not plain or type(state[1]) is not str or state[1] not in ("<", ">", "|", "="):
            raise WireError(f"pickle: expected the state of a plain dtype, got {brief(state)}")
        self.byte_order = state[1]


class ArrayInTheMaking:
    """An array in the making: `_reconstruct` makes it empty, its state fills it."""

    value: Array | None = None

    def build(self, state: Any) -> None:
        """Take numpy's state, (version, shape, dtype, is Fortran, data)."""
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not DtypeInTheMaking:
            raise WireError("pickle: expected the state of a plain numeric array, with its data as bytes")
        _, shape, dtype, fortran, data = state
        self.value = checked_array(data, str(dtype), shape, "F" if fortran is True else "C")


def _make_dtype(args: tuple[Any, ...]) -> DtypeInTheMaking:
    if len(args) != 3:  # numpy's own: code, align, copy
        raise WireError(f"pickle: a dtype is made of 3 values, got {len(args)}")
    code = args[0]
    if type(code) is not str or code not in ITEM_SIZES:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {brief(code)}")
    return DtypeInTheMaking(code)


def _make_latin1(args: tuple[Any, ...]) -> bytes:
    """How protocol 2 spells bytes."""
    text, encoding = args
    if type(text) is not str or type(encoding) is not str or encoding != "latin1":
        raise WireError("pickle: _codecs.encode is understood for latin1 text only")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise WireError("pickle: bytes spelled as text hold a character over 255") from None


def _make_empty_bytes(args: tuple[Any, ...]) -> bytes:
    if args:
        raise WireError("pickle: bytes() is understood without arguments only")
    return b""


def _make_frombuffer(args: tuple[Any, ...]) -> Array:
    buffer, dtype, shape, order, *axes = args[:5]
    dtype = str(dtype) if type(dtype) is DtypeInTheMaking else dtype
    if len(args) == 4:
        return checked_array(buffer, dtype, shape, order)
    # How numpy spells an array whose axes were permuted: its data in C order, and then the permutation.
    array = checked_array(buffer, dtype, shape, "C")
    permutation = axes[0]
    if len(args) != 5 or order != "K" or type(permutation) is not tuple or len(permutation) != array.ndim:
        raise WireError(f'array order: expected "K" with one axis for each of {array.ndim}, got {brief(permutation)}')
    if not all(type(axis) is int for axis in permutation) or sorted(permutation) != list(range(array.ndim)):
        raise WireError(f"array axes: expected a permutation of 0 to {array.ndim - 1}, got {brief(permutation)}")
    return array.transpose(permutation)


def _make_pending(args: tuple[Any, ...]) -> ArrayInTheMaking:
    if len(args) != 3 or args[0] is not _NDARRAY:
        raise WireError("pickle: only plain arrays can be reconstructed, no subclass")
    return ArrayInTheMaking()


def _refuse_call(_: tuple[Any, ...]) -> None:
    raise WireError("pickle: ndarray is not called directly by any pickle of an array")


_NDARRAY = Name(_refuse_call)
NAMES = {
    ("reelscribe.wire", "array"): Name(_make_frombuffer),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): Name(_make_dtype),
    ("numpy.core.multiarray", "_reconstruct"): Name(_make_pending),
    ("numpy._core.multiarray", "_reconstruct"): Name(_make_pending),
    ("numpy.core.numeric", "_frombuffer"): Name(_make_frombuffer),
    ("numpy._core.numeric", "_frombuffer"): Name(_make_frombuffer),
    ("_codecs", "encode"): Name(_make_latin1),
    ("__builtin__", "bytes"): Name(_make_empty_bytes),
}
