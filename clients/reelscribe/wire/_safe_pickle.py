"""Read untrusted pickles, which can make plain values and arrays and do nothing else.

A subclass of `pickle.Unpickler` can restrict the classes that a pickle names, but it still allocates as much memory as
a few hostile bytes claim to need. So this reader is a small stack machine of its own. It has the opcodes that protocols
2 to 5 use for plain values and numpy arrays. It imports nothing: a name in a pickle can only refer to one of
`_CONSTRUCTORS`, which stand for the functions that a pickle may call and check every argument. Bodies of reelscribe
call `reelscribe.wire.array`; pickles of numpy 1 and 2 call the functions that `ndarray.__reduce__` and
`ndarray.__reduce_ex__` return. Every array of a body, a pickle or an .npy file is made here, with one of the dtypes of
the wire. Byte strings are views of the body until an array or a `bytes` value is made from them.

The module `pickletools` of the standard library documents the opcodes.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

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


Tree: TypeAlias = "bool | int | float | str | bytes | Array | list[Tree] | tuple[Tree, ...] | dict[Tree, Tree] | None"
"""A value that a pickle may hold; containers hold such values, too."""

MAX_OPCODES = 200_000
"""Largest number of opcodes in a pickle."""

MAX_VALUES = 100_000
"""Largest number of values in a tree; a value that is referred to twice counts twice."""

MAX_DEPTH = 32
"""Largest number of containers inside each other."""

MAX_INTEGER_BYTES = 32
"""Largest size of an int, in bytes."""

MAX_NAME_BYTES = 100
"""Largest size of a line of text, in bytes, such as the name of a module."""

MAX_WIDE_TEXT_BYTES = 4 * 2**20
"""Bytes of UTF-8 text beyond which characters above U+00FF are refused. Python stores each character of a str in as
many bytes as the widest one needs, so a single emoji makes megabytes of letters take four times as much memory.
Characters up to U+00FF take one byte each. They are allowed, because protocol 2 writes bytes as such text."""

_LAST_LEAD_BYTE = 0xC3
"""Largest byte in the UTF-8 encoding of characters up to U+00FF."""


def load(data: memoryview, buffers: Sequence[memoryview] = ()) -> Tree:
    """Read a pickle.

    Args:
        data: A pickle of protocol 2 to 5.
        buffers: Its out-of-band buffers, in order.

    Returns:
        The value. Its arrays are views of `data` and `buffers`.

    Raises:
        WireError: The pickle holds anything but plain values and arrays, is damaged, or exceeds a limit above.
    """
    try:
        return _Machine(data, buffers).run()
    except (IndexError, struct.error):
        raise WireError("pickle: it ends early or takes values that it never put; send it again whole") from None
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        # No known pickle leads here. An unknown one must not fail any request but its own.
        raise WireError(f"pickle: not understood ({type(error).__name__})") from None


class _Machine:
    """The stack machine that executes one pickle; `_OPCODES` has a function for each opcode, which is one byte."""

    def __init__(self, data: memoryview, buffers: Sequence[memoryview]) -> None:
        self.data, self.position = data, 0
        self.buffers: Iterator[memoryview] = iter(buffers)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.made_bytes = 0
        self.text_bytes = 0

    def run(self) -> Tree:
        """Execute all opcodes and return the value that remains at STOP."""
        if self.take(1)[0] != ord(pickle.PROTO) or self.take(1)[0] not in range(2, 6):
            raise WireError("pickle: expected protocol 2 to 5; pickle with protocol=5")
        for _ in range(MAX_OPCODES):
            opcode = self.data[self.position]
            self.position += 1
            if opcode == ord(pickle.STOP):
                return self.result()
            if opcode not in _OPCODES:
                raise WireError(
                    "pickle: expected opcodes that plain values and arrays need, got another one; pickle numpy arrays"
                )
            _OPCODES[opcode](self)
        raise WireError(f"pickle: more than {MAX_OPCODES} opcodes; send large data as arrays")

    def result(self) -> Tree:
        """Check that exactly one value and no bytes or buffers remain, and return a clean copy of the value."""
        if len(self.stack) != 1 or self.position != len(self.data) or next(self.buffers, None) is not None:
            raise WireError("pickle: expected one value that uses all buffers, and nothing after it")
        tree: Tree = _TreeCopy().copy(self.stack[0], 0)
        return tree

    # Arguments of opcodes

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes as a view."""
        view = self.data[self.position : self.position + size]
        if len(view) != size:
            raise WireError(
                f"pickle: more bytes are announced than the {len(view)} that are there; send it again whole"
            )
        self.position += size
        return view

    def number(self, layout: str) -> Any:
        """Return the next number; `layout` is a format of `struct`."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, size: int) -> str:
        """Return the next `size` bytes as text in UTF-8."""
        data = self.take(size)
        self.text_bytes += size
        if self.text_bytes > MAX_WIDE_TEXT_BYTES and size and np.frombuffer(data, np.uint8).max() > _LAST_LEAD_BYTE:
            raise WireError(f"pickle: over {MAX_WIDE_TEXT_BYTES} bytes of text; send large data as arrays")
        try:
            return str(data, "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise WireError("pickle: text that is not UTF-8") from None

    def line(self) -> str:
        """Return the text up to the next line feed, and skip the line feed."""
        head = bytes(self.data[self.position : self.position + MAX_NAME_BYTES]).split(b"\n")[0]
        self.take(len(head) + 1)
        return head.decode("latin1")

    # Opcodes for which `_OPCODES` has no single expression

    def pop_to_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        mark = self.marks.pop()
        values, self.stack[mark:] = self.stack[mark:], []
        return values

    def push_integer(self, size: int) -> None:
        if size > MAX_INTEGER_BYTES:
            raise WireError(f"pickle: an integer of more than {MAX_INTEGER_BYTES} bytes; send large data as arrays")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def push_tuple(self, length: int) -> None:
        values = [self.stack.pop() for _ in range(length)]
        self.stack.append(tuple(reversed(values)))

    def push_constructor(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (module, name) not in _CONSTRUCTORS:
            raise WireError(
                "pickle: only arrays and plain values are read, but it names another class or function; make numpy"
                " arrays of what you pickle"
            )
        self.stack.append(_CONSTRUCTORS[module, name])

    def push_buffer(self) -> None:
        buffer = next(self.buffers, None)
        if buffer is None:
            raise WireError("pickle: it refers to more buffers than the body has")
        self.stack.append(buffer)

    def extend_list(self, values: list[Any]) -> None:
        self._container(list).extend(values)

    def update_dict(self, values: list[Any]) -> None:
        container = self._container(dict)
        if len(values) % 2:
            raise WireError("pickle: a dict with a key but no value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Hashes of str are randomized. With other keys, an attacker could make hashes collide: a dict of 70,000
            # chosen ints would take a minute.
            if type(key) is not str:
                raise WireError(f"pickle: dict keys are text here, got {kind_of(key)}")
            container[key] = value

    def _container(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise WireError(f"pickle: items for a {kind.__name__}, but there is none")
        return self.stack[-1]

    def call(self) -> None:
        args, constructor = self.stack.pop(), self.stack.pop()
        if type(constructor) is not _Constructor or type(args) is not tuple:
            raise WireError("pickle: a call of something that is no array constructor")
        try:
            made = constructor.make(args)
        except (ValueError, TypeError):
            raise WireError("pickle: an array constructor with the wrong arguments") from None
        # Bytes that are made from text are copies, and a pickle can make them from the same text many times.
        self.made_bytes += len(made) if type(made) is bytes else 0
        if self.made_bytes > len(self.data):
            raise WireError("pickle: it makes more bytes than it holds")
        self.stack.append(made)

    def build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_PendingArray, _PendingDtype):
            raise WireError("pickle: a state for something that is no array")
        self.stack[-1].build(state)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise WireError("pickle: it refers to a value that it never stored")
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


class _TreeCopy:
    """Copy a tree so that it has no cycle, no container in two places, and no pending array."""

    def __init__(self) -> None:
        self.values = 0
        self.copied_bytes: dict[int, bytes] = {}

    def copy(self, value: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            raise WireError(f"pickle: over {MAX_VALUES} values or {MAX_DEPTH} levels; send large data as arrays")
        kind = type(value)
        if kind in (type(None), bool, int, float, str, bytes, np.ndarray):
            return value
        if kind is list or kind is tuple:
            return kind(self.copy(item, depth + 1) for item in value)
        if kind is dict:
            return {key: self.copy(item, depth + 1) for key, item in value.items()}
        if kind is memoryview:
            # Bytes that occur many times are copied once, or a small pickle could make terabytes of copies.
            if id(value) not in self.copied_bytes:
                self.copied_bytes[id(value)] = bytes(value)
            return self.copied_bytes[id(value)]
        if kind is _PendingArray and value.array is not None:
            return value.array
        raise WireError("pickle: what is left is neither an array nor a plain value")


class _Constructor:
    """A function that a pickle may call.

    Args:
        make: The function. It gets the tuple of the call's arguments, and must check each of them.
    """

    def __init__(self, make: Callable[[tuple[Any, ...]], Any]) -> None:
        self.make = make


class _PendingDtype:
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


class _PendingArray:
    """An array that is made in two steps: `_reconstruct` makes it empty, and a state fills it."""

    array: Array | None = None
    """The array; None before `build`."""

    def build(self, state: Any) -> None:
        """Apply numpy's state of an array: (version, shape, dtype, whether it is in Fortran order, data)."""
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not _PendingDtype:
            raise WireError("pickle: expected the state of a plain numeric array, with its data as bytes")
        _, shape, dtype, fortran, data = state
        self.array = checked_array(data, str(dtype), shape, "F" if fortran is True else "C")


