"""The functions that a pickle may call to make arrays, each replaced by a constructor that checks its arguments.

Bodies of reelscribe call `reelscribe.wire.array`. Pickles of numpy 1 and 2 call the functions that `ndarray.__reduce__`
and `ndarray.__reduce_ex__` return.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import WireError, kind_of

Array = NDArray[Any]

MAX_DIMENSIONS = 32
"""Largest number of dimensions of an array."""

ITEM_SIZES = {code: int(code[1:]) for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()}  # noqa: SIM905 - a table
"""Bytes per item of every allowed dtype, by numpy's code without the byte order."""


def checked_array(buffer: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """Make an array from untrusted arguments.

    Args:
        buffer: The data, a bytes-like object.
        dtype: numpy's code of the dtype, with or without the byte order, such as "<f4".
        shape: A tuple of lengths.
        order: "C" or "F".

    Returns:
        An array that is a view of `buffer`.

    Raises:
        WireError: An argument is not of this form, or the size of the data is not that of `dtype` and `shape`.
    """
    code = dtype.lstrip("<>|=") if type(dtype) is str else ""
    if code not in ITEM_SIZES or len(dtype) > len(code) + 1:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {kind_of(dtype)}")
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"array shape: expected up to {MAX_DIMENSIONS} lengths of 0 or more, got {kind_of(shape)}")
    if type(order) is not str or order not in ("C", "F"):
        raise WireError(f'array order: expected "C" or "F", got {kind_of(order)}')
    if not isinstance(buffer, (bytes, bytearray, memoryview)):
        raise WireError(f"array data: expected bytes, got {kind_of(buffer)}")
    size, expected = memoryview(buffer).nbytes, math.prod(shape) * ITEM_SIZES[code]
    if size != expected:
        raise WireError(f"array data: expected as many bytes as its dtype and shape take, got {size}")
    try:
        return np.ndarray(shape, np.dtype(dtype), buffer if size else None, order="F" if order == "F" else "C")
    except (ValueError, MemoryError):  # the shape has a 0, and the product of its other lengths overflows
        raise WireError(
            "array shape: expected lengths that fit the memory, got longer ones, though without data"
        ) from None


class Constructor:
    """A function that a pickle may call.

    Args:
        make: The function. It gets the tuple of the call's arguments, and must check each of them.
    """

    def __init__(self, make: Callable[[tuple[Any, ...]], Any]) -> None:
        self.make = make


class PendingDtype:
    """A dtype that is made in two steps: a call with its code, and a state with its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.byte_order = code, "|"

    def __str__(self) -> str:
        return self.byte_order + self.code

    def build(self, state: Any) -> None:
        """Apply numpy's state of a dtype: (version, byte order, 3 fields that are None if it is plain, 3 others)."""
        plain = type(state) is tuple and len(state) == 8 and all(field is None for field in state[2:5])
        if not plain or type(state[1]) is not str or state[1] not in ("<", ">", "|", "="):
            raise WireError(f"pickle: expected the state of a plain dtype, got {kind_of(state)}")
        self.byte_order = state[1]


class PendingArray:
    """An array that is made in two steps: `_reconstruct` makes it empty, and a state fills it."""

    array: Array | None = None
    """The array; None before `build`."""

    def build(self, state: Any) -> None:
        """Apply numpy's state of an array: (version, shape, dtype, whether it is in Fortran order, data)."""
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not PendingDtype:
            raise WireError("pickle: expected the state of a plain numeric array, with its data as bytes")
        _, shape, dtype, fortran, data = state
        self.array = checked_array(data, str(dtype), shape, "F" if fortran is True else "C")


def _make_dtype(args: tuple[Any, ...]) -> PendingDtype:
    """Make a dtype as `numpy.dtype(code, align, copy)` does."""
    if len(args) != 3:
        raise WireError(f"pickle: a dtype is made of 3 values, got {len(args)}")
    code = args[0]
    if type(code) is not str or code not in ITEM_SIZES:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {kind_of(code)}")
    return PendingDtype(code)


def _make_bytes_from_latin1(args: tuple[Any, ...]) -> bytes:
    """Make bytes by encoding text as Latin-1, as pickles of protocol 2 do, which has no opcode for bytes."""
    text, encoding = args
    if type(text) is not str or type(encoding) is not str or encoding != "latin1":
        raise WireError("pickle: _codecs.encode is understood for latin1 text only")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise WireError("pickle: bytes spelled as text hold a character over 255") from None


def _make_empty_bytes(args: tuple[Any, ...]) -> bytes:
    """Make empty bytes by calling `bytes()`, as pickles of protocol 2 do."""
    if args:
        raise WireError("pickle: bytes() is understood without arguments only")
    return b""


def _make_array(args: tuple[Any, ...]) -> Array:
    """Make an array as `reelscribe.wire.array` and numpy's `_frombuffer` do."""
    buffer, dtype, shape, order, *axes = args[:5]
    dtype = str(dtype) if type(dtype) is PendingDtype else dtype
    if len(args) == 4:
        return checked_array(buffer, dtype, shape, order)
    # numpy pickles an array with permuted axes as its data in C order, the order "K" and the permutation.
    array = checked_array(buffer, dtype, shape, "C")
    permutation = axes[0]
    if len(args) != 5 or order != "K" or type(permutation) is not tuple or len(permutation) != array.ndim:
        raise WireError(f'array order: expected "K" with one axis for each of {array.ndim}, got {kind_of(permutation)}')
    if not all(type(axis) is int for axis in permutation) or sorted(permutation) != list(range(array.ndim)):
        raise WireError(f"array axes: expected a permutation of 0 to {array.ndim - 1}, got {kind_of(permutation)}")
    return array.transpose(permutation)


def _make_pending_array(args: tuple[Any, ...]) -> PendingArray:
    """Make an empty array as numpy's `_reconstruct(ndarray, shape, dtype)` does."""
    if len(args) != 3 or args[0] is not _NDARRAY:
        raise WireError("pickle: only plain arrays can be reconstructed, no subclass")
    return PendingArray()


def _refuse_call(_: tuple[Any, ...]) -> None:
    raise WireError("pickle: ndarray is not called directly by any pickle of an array")


_NDARRAY = Constructor(_refuse_call)
CONSTRUCTORS = {
    ("reelscribe.wire", "array"): Constructor(_make_array),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): Constructor(_make_dtype),
    ("numpy.core.multiarray", "_reconstruct"): Constructor(_make_pending_array),
    ("numpy._core.multiarray", "_reconstruct"): Constructor(_make_pending_array),
    ("numpy.core.numeric", "_frombuffer"): Constructor(_make_array),
    ("numpy._core.numeric", "_frombuffer"): Constructor(_make_array),
    ("_codecs", "encode"): Constructor(_make_bytes_from_latin1),
    ("__builtin__", "bytes"): Constructor(_make_empty_bytes),
}
"""Constructor for each (module, name) that a pickle may refer to."""
