"""Read pickles that strangers send: plain values and arrays come out, and nothing else can happen.

`pickle.Unpickler` can be told which classes to find, but it still allocates what a few hostile bytes claim to hold.
This reader is its own small stack machine instead. It knows the opcodes that protocols 2 to 5 use for plain values and
for numpy arrays, and a fixed table of names, each standing for a checked constructor of ours; no name is ever imported.
Byte strings are views on the body until an array or a `bytes` value is made of them.

Opcodes: `pickletools` of the standard library. Array spellings: `ndarray.__reduce__` of numpy 1 and 2.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from reelscribe.errors import WireError

Array = NDArray[Any]
Tree = Union[None, bool, int, float, str, bytes, Array, "list[Tree]", "tuple[Tree, ...]", "dict[Tree, Tree]"]

MAX_OPCODES = 200_000
MAX_VALUES = 100_000
MAX_DEPTH = 32
MAX_DIMENSIONS = 32
MAX_INTEGER_BYTES = 32
MAX_NAME_BYTES = 100

ITEM_SIZES = {
    code: int(code[1:])
    for code in ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
}
"""Every dtype that is accepted, without its byte order, and the bytes of one item."""

KEY_TYPES = (str, int, float, bool, type(None))
"""What may be the key of a dict."""


def load(data: memoryview, buffers: Sequence[memoryview] = ()) -> Tree:
    """The value in `data`, a pickle of protocol 2 to 5 whose out-of-band buffers are `buffers`.

    Arrays are views on `data` and `buffers`. Raises WireError for anything but plain values and arrays, and for
    anything over the limits above.
    """
    try:
        return _Machine(data, buffers).run()
    except (IndexError, struct.error):
        raise WireError("pickle: it ends early or takes values that it never put; send it again whole") from None


def checked_array(buffer: Any, dtype: Any, shape: Any, order: Any) -> Array:
    """An array on `buffer` (bytes-like): `dtype` like "<f4", `shape` of ints, `order` "C" or "F". Raises WireError."""
    code = dtype.lstrip("<>|=") if isinstance(dtype, str) else ""
    if code not in ITEM_SIZES or len(dtype) > len(code) + 1:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {_brief(dtype)}")
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"array shape: expected up to {MAX_DIMENSIONS} lengths of 0 or more, got {_brief(shape)}")
    if order not in ("C", "F"):
        raise WireError(f'array order: expected "C" or "F", got {_brief(order)}')
    if not isinstance(buffer, (bytes, bytearray, memoryview)):
        raise WireError(f"array data: expected bytes, got {_brief(buffer)}")
    size, expected = memoryview(buffer).nbytes, math.prod(shape) * ITEM_SIZES[code]
    if size != expected:
        raise WireError(f"array data: {dtype} of shape {_brief(shape)} takes {expected} bytes, got {size}")
    try:
        return np.ndarray(shape, np.dtype(dtype), buffer if size else None, order=order)
    except (ValueError, MemoryError):  # lengths whose product overflows beside one of 0
        raise WireError(f"array shape: {_brief(shape)} is too large even for no data") from None


def _brief(value: Any) -> str:
    """A stranger's value in a message: never long."""
    if type(value) is int and value.bit_length() > 128:
        return f"<int of {value.bit_length()} bits>"
    if type(value) in (int, str, bytes, tuple):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"<{type(value).__name__}>"


class _Name:
    """A name that the pickle wants called; `make` is what we do instead."""

    def __init__(self, make: Callable[[tuple[Any, ...]], Any]) -> None:
        self.make = make


class _Dtype:
    """A dtype in the making: its code, then its byte order."""

    def __init__(self, code: str) -> None:
        self.code, self.byte_order = code, "|"

    def __str__(self) -> str:
        return self.byte_order + self.code

    def build(self, state: Any) -> None:
        """Take numpy's state, (version, byte order, no fields ...)."""
        if (
            type(state) is not tuple
            or len(state) != 8
            or state[1] not in ("<", ">", "|", "=")
            or state[2:5] != (None,) * 3
        ):
            raise WireError(f"pickle: expected the state of a plain dtype, got {_brief(state)}")
        self.byte_order = state[1]


class _Pending:
    """An array in the making: `_reconstruct` makes it empty, its state fills it."""

    value: Array | None = None

    def build(self, state: Any) -> None:
        """Take numpy's state, (version, shape, dtype, is Fortran, data)."""
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not _Dtype:
            raise WireError("pickle: expected the state of a plain numeric array, with its data as bytes")
        _, shape, dtype, fortran, data = state
        self.value = checked_array(data, str(dtype), shape, "F" if fortran is True else "C")


