"""The dtypes of the wire, and the arrays that are made of them from untrusted arguments.

Every array of a body, a pickle or an .npy file is made here, whichever function a client names for it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import WireError, kind_of

DTYPES = {code: int(code[1:]) for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()}  # noqa: SIM905 - a table
"""The allowed dtypes, by numpy's code without the byte order, and the bytes of an item of each."""

Array = NDArray[Any]
"""An array of one of the dtypes of the wire."""

MAX_DIMENSIONS = 32
"""Largest number of dimensions of an array."""


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
    if code not in DTYPES or len(dtype) > len(code) + 1:
        raise WireError(f"array dtype: expected one of {', '.join(DTYPES)}, got {kind_of(dtype)}")
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"array shape: expected up to {MAX_DIMENSIONS} lengths of 0 or more, got {kind_of(shape)}")
    if type(order) is not str or order not in ("C", "F"):
        raise WireError(f'array order: expected "C" or "F", got {kind_of(order)}')
    if not isinstance(buffer, (bytes, bytearray, memoryview)):
        raise WireError(f"array data: expected bytes, got {kind_of(buffer)}")
    size, expected = memoryview(buffer).nbytes, math.prod(shape) * DTYPES[code]
    if size != expected:
        raise WireError(f"array data: expected as many bytes as its dtype and shape take, got {size}")
    try:
        return np.ndarray(shape, np.dtype(dtype), buffer if size else None, order="F" if order == "F" else "C")
    except (ValueError, MemoryError):  # the shape has a 0, and the product of its other lengths overflows
        raise WireError(
            "array shape: expected lengths that fit the memory, got longer ones, though without data"
        ) from None
