"""Pack and unpack the body of a request: a pickle, followed by the data of its arrays so that nothing large is copied.

This is the specification of the format, version 1. Integers are unsigned and little-endian::

    offset  size      content
    0       7         magic: the byte 93 (hexadecimal), then "RSBODY" in ASCII
    7       1         version: 1
    8       4         P: size of the pickle in bytes
    12      4         B: number of buffers, at most 4,096
    16      8 * B     size of each buffer in bytes
    16+8*B  P         the pickle, protocol 5
    ...               the buffers, in order; each begins at the next offset from the start of the body that is a
                      multiple of 64, and the bytes that are skipped are 0

The body ends with the last byte of the last buffer, or of the pickle if there are no buffers.

The pickle holds one tree of dict (whose keys are str), list, tuple, str, bytes, int, float, bool, None and arrays. An
array is a call of ``reelscribe.wire.array(data, dtype, shape, order)``:

- `data` is the next buffer, or bytes in the pickle. A writer puts data into the pickle if it has less than 4,096 bytes;
  a reader accepts data of any size in either place.
- `dtype` is numpy's code with the byte order, such as "<f4". It is one of b1 (bool), i1, i2, i4, i8, u1, u2, u4, u8
  (integers), f2, f4, f8 (floating point), c8, c16 (complex), in either byte order; `_safe_pickle.py` has the table.
  Long double is missing because it differs between machines.
- `shape` has up to 32 lengths of 0 or more.
- `order` is "C" (the last index varies fastest) or "F" (the first index varies fastest).

A pickle has at most 200,000 opcodes, 100,000 values and 32 levels of containers. An int has at most 32 bytes. Once the
text in a pickle exceeds 4 MiB of UTF-8, the str that exceeds it and every later str have only characters up to U+00FF.

A reader makes nothing but these values, even from hostile bytes (see `_safe_pickle`). It refuses a body that breaks a
rule or exceeds a limit, is too short or too long, has a buffer that the pickle does not use, or has another version. A
writer refuses a value whose body a reader would refuse. Both raise WireError.

`unpack` also reads what other clients send: ``pickle.dumps(array)`` of protocols 2 to 5, and ``.npy`` files of format
versions 1.0 and 2.0 (see `numpy.lib.format`).
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reelscribe.errors import WireError
from reelscribe.wire._safe_pickle import DTYPES, MAX_DEPTH, MAX_VALUES, Array, Tree, checked_array, load

MAGIC = b"\x93RSBODY"
"""First bytes of a body."""

VERSION = 1
"""Version of the format."""

ALIGNMENT = 64
"""Every buffer begins at a multiple of this offset, in bytes."""

INLINE_BYTES = 4096
"""Data of arrays below this size, in bytes, is put into the pickle and not into a buffer."""

MAX_BUFFERS = 4096
"""Largest number of buffers in a body."""

MAX_PICKLE_BYTES = 2**32 - 1
"""Largest size of the pickle in a body, in bytes."""

_HEADER = struct.Struct("<7sBII")
_PICKLE_START = b"\x80"
_NPY_START = b"\x93NUMPY"
STARTS = (MAGIC, _PICKLE_START, _NPY_START)
"""First bytes of the formats that `unpack` reads."""

COMPUTE_SECONDS_HEADER = "X-Reelscribe-Compute-Seconds"
"""HTTP header of a response: the compute time of the handler for it, in seconds."""

IDENTITY_HEADER = "X-Reelscribe-Identity"
"""HTTP header of a response: the `identity` in the description of the model that gave the answer."""

WORKER_HEADER = "X-Reelscribe-Worker"
"""HTTP header of a response: the process id of the worker that gave it, a space, and where it computes: "cpu", for
example "cuda:2", or for two stages on two GPUs "cuda:2+cuda:3"."""

ITEMS_HEADER = "X-Reelscribe-Call-Items"
"""HTTP header of a response: the number of frames, chunks, clips or windows of all requests of its call together."""

RESPONSE_SIZE_VARIABLE = "REELSCRIBE_MAX_RESPONSE_SIZE"
"""Environment variable of a worker: the most bytes of an answer, over which TorchServe ends the worker."""

_NPY_HEADER_BYTES = 2000
"""Largest size of an .npy header, in bytes; those that numpy writes have about 100."""
_NPY_HEADER = re.compile(
    rb"{'descr': '([<>|=]?\w{2,3})', 'fortran_order': (True|False),"
    rb" 'shape': \(((?:\d{1,20}, ?)*(?:\d{1,20})?)\),? ?}\s*"
)
"""The header of a plain array, which is written in one way only. numpy evaluates headers as Python literals, and
answers some damaged ones with errors of other kinds."""

Segment = bytes | memoryview
"""Consecutive bytes of a body."""


def pack(tree: Tree) -> list[Segment]:
    """Pack a tree into a body.

    Contiguous arrays are not copied; other arrays and `bytes` are copied once.

    Args:
        tree: Values as the docstring of this module specifies them. Arrays must not change until the body is sent.

    Returns:
        The segments of the body, to be sent in this order: bytes, and views of the memory of the arrays.

    Raises:
        WireError: The tree has a value of another type, or a reader would refuse its body.
    """
    buffers: list[memoryview] = []
    stream = io.BytesIO()
    _check_values(tree)
    _Pickler(stream, buffers).dump(tree)
    if len(buffers) > MAX_BUFFERS:
        raise WireError(f"body: {len(buffers)} arrays; at most {MAX_BUFFERS} fit one request")
    pickled = stream.getvalue()
    if len(pickled) > MAX_PICKLE_BYTES:
        raise WireError(f"body: {len(pickled)} bytes beside its arrays; send large data as arrays")
    # If the receiver would refuse this pickle, so does this call, and the caller learns it before anything is sent.
    load(memoryview(pickled), buffers)
    sizes = struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers))
    segments: list[Segment] = [_HEADER.pack(MAGIC, VERSION, len(pickled), len(buffers)) + sizes + pickled]
    end = len(segments[0])
    for buffer in buffers:
        gap = -end % ALIGNMENT
        segments += [bytes(gap), buffer] if gap else [buffer]
        end += gap + buffer.nbytes
    return segments


def size_of(segments: Sequence[Segment]) -> int:
    """Return the size of a body in bytes, for its Content-Length."""
    return sum(memoryview(segment).nbytes for segment in segments)


def unpack(body: bytes | bytearray | memoryview) -> Tree:
    """Read a body, a pickled array or an .npy file.

    Args:
        body: Contiguous bytes.

    Returns:
        The tree in the body, or the array. Arrays are views of `body` and keep the byte order that they have there.

    Raises:
        WireError: The bytes are in none of the three formats, break a rule of their format, or exceed a limit.
    """
    view = memoryview(body).cast("B")
    if view[: len(MAGIC)] == MAGIC:
        return _unpack_body(view)
    if view[:1] == _PICKLE_START:
        return load(view)
    if view[: len(_NPY_START)] == _NPY_START:
        return _unpack_npy(view)
    raise WireError(
        "body: expected a reelscribe body, pickle.dumps(array) of protocol 2 or newer, or .npy,"
        f" got {view.nbytes} bytes that start like none of them"
    )


def array(data: Segment, dtype: str, shape: tuple[int, ...], order: str) -> Array:
    """Make an array. Pickles in bodies refer to this function, so its name is part of the format.

    Args:
        data: Bytes of the items.
        dtype: Code of the dtype with its byte order, such as "<f4".
        shape: Length of each dimension.
        order: "C" or "F".

    Returns:
        An array that is a view of `data`.

    Raises:
        WireError: The arguments are not allowed in a body, or the size of `data` is not that of `dtype` and `shape`.
    """
    return checked_array(data, dtype, shape, order)


def _unpack_body(view: memoryview) -> Tree:
    if view.nbytes < _HEADER.size:
        raise WireError(f"body: the header takes {_HEADER.size} bytes, got {view.nbytes}; send it again whole")
    _, version, pickle_size, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise WireError(
            f"body: expected format version {VERSION}, got another one; use the newer reelscribe on both sides"
        )
    if count > MAX_BUFFERS:
        raise WireError(f"body: at most {MAX_BUFFERS} buffers fit one request, got more")
    start = _HEADER.size + 8 * count
    if view.nbytes < start + pickle_size:
        raise WireError(
            f"body: expected the header and pickle that it announces, got only {view.nbytes} bytes; send it whole"
        )
    sizes = struct.unpack_from(f"<{count}Q", view, _HEADER.size)
    end, buffers = start + pickle_size, []
    for size in sizes:
        begin = end + -end % ALIGNMENT
        if bytes(view[end:begin]).strip(b"\0"):
            raise WireError("body: expected zeros between its parts, got others")
        end = begin + size
        buffers.append(view[begin:end])
    if end != view.nbytes:
        raise WireError(f"body: expected the bytes that its header announces, got {view.nbytes}; send it again whole")
    return load(view[start : start + pickle_size], buffers)


def _unpack_npy(view: memoryview) -> Array:
    version = bytes(view[6:8])
    if version not in (b"\1\0", b"\2\0"):
        raise WireError("npy: expected format version 1.0 or 2.0, got another one; write it with np.save")
    start = 10 if version == b"\1\0" else 12
    end = start + int.from_bytes(view[8:start], "little")
    # numpy evaluates the header as a Python literal. This accepts only the exact form in which numpy writes it.
    header = _NPY_HEADER.fullmatch(view[start:end]) if end <= min(view.nbytes, start + _NPY_HEADER_BYTES) else None
    if header is None:
        raise WireError(
            "npy: expected the header of a plain numeric array as numpy writes it, got another one; write it with"
            " np.save"
        )
    dtype, fortran, shape = (part.decode("ascii") for part in header.groups())
    lengths = tuple(int(length) for length in shape.replace(",", " ").split())
    return checked_array(view[end:], dtype, lengths, "F" if fortran == "True" else "C")


def _check_values(tree: Any) -> None:
    """Raise a WireError, which names the type, for a value that is not allowed, or for too deep or cyclic trees."""
    remaining = [(tree, 0)]
    values = 0
    while remaining:
        value, depth = remaining.pop()
        values += 1
        if values > MAX_VALUES or depth > MAX_DEPTH:
            raise WireError(f"body: over {MAX_VALUES} values or {MAX_DEPTH} levels; send large data as arrays")
        kind = type(value)
        if kind is list or kind is tuple:
            remaining += [(item, depth + 1) for item in value]
        elif kind is dict:
            if not all(type(key) is str for key in value):
                raise WireError("body: expected dict keys of text, got others")
            remaining += [(item, depth + 1) for item in value.values()]
        elif kind is np.ndarray:
            if value.dtype.str[1:] not in DTYPES:
                raise WireError(f"body: arrays hold one of {', '.join(DTYPES)}, got {value.dtype}")
        elif kind not in (type(None), bool, int, float, str, bytes):
            raise WireError(
                f"body: expected dict, list, tuple, str, bytes, int, float, bool, None or an array, got {kind.__name__}"
            )


class _Pickler(pickle.Pickler):
    """Write the pickle of a body to `stream`, and append the data of large arrays to `buffers`."""

    def __init__(self, stream: io.BytesIO, buffers: list[memoryview]) -> None:
        def is_inline(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            inline = raw.nbytes < INLINE_BYTES
            if not inline:
                buffers.append(raw)
            return inline

        super().__init__(stream, protocol=5, buffer_callback=is_inline)

    def reducer_override(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | Any:
        """Return how to pickle a value that is not a plain one; `pickle` calls this."""
        if type(value) is np.ndarray:
            return array, _array_arguments(value)
        return NotImplemented  # the function `array` itself, which is pickled by its name


def _array_arguments(value: Array) -> tuple[pickle.PickleBuffer, str, tuple[int, ...], str]:
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    flat = np.ascontiguousarray(value.T if fortran else value).reshape(-1)
    data = flat.view(np.uint8)
    # Pickle marks read-only buffers. The data is always made read-only, so that equal arrays give equal bytes. The
    # buffer is that of the array and not that of a memoryview: CPython 3.11 crashes when its garbage collector meets a
    # cycle that holds a memoryview from which another one was made.
    data.flags.writeable = False
    buffer = pickle.PickleBuffer(data)  # type: ignore[arg-type]  # arrays are buffers; numpy says so from 3.12 on
    return buffer, value.dtype.str, value.shape, "F" if fortran else "C"
