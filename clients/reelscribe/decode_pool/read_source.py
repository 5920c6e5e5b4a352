"""Keep account of a source that one process reads, or several: what is left of it, and which attempt it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic

from reelscribe.contract.source import Span
from reelscribe.decode_pool.portions.spans import Portion, after, before_entry_point, join
from reelscribe.decode_pool.process import Batch, DecodeProcess, Opened, ReadCommand
from reelscribe.decode_pool.slots import DecodedBatch
from reelscribe.errors import DecoderDied, DecoderStalled

ATTEMPTS = 2
"""Number of times that a source is tried; a process may die or hang for reasons other than the source."""


class ReadSource(Generic[Opened, Batch]):
    """A source that is being read."""

    def __init__(self, command: ReadCommand[Opened, Batch], spans: Sequence[Span], *, divide: bool) -> None:
        """Begin before the source is opened.

        Args:
            command: What to read, and how.
            spans: The spans to read, in ascending order.
            divide: Whether to divide the source into portions, if it has entry points.
        """
        self._command = command
        self._failures = 0
        self._left, self._divide = list(spans), divide
        self._opened: Opened | None = None
        self._entry_points: Sequence[int] = ()
        self.failure: DecoderDied | DecoderStalled | None = None
        """Why the source is given up: every attempt ended with the death of its process, or with one that hung."""

    @property
    def is_divided(self) -> bool:
        """Whether what is left of it has portions, so that several processes can read it."""
        return bool(self._entry_points)

    @property
    def is_left(self) -> bool:
        """Whether there is a portion that nobody reads, and that may still be tried."""
        return not self.failure and (self._opened is None or bool(self._left))

    async def read_portion(self, process: DecodeProcess) -> AsyncGenerator[Opened | Batch, None]:
        """Read the next portion. What a process leaves of it when it dies or hangs is read by another one.

        Yields:
            Facts about the source, unless an earlier process has reported them and read another portion, and the
            batches of the portion in order. Each batch must be released.

        Raises:
            MediaError: The source cannot be read; DecoderDied or DecoderStalled if the process died or hung. Then
                `failure` says whether there is another attempt.
        """
        wanted, self._left = before_entry_point(self._left, self._entry_points if self.is_divided else ())
        attempt = self._failures
        try:
            items = process.read(self._portion(), wanted)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, DecodedBatch):
                        wanted = after(wanted, item.stop, item.anchor)
                    elif self._opened is None:
                        wanted = self._open(item, wanted)
                    elif self._entry_points:
                        continue
                    yield item
        except (DecoderDied, DecoderStalled) as error:
            self._left = join(self._left, wanted)
            if attempt == self._failures:  # of processes that end together, as when a disk does not answer, one counts
                self._failures += 1
            if self._failures == ATTEMPTS and not self.failure:
                self.failure = type(error)(f"{error}; like {self._failures - 1} before it")
            raise

    def _portion(self) -> ReadCommand[Opened, Batch]:
        portion: Portion = "later" if self.is_divided else "all" if self._opened or not self._divide else "first"
        return self._command.for_portion(portion, self._opened)

    def _open(self, opened: Opened, wanted: Sequence[Span]) -> list[Span]:
        """Take note of the entry points, and return what the process that has found them reads."""
        self._opened = opened
        entry_points: Sequence[int] = getattr(opened, "entry_points", ())
        wanted, rest = before_entry_point(wanted, entry_points)
        if rest:
            self._left, self._entry_points = join(self._left, rest), entry_points
        return wanted
