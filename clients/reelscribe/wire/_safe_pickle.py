"""Read pickles that strangers send: plain values and arrays come out, and nothing else can happen.

`pickle.Unpickler` can be told which classes to find, but it still allocates what a few hostile bytes claim to hold.
This reader is its own small stack machine instead. It knows the opcodes that protocols 2 to 5 use for plain values and
for numpy arrays, and the names of `pickled_arrays`, each standing for a checked constructor of ours; no name is ever
imported. Byte strings are views on the body until an array or a `bytes` value is made of them.

Opcodes: `pickletools` of the standard library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from reelscribe.errors import WireError, brief
from reelscribe.wire._arrays import NAMES, Array, ArrayInTheMaking, DtypeInTheMaking, Name

Tree = Union[None, bool, int, float, str, bytes, Array, "list[Tree]", "tuple[Tree, ...]", "dict[Tree, Tree]"]

MAX_OPCODES = 200_000
MAX_VALUES = 100_000
MAX_DEPTH = 32
MAX_INTEGER_BYTES = 32
MAX_NAME_BYTES = 100
MAX_WIDE_TEXT_BYTES = 4 * 2**20
"""Python stores all characters of a text as wide as its widest: one emoji, and megabytes of letters take four times as
many. Beyond this, text is what protocol 2 spells bytes with, characters up to 255, which take one byte each."""
_LAST_LEAD_BYTE = 0xC3
"""In UTF-8, of a character up to 255."""


def load(data: memoryview, buffers: Sequence[memoryview] = ()) -> Tree:
    """The value in `data`, a pickle of protocol 2 to 5 whose out-of-band buffers are `buffers`.

    Arrays are views on `data` and `buffers`. Raises WireError for anything but plain values and arrays, and for
    anything over the limits above.
    """
    try:
        return _Machine(data, buffers).run()
    except (IndexError, struct.error):
        raise WireError("pickle: it ends early or takes values that it never put; send it again whole") from None
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        # Nothing is known to come here. If something does, it is this body's fault and must not be its neighbours'.
        raise WireError(f"pickle: not understood ({type(error).__name__})") from None


class _Machine:
    """Runs one pickle. An opcode is one byte; its method in `_OPCODES` does what `pickle` would."""

    def __init__(self, data: memoryview, buffers: Sequence[memoryview]) -> None:
        self.data, self.at = data, 0
        self.buffers: Iterator[memoryview] = iter(buffers)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0
        self.text_bytes = 0

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
        if len(self.stack) != 1 or self.at != len(self.data) or next(self.buffers, None) is not None:
            raise WireError("pickle: expected one value that uses all buffers, and nothing after it")
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
        data = self.take(size)
        self.text_bytes += size
        if self.text_bytes > MAX_WIDE_TEXT_BYTES and size and np.frombuffer(data, np.uint8).max() > _LAST_LEAD_BYTE:
            raise WireError(f"pickle: over {MAX_WIDE_TEXT_BYTES} bytes of text; send large data as arrays")
        try:
            return str(data, "utf-8", "surrogatepass")
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
            # Text alone has hashes that nobody can make collide: 70,000 chosen integers would take a minute.
            if type(key) is not str:
                raise WireError(f"pickle: dict keys are text here, got {brief(key)}")
            container[key] = value

    def _container(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise WireError(f"pickle: items for a {kind.__name__}, but there is none")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        values = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str or (module, name) not in NAMES:
            raise WireError(
                f"pickle: only arrays and plain values are read, but it names {brief(module)}, {brief(name)}"
            )
        self.stack.append(NAMES[module, name])

    def reduce(self) -> None:
        args, name = self.stack.pop(), self.stack.pop()
        if type(name) is not Name or type(args) is not tuple:
            raise WireError("pickle: a call of something that is no array constructor")
        try:
            made = name.make(args)
        except (ValueError, TypeError):
            raise WireError("pickle: an array constructor with the wrong arguments") from None
        # Bytes spelled as text are copies, and the same text may be referred to many times.
        self.copied += len(made) if type(made) is bytes else 0
        if self.copied > len(self.data):
            raise WireError("pickle: it makes more bytes than it holds")
        self.stack.append(made)

    def build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (ArrayInTheMaking, DtypeInTheMaking):
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
        if kind is ArrayInTheMaking and value.value is not None:
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