def _make_dtype(args: tuple[Any, ...]) -> _PendingDtype:
    """Make a dtype as `numpy.dtype(code, align, copy)` does."""
    if len(args) != 3:
        raise WireError(f"pickle: a dtype is made of 3 values, got {len(args)}")
    code = args[0]
    if type(code) is not str or code not in DTYPES:
        raise WireError(f"array dtype: expected one of {', '.join(DTYPES)}, got {kind_of(code)}")
    return _PendingDtype(code)


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
    dtype = str(dtype) if type(dtype) is _PendingDtype else dtype
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


def _make_pending_array(args: tuple[Any, ...]) -> _PendingArray:
    """Make an empty array as numpy's `_reconstruct(ndarray, shape, dtype)` does."""
    if len(args) != 3 or args[0] is not _NDARRAY:
        raise WireError("pickle: only plain arrays can be reconstructed, no subclass")
    return _PendingArray()


def _refuse_call(_: tuple[Any, ...]) -> None:
    raise WireError("pickle: ndarray is not called directly by any pickle of an array")


_NDARRAY = _Constructor(_refuse_call)
_CONSTRUCTORS = {
    ("reelscribe.wire", "array"): _Constructor(_make_array),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Constructor(_make_dtype),
    ("numpy.core.multiarray", "_reconstruct"): _Constructor(_make_pending_array),
    ("numpy._core.multiarray", "_reconstruct"): _Constructor(_make_pending_array),
    ("numpy.core.numeric", "_frombuffer"): _Constructor(_make_array),
    ("numpy._core.numeric", "_frombuffer"): _Constructor(_make_array),
    ("_codecs", "encode"): _Constructor(_make_bytes_from_latin1),
    ("__builtin__", "bytes"): _Constructor(_make_empty_bytes),
}
"""The constructor for each (module, name) that a pickle may refer to."""