def _make_dtype(args: tuple[Any, ...]) -> _Dtype:
    if args[0] not in ITEM_SIZES:
        raise WireError(f"array dtype: expected one of {', '.join(ITEM_SIZES)}, got {_brief(args[0])}")
    return _Dtype(args[0])


def _make_latin1(args: tuple[Any, ...]) -> bytes:
    """How protocol 2 spells bytes."""
    text, encoding = args
    if type(text) is not str or encoding != "latin1":
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
    buffer, dtype, shape, order = args
    return checked_array(buffer, str(dtype) if type(dtype) is _Dtype else dtype, shape, order)


def _make_pending(args: tuple[Any, ...]) -> _Pending:
    if len(args) != 3 or args[0] is not _NDARRAY:
        raise WireError("pickle: only plain arrays can be reconstructed, no subclass")
    return _Pending()


def _refuse_call(_: tuple[Any, ...]) -> None:
    raise WireError("pickle: ndarray is not called directly by any pickle of an array")


_NDARRAY = _Name(_refuse_call)
_NAMES = {
    ("reelscribe.wire", "array"): _Name(_make_frombuffer),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Name(_make_dtype),
    ("numpy.core.multiarray", "_reconstruct"): _Name(_make_pending),
    ("numpy._core.multiarray", "_reconstruct"): _Name(_make_pending),
    ("numpy.core.numeric", "_frombuffer"): _Name(_make_frombuffer),
    ("numpy._core.numeric", "_frombuffer"): _Name(_make_frombuffer),
    ("_codecs", "encode"): _Name(_make_latin1),
    ("__builtin__", "bytes"): _Name(_make_empty_bytes),
}


