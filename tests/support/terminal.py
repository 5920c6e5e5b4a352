"""A terminal that wraps its lines anew when it is resized, as most of them do today, and runs a program."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from types import TracebackType

from support.patience import PATIENCE

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Terminal:
    """A program in a pseudo-terminal. Lines are kept whole; a row is a stretch of a line as wide as the terminal.

    It understands what rich writes: text, line feeds, carriage returns, erased rows and steps up.
    """

    def __init__(self, program: str, width: int) -> None:
        """Start a Python program, given as its text, in a terminal of this width."""
        self._width = width
        self._lines = [""]
        self._row, self._column = 0, 0
        self._master, slave = pty.openpty()
        self._set_size(width)
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._master)

    @property
    def screen(self) -> list[str]:
        """The rows that are shown, without the spaces at their ends."""
        return [row.rstrip() for row in self._rows()]

    def wait_for(self, text: str) -> None:
        """Read what the program writes, until it has written this text."""
        seen = ""
        while text not in seen:
            assert select.select([self._master], [], [], PATIENCE)[0], f"{text!r} did not come, but {seen!r}"
            seen += os.read(self._master, 2**16).decode()
        self._write(seen)

    def go_on(self) -> None:
        """Send the program a line."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def resize(self, width: int) -> None:
        """Make the terminal wider or narrower: lines wrap anew, and the cursor stays at its character."""
        line, offset = self._position()
        self._width = width
        rows = min(offset // width, self._height(self._lines[line]) - 1)  # behind a full row, it stays in that row
        self._row = sum(self._height(each) for each in self._lines[:line]) + rows
        self._column = min(offset - rows * width, width - 1)
        self._set_size(width)

    def _set_size(self, width: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    def _height(self, line: str) -> int:
        return max(1, -(-len(line) // self._width))

    def _rows(self) -> list[str]:
        width = self._width
        return [line[k * width : (k + 1) * width] for line in self._lines for k in range(self._height(line))]

    def _position(self) -> tuple[int, int]:
        """Return the line of the cursor, and its offset in it."""
        row = self._row
        for number, line in enumerate(self._lines):
            if row < self._height(line):
                return number, row * self._width + self._column
            row -= self._height(line)
        raise AssertionError("the cursor is below the last line")

    def _write(self, text: str) -> None:
        for arguments, command, carriage_return, line_feed, words in _TOKEN.findall(text):
            if words:
                self._put(words)
            elif carriage_return:
                self._column = 0
            elif line_feed:
                self._line_feed()
            elif command == "A":
                self._row -= int(arguments or 1)
            elif command == "K":
                self._erase_row()
            else:
                assert command in "mhl", f"unknown: {arguments}{command}"

    def _put(self, words: str) -> None:
        line, offset = self._position()
        old = self._lines[line].ljust(offset)
        self._lines[line] = old[:offset] + words + old[offset + len(words) :]
        end = offset + len(words)
        self._row += (end - 1) // self._width - offset // self._width
        self._column = min(end - (end - 1) // self._width * self._width, self._width - 1)

    def _line_feed(self) -> None:
        line, _ = self._position()
        if line + 1 == len(self._lines):
            self._lines.append("")
        self._row = sum(self._height(each) for each in self._lines[: line + 1])

    def _erase_row(self) -> None:
        """Empty a row; it becomes a line of its own."""
        rows, row = self._rows(), self._row
        line, offset = self._position()
        first = row - offset // self._width
        count = self._height(self._lines[line])
        before, after = "".join(rows[first:row]), "".join(rows[row + 1 : first + count])
        self._lines[line : line + 1] = [*([before] if row > first else []), "", *([after] if after else [])]
