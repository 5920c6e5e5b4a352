"""The body of a request: a pickle whose array data travels beside it, so that nothing large is copied.

Format, version 1; integers are little-endian and unsigned::

    offset  size      what
    0       7         magic, the bytes 93 "RSBODY"
    7       1         version, 1
    8       4         P, the size of the pickle
    12      4         B, the number of buffers, at most 4,096
    16      8 * B     the size of each buffer
    ...     P         the pickle, protocol 5
                      then each buffer, from the next multiple of 64 (counted from the start of the body) on, the
                      bytes between being 0; the body ends with the last buffer, or with the pickle if there is none

The pickle holds a tree of dict (its keys are text), list, tuple, str, bytes, int, float, bool, None and arrays. An
array is written as ``reelscribe.wire.array(data, dtype, shape, order)``; its data is the next buffer, or in line if it
is smaller than `INLINE_BYTES`. Reading builds these and nothing else, whatever the bytes say: see
`reelscribe.safe_pickle` and `reelscribe.pickled_arrays`, which also hold the limits on counts, depth, dtypes, shapes.

`unpack` also reads a plain ``pickle.dumps(array)`` of protocols 2 to 5. Everything wrong is a WireError.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from reelscribe import safe_pickle
from reelscribe.errors import WireError
from reelscribe.pickled_arrays import ITEM_SIZES, MAX_DIMENSIONS, Array, checked_array
from reelscribe.safe_pickle import Tree

MAGIC = b"\x93RSBODY"
VERSION = 1
ALIGNMENT = 64
INLINE_BYTES = 4096
MAX_BUFFERS = 4096

_HEADER = struct.Struct("<7sBII")
_PICKLE_START = b"\x80"

Segment = bytes | memoryview


def pack(tree: Tree) -> list[Segment]:
    """The body of `tree` as segments to be sent one after the other: small bytes, and views on the arrays' own memory.

    Arrays must not change until the segments are sent. Contiguous arrays are not copied; others are, once. Raises
    WireError for anything that is not in the tree described above.
    """
    buffers: list[memoryview] = []
    stream = io.BytesIO()
    _check(tree)
    _Pickler(stream, buffers).dump(tree)
    if len(buffers) > MAX_BUFFERS:
        raise WireError(f"body: {len(buffers)} arrays; at most {MAX_BUFFERS} fit one request")
    pickled = stream.getvalue()
    sizes = struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers))
    segments: list[Segment] = [_HEADER.pack(MAGIC, VERSION, len(pickled), len(buffers)) + sizes + pickled]
    end = len(segments[0])
    for buffer in buffers:
        gap = -end % ALIGNMENT
        segments += [bytes(gap), buffer] if gap else [buffer]
        end += gap + buffer.nbytes
    return segments


def size_of(segments: list[Segment]) -> int:
    """Bytes of the whole body: its Content-Length."""
    return sum(memoryview(segment).nbytes for segment in segments)


def unpack(body: bytes | bytearray | memoryview) -> Tree:
    """The tree in `body`; its arrays are views on `body`. Raises WireError."""
    view = memoryview(body).cast("B")
    if view[: len(MAGIC)] == MAGIC:
        return _unpack_ours(view)
    if view[:1] == _PICKLE_START:
        return safe_pickle.load(view)
    raise WireError(
        f"body: expected a reelscribe body or pickle.dumps(array) of protocol 2 or newer, got {view.nbytes} bytes"
        f" that start with {bytes(view[:8])!r}"
    )


def array(data: Segment, dtype: str, shape: tuple[int, ...], order: str) -> Array:
    """What the pickle calls an array by; `dtype` like "<f4", `order` "C" or "F". Raises WireError."""
    return checked_array(data, dtype, shape, order)


def _unpack_ours(view: memoryview) -> Tree:
    if view.nbytes < _HEADER.size:
        raise WireError(f"body: the header takes {_HEADER.size} bytes, got {view.nbytes}; send it again whole")
    _, version, pickle_size, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise WireError(
            f"body: expected format version {VERSION}, got {version}; use the same reelscribe on both sides"
        )
    if count > MAX_BUFFERS:
        raise WireError(f"body: {count} buffers; at most {MAX_BUFFERS} fit one request")
    start = _HEADER.size + 8 * count
    if view.nbytes < start + pickle_size:
        raise WireError(f"body: header and pickle take {start + pickle_size} bytes, got {view.nbytes}")
    sizes = struct.unpack_from(f"<{count}Q", view, _HEADER.size)
    end, buffers = start + pickle_size, []
    for size in sizes:
        begin = end + -end % ALIGNMENT
        end = begin + size
        buffers.append(view[begin:end])
    if end != view.nbytes:
        raise WireError(f"body: the header announces {end} bytes, got {view.nbytes}; send it again whole")
    return safe_pickle.load(view[start : start + pickle_size], buffers)


def _check(tree: Any) -> None:
    """Refuse what the reader would: the sender can still do something about it."""
    values = 0

    def visit(value: Any, depth: int) -> None:
        nonlocal values
        values += 1
        if depth > safe_pickle.MAX_DEPTH or values > safe_pickle.MAX_VALUES:
            limits = f"{safe_pickle.MAX_VALUES} values or {safe_pickle.MAX_DEPTH} levels"
            raise WireError(f"body: over {limits}; send large data as arrays")
        kind = type(value)
        if kind is list or kind is tuple:
            for item in value:
                visit(item, depth + 1)
        elif kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise WireError(f"body: dict keys are text, got {type(key).__name__}")
                visit(item, depth + 1)
        else:
            _check_leaf(value)

    visit(tree, 0)


def _check_leaf(value: Any) -> None:
    kind = type(value)
    if kind is np.ndarray:
        if value.dtype.str[1:] not in ITEM_SIZES:
            raise WireError(f"body: arrays hold one of {', '.join(ITEM_SIZES)}, got {value.dtype}")
        if value.ndim > MAX_DIMENSIONS:
            raise WireError(f"body: arrays have at most {MAX_DIMENSIONS} dimensions, got {value.ndim}")
    elif kind is int and value.bit_length() >= 8 * safe_pickle.MAX_INTEGER_BYTES:
        raise WireError(f"body: integers take at most {safe_pickle.MAX_INTEGER_BYTES} bytes")
    elif kind not in (type(None), bool, int, float, str, bytes):
        raise WireError(
            f"body: expected dict, list, tuple, str, bytes, int, float, bool, None or an array, got {kind.__name__}"
        )


class _Pickler(pickle.Pickler):
    """Writes the pickle of the format and collects the buffers that travel beside it."""

    def __init__(self, stream: io.BytesIO, buffers: list[memoryview]) -> None:
        def travels_in_line(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= INLINE_BYTES:
                buffers.append(raw)
            return raw.nbytes < INLINE_BYTES

        super().__init__(stream, protocol=5, buffer_callback=travels_in_line)

    def reducer_override(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | Any:
        """Called for whatever is not a plain value."""
        if type(value) is np.ndarray:
            return array, _array_arguments(value)
        return NotImplemented  # the function `array` itself, by its name


def _array_arguments(value: Array) -> tuple[pickle.PickleBuffer, str, tuple[int, ...], str]:
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    flat = np.ascontiguousarray(value.T if fortran else value).reshape(-1)
    data = flat.view(np.uint8)
    # Read-only, so that the same array always gives the same bytes. The buffer is the array's own, not a memoryview's:
    # CPython 3.11 crashes when it collects a cycle that holds a memoryview with another one made from it.
    data.flags.writeable = False
    buffer = pickle.PickleBuffer(data)  # type: ignore[arg-type]  # arrays are buffers; numpy says so from 3.12 on
    return buffer, value.dtype.str, value.shape, "F" if fortran else "C"
