"""The file that a decode process keeps open between two commands."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, TypeVar

OpenFile = TypeVar("OpenFile")


class KeptFile(Generic[OpenFile]):
    """Holds at most one open file, by the command that it was opened for."""

    def __init__(self) -> None:
        """Begin without a file."""
        self._stack = ExitStack()
        self._key: Any = None
        self._file: OpenFile | None = None

    @property
    def is_open(self) -> bool:
        """Whether a file is open."""
        return self._file is not None

    def get(self, key: Any) -> OpenFile | None:
        """Return the file that was opened for this key; None if it is not open."""
        return self._file if key == self._key else None

    def open(self, key: Any, file: AbstractContextManager[OpenFile]) -> OpenFile:
        """Enter a file and keep it, after the one that is open has been closed.

        Args:
            key: What `get` is called with to get it again.
            file: The file, as a context manager that closes it.
        """
        self.close()
        self._file, self._key = self._stack.enter_context(file), key
        return self._file

    def close(self) -> None:
        """Close the file that is open, if there is one."""
        self._stack.close()
        self._file = self._key = None