def _push(expression: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(expression(m))


_OPCODES: dict[int, Callable[[_Machine], Any]] = {
    ord(opcode): action
    for opcode, action in {
        # Plain values
        pickle.NONE: _push(lambda m: None),
        pickle.NEWTRUE: _push(lambda m: True),
        pickle.NEWFALSE: _push(lambda m: False),
        pickle.BININT: _push(lambda m: m.number("<i")),
        pickle.BININT1: _push(lambda m: m.number("<B")),
        pickle.BININT2: _push(lambda m: m.number("<H")),
        pickle.LONG1: lambda m: m.push_integer(m.number("<B")),
        pickle.BINFLOAT: _push(lambda m: m.number(">d")),
        pickle.BINUNICODE: _push(lambda m: m.text(m.number("<I"))),
        pickle.SHORT_BINUNICODE: _push(lambda m: m.text(m.number("<B"))),
        pickle.BINUNICODE8: _push(lambda m: m.text(m.number("<Q"))),
        pickle.SHORT_BINBYTES: _push(lambda m: m.take(m.number("<B"))),
        pickle.BINBYTES: _push(lambda m: m.take(m.number("<I"))),
        pickle.BINBYTES8: _push(lambda m: m.take(m.number("<Q"))),
        pickle.BYTEARRAY8: _push(lambda m: m.take(m.number("<Q"))),
        # Containers
        pickle.EMPTY_LIST: _push(lambda m: []),
        pickle.EMPTY_DICT: _push(lambda m: {}),
        pickle.EMPTY_TUPLE: _push(lambda m: ()),
        pickle.MARK: lambda m: m.marks.append(len(m.stack)),
        pickle.APPEND: lambda m: m.extend_list([m.stack.pop()]),
        pickle.APPENDS: lambda m: m.extend_list(m.pop_to_mark()),
        pickle.SETITEM: lambda m: m.update_dict([m.stack.pop(-2), m.stack.pop()]),
        pickle.SETITEMS: lambda m: m.update_dict(m.pop_to_mark()),
        pickle.TUPLE: _push(lambda m: tuple(m.pop_to_mark())),
        pickle.TUPLE1: lambda m: m.push_tuple(1),
        pickle.TUPLE2: lambda m: m.push_tuple(2),
        pickle.TUPLE3: lambda m: m.push_tuple(3),
        # The memo, for values that occur several times
        pickle.BINPUT: lambda m: m.put(m.number("<B")),
        pickle.LONG_BINPUT: lambda m: m.put(m.number("<I")),
        pickle.MEMOIZE: lambda m: m.put(len(m.memo)),
        pickle.BINGET: lambda m: m.get(m.number("<B")),
        pickle.LONG_BINGET: lambda m: m.get(m.number("<I")),
        # Arrays
        pickle.NEXT_BUFFER: lambda m: m.push_buffer(),
        pickle.READONLY_BUFFER: lambda m: None,  # nothing writes to a view anyway
        pickle.GLOBAL: lambda m: m.push_constructor(m.line(), m.line()),
        pickle.STACK_GLOBAL: lambda m: m.push_constructor(m.stack.pop(-2), m.stack.pop()),
        pickle.REDUCE: _Machine.call,
        pickle.BUILD: _Machine.build,
        # The size of a frame (a section of the pickle), which only helps readers of files
        pickle.FRAME: lambda m: m.take(8),
    }.items()
}