class _Machine:
    """Runs one pickle. An opcode is one byte; its method in `_OPCODES` does what `pickle` would."""

    def __init__(self, data: memoryview, buffers: Sequence[memoryview]) -> None:
        self.data, self.at = data, 0
        self.buffers: Iterator[memoryview] = iter(buffers)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Tree:
        """The one value that is left at STOP."""
        if self.take(1)[0] != 0x80 or self.take(1)[0] not in range(2, 6):
            raise WireError("pickle: expected protocol 2 to 5; pickle with protocol=5")
        for _ in range(MAX_OPCODES):
            opcode = self.data[self.at]
            self.at += 1
            if opcode == ord("."):
                return self.finish()
            if opcode not in _OPCODES:
                raise WireError(f"pickle: opcode {opcode:#04x} is not one that plain values and arrays need")
            _OPCODES[opcode](self)
        raise WireError(f"pickle: more than {MAX_OPCODES} opcodes; send large data as arrays")

    def finish(self) -> Tree:
        """Check that only one plain value is left, and resolve what was in the making."""
        if len(self.stack) != 1 or self.at != len(self.data):
            raise WireError("pickle: expected one value and nothing after it")
        tree: Tree = _Finisher().finish(self.stack[0], 0)
        return tree

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, as a view."""
        view = self.data[self.at : self.at + size]
        if len(view) != size:
            raise WireError(f"pickle: {size} bytes are announced but {len(view)} are there; send it again whole")
        self.at += size
        return view

    def number(self, layout: str) -> Any:
        """The next number, of a `struct` layout."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, size: int) -> str:
        """The next `size` bytes as UTF-8."""
        try:
            return str(self.take(size), "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise WireError("pickle: text that is not UTF-8") from None

    def line(self) -> str:
        """The bytes up to the next line feed, as in the GLOBAL opcode."""
        head = bytes(self.data[self.at : self.at + MAX_NAME_BYTES]).split(b"\n")[0]
        self.take(len(head) + 1)
        return head.decode("latin1")

    def since_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        mark = self.marks.pop()
        values, self.stack[mark:] = self.stack[mark:], []
        return values

    def integer(self, size: int) -> None:
        if size > MAX_INTEGER_BYTES:
            raise WireError(f"pickle: an integer of {size} bytes; {MAX_INTEGER_BYTES} are allowed")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def extend(self, values: list[Any]) -> None:
        self._container(list).extend(values)

    def update(self, values: list[Any]) -> None:
        container = self._container(dict)
        if len(values) % 2:
            raise WireError("pickle: a dict with a key but no value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in KEY_TYPES:
                raise WireError(f"pickle: dict keys are text or numbers here, got {_brief(key)}")
            container[key] = value

    def _container(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise WireError(f"pickle: items for a {kind.__name__}, but there is none")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        values = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (module, name) not in _NAMES:
            raise WireError(
                f"pickle: only arrays and plain values are read, but it names {_brief(module)}, {_brief(name)}"
            )
        self.stack.append(_NAMES[module, name])

    def reduce(self) -> None:
        args, name = self.stack.pop(), self.stack.pop()
        if type(name) is not _Name or type(args) is not tuple:
            raise WireError("pickle: a call of something that is no array constructor")
        try:
            self.stack.append(name.make(args))
        except (ValueError, TypeError):
            raise WireError("pickle: an array constructor with the wrong arguments") from None

    def build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Pending, _Dtype):
            raise WireError("pickle: a state for something that is no array")
        self.stack[-1].build(state)

    def next_buffer(self) -> None:
        buffer = next(self.buffers, None)
        if buffer is None:
            raise WireError("pickle: it refers to more buffers than the body has")
        self.stack.append(buffer)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise WireError("pickle: it refers to a value that it never stored")
        self.stack.append(self.memo[index])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


class _Finisher:
    """Copies the containers of a finished value, so that no cycle, no shared giant and no half-made array is left."""

    def __init__(self) -> None:
        self.values = 0
        self.copies: dict[int, bytes] = {}

    def finish(self, value: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            raise WireError(f"pickle: over {MAX_VALUES} values or {MAX_DEPTH} levels; send large data as arrays")
        kind = type(value)
        if kind in (type(None), bool, int, float, str, bytes, np.ndarray):
            return value
        if kind is list or kind is tuple:
            return kind(self.finish(item, depth + 1) for item in value)
        if kind is dict:
            return {key: self.finish(item, depth + 1) for key, item in value.items()}
        if kind is memoryview:
            # One copy however often it is referred to, or a few bytes could ask for terabytes.
            if id(value) not in self.copies:
                self.copies[id(value)] = bytes(value)
            return self.copies[id(value)]
        if kind is _Pending and value.value is not None:
            return value.value
        raise WireError("pickle: what is left is neither an array nor a plain value")


def _on(push: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(push(m))


_OPCODES: dict[int, Callable[[_Machine], Any]] = {
    ord(code): action
    for code, action in {
        "N": _on(lambda m: None),
        "\x88": _on(lambda m: True),
        "\x89": _on(lambda m: False),
        "J": _on(lambda m: m.number("<i")),
        "K": _on(lambda m: m.number("<B")),
        "M": _on(lambda m: m.number("<H")),
        "\x8a": lambda m: m.integer(m.number("<B")),
        "G": _on(lambda m: m.number(">d")),
        "X": _on(lambda m: m.text(m.number("<I"))),
        "\x8c": _on(lambda m: m.text(m.number("<B"))),
        "\x8d": _on(lambda m: m.text(m.number("<Q"))),
        "C": _on(lambda m: m.take(m.number("<B"))),
        "B": _on(lambda m: m.take(m.number("<I"))),
        "\x8e": _on(lambda m: m.take(m.number("<Q"))),
        "\x96": _on(lambda m: m.take(m.number("<Q"))),
        "\x97": lambda m: m.next_buffer(),
        "\x98": lambda m: None,  # READONLY_BUFFER: views are never written to
        "]": _on(lambda m: []),
        "}": _on(lambda m: {}),
        ")": _on(lambda m: ()),
        "(": lambda m: m.marks.append(len(m.stack)),
        "a": lambda m: m.extend([m.stack.pop()]),
        "e": lambda m: m.extend(m.since_mark()),
        "s": lambda m: m.update([m.stack.pop(-2), m.stack.pop()]),
        "u": lambda m: m.update(m.since_mark()),
        "t": _on(lambda m: tuple(m.since_mark())),
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "q": lambda m: m.put(m.number("<B")),
        "r": lambda m: m.put(m.number("<I")),
        "\x94": lambda m: m.put(len(m.memo)),
        "h": lambda m: m.get(m.number("<B")),
        "j": lambda m: m.get(m.number("<I")),
        "c": lambda m: m.name(m.line(), m.line()),
        "\x93": lambda m: m.name(m.stack.pop(-2), m.stack.pop()),
        "R": _Machine.reduce,
        "b": _Machine.build,
        "\x95": lambda m: m.take(8),  # FRAME: a hint for readers of files
    }.items()
}
