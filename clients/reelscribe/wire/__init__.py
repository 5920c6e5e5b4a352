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
is smaller than `INLINE_BYTES`. Reading builds these and nothing else, whatever the bytes say: see `_safe_pickle`.

Arrays have up to 32 dimensions, and the dtypes of `_arrays.ITEM_SIZES` in either byte order: bool and
all numbers but long double, which differs between machines. The other limits are those of `_safe_pickle`:
100,000 values, 32 levels, 200,000 opcodes, integers of 32 bytes, and of text beyond 4 MiB only characters up to 255.

Every byte counts: a body with one too few or too many, an unused buffer or another version is refused. `unpack` also
reads what others send, plain ``pickle.dumps(array)`` of protocols 2 to 5 and ``.npy`` files of versions 1 and 2 (see
`numpy.lib.format`). Everything wrong, and everything over a limit, is a WireError, from the writer as from the reader.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from reelscribe.errors import WireError
from reelscribe.wire._arrays import ITEM_SIZES, Array, checked_array
from reelscribe.wire._safe_pickle import MAX_DEPTH, MAX_VALUES, Tree, load

MAGIC = b"\x93RSBODY"
VERSION = 1
ALIGNMENT = 64
INLINE_BYTES = 4096
MAX_BUFFERS = 4096
MAX_PICKLE_BYTES = 2**32 - 1

_HEADER = struct.Struct("<7sBII")
_PICKLE_START = b"\x80"
_NPY_START = b"\x93NUMPY"
STARTS = (MAGIC, _PICKLE_START, _NPY_START)
"""One of these is at the start of whatever `unpack` reads."""

COMPUTE_SECONDS_HEADER = "X-Reelscribe-Compute-Seconds"
"""Of an answer: how long our handler worked on it."""

IDENTITY_HEADER = "X-Reelscribe-Identity"
"""Of an answer: the `identity` of the model that gave it."""

_NPY_HEADER_BYTES = 2000  # numpy's own take about 100
_NPY_HEADER = re.compile(
    rb"{'descr': '([<>|=]?\w{2,3})', 'fortran_order': (True|False),"
    rb" 'shape': \(((?:\d{1,20}, ?)*(?:\d{1,20})?)\),? ?}\s*"
)

Segment = bytes | memoryview


def pack(tree: Tree) -> list[Segment]:
    """The body of `tree` as segments to be sent one after the other: small bytes, and views on the arrays' own memory.

    Arrays must not change until the segments are sent. Contiguous arrays are not copied; others are, once, and so
    are `bytes`. Raises WireError for anything that is not in the tree described above, or over the reader's limits.
    """
    buffers: list[memoryview] = []
    stream = io.BytesIO()
    _check(tree)
    _Pickler(stream, buffers).dump(tree)
    if len(buffers) > MAX_BUFFERS:
        raise WireError(f"body: {len(buffers)} arrays; at most {MAX_BUFFERS} fit one request")
    pickled = stream.getvalue()
    if len(pickled) > MAX_PICKLE_BYTES:
        raise WireError(f"body: {len(pickled)} bytes beside its arrays; send large data as arrays")
    # What the reader would refuse is refused here, where something can still be done about it.
    load(memoryview(pickled), buffers)
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
    """The tree in `body`, contiguous bytes; its arrays are views on them. Raises WireError."""
    view = memoryview(body).cast("B")
    if view[: len(MAGIC)] == MAGIC:
        return _unpack_ours(view)
    if view[:1] == _PICKLE_START:
        return load(view)
    if view[: len(_NPY_START)] == _NPY_START:
        return _unpack_npy(view)
    raise WireError(
        "body: expected a reelscribe body, pickle.dumps(array) of protocol 2 or newer, or .npy,"
        f" got {view.nbytes} bytes that start with {bytes(view[:8])!r}"
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
            f"body: format version {version} is not known here, only {VERSION}; use the newer reelscribe on both sides"
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
        if bytes(view[end:begin]).strip(b"\0"):
            raise WireError(f"body: expected zeros between its parts, from {end} to {begin}")
        end = begin + size
        buffers.append(view[begin:end])
    if end != view.nbytes:
        raise WireError(f"body: the header announces {end} bytes, got {view.nbytes}; send it again whole")
    return load(view[start : start + pickle_size], buffers)


def _unpack_npy(view: memoryview) -> Array:
    version = bytes(view[6:8])
    if version not in (b"\1\0", b"\2\0"):
        raise WireError(f"npy: expected format version 1.0 or 2.0, got {'.'.join(map(str, version))}")
    start = 10 if version == b"\1\0" else 12
    end = start + int.from_bytes(view[8:start], "little")
    # numpy evaluates the header as a Python literal; this reads the one way in which it is written.
    header = _NPY_HEADER.fullmatch(view[start:end]) if end <= min(view.nbytes, start + _NPY_HEADER_BYTES) else None
    if header is None:
        raise WireError(f"npy: expected the header of a plain numeric array, got {bytes(view[start : start + 60])!r}")
    dtype, fortran, shape = (part.decode("ascii") for part in header.groups())
    lengths = tuple(int(length) for length in shape.replace(",", " ").split())
    return checked_array(view[end:], dtype, lengths, "F" if fortran == "True" else "C")


def _check(tree: Any) -> None:
    """Say by its type what no body can hold, and find what has no end; most limits are the reader's."""
    waiting = [(tree, 0)]
    values = 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if values > MAX_VALUES or depth > MAX_DEPTH:
            raise WireError(f"body: over {MAX_VALUES} values or {MAX_DEPTH} levels; send large data as arrays")
        kind = type(value)
        if kind is list or kind is tuple:
            waiting += [(item, depth + 1) for item in value]
        elif kind is dict:
            if not all(type(key) is str for key in value):
                raise WireError("body: expected dict keys of text, got others")
            waiting += [(item, depth + 1) for item in value.values()]
        elif kind is np.ndarray:
            if value.dtype.str[1:] not in ITEM_SIZES:
                raise WireError(f"body: arrays hold one of {', '.join(ITEM_SIZES)}, got {value.dtype}")
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
