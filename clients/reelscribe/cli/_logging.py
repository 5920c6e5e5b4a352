"""Shows the messages of reelscribe's loggers to the user of a command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _ShowMessages(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        warning = "WARNING: " if record.levelno >= logging.WARNING else ""
        self._show(warning + record.getMessage())


@contextmanager
def log_messages(show: Callable[[str], None]) -> Iterator[None]:
    """Show each message of reelscribe's loggers, of level INFO and above, while the block runs.

    Args:
        show: Called with the text of each message. Warnings and errors begin with "WARNING: ".
    """
    logger = logging.getLogger("reelscribe")
    handler, level = _ShowMessages(show), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
