"""The messages of every command: errors as one line with an exit status, and those of reelscribe's loggers."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from reelscribe.errors import (
    MEMORY_USED_UP,
    PROCESSES_USED_UP,
    ReelscribeError,
    UsageError,
    install_command,
    printable,
    used_up,
)
from reelscribe.reporting.formatting import json_event

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_SOURCES_FAILED = 3
EXIT_INTERRUPTED = 130


@contextmanager
def errors_as_one_line(*, json_log: bool = False) -> Iterator[None]:
    """Turn each error that a command expects into one line and an exit status.

    A command imports the packages below within this block, so that `reelscribe --help` is fast and a library that is
    not installed is reported like any other error. SIGTERM, which service managers send, counts as Ctrl-C.

    Args:
        json_log: Whether the line is an event of --json-log.

    Raises:
        typer.Exit: The command failed or was interrupted; the reason has been printed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except ReelscribeError as error:
        status = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        raise exit_with(str(error), status, json_log=json_log) from None
    except ModuleNotFoundError as error:
        text = (
            f"the package {error.name} is missing; to caption and transcribe, run {install_command('client')}; to build"
            f" archives and serve them, run {install_command('server')}"
        )
        raise exit_with(text, EXIT_FAILED, json_log=json_log) from None
    except PermissionError as error:
        text = f"{error.filename or error}: expected a file or folder that you may use, got: {error.strerror or error}"
        raise exit_with(text, EXIT_FAILED, json_log=json_log) from None
    except (MemoryError, OSError, RuntimeError) as error:
        advice = used_up(error)
        if isinstance(error, (MemoryError, BlockingIOError)):
            advice = MEMORY_USED_UP if isinstance(error, MemoryError) else PROCESSES_USED_UP
        if advice is None:
            raise
        text = f"{advice}; then run the same command again, as what was saved is kept"
        raise exit_with(text, EXIT_FAILED, json_log=json_log) from None
    except KeyboardInterrupt:
        text = "interrupted; run the same command again to continue"
        raise exit_with(text, EXIT_INTERRUPTED, json_log=json_log) from None


def exit_with(text: str, status: int, *, json_log: bool) -> typer.Exit:
    """Report an error on standard error, and return what ends the command.

    Args:
        text: What is wrong, and what to do.
        status: Exit status of the command.
        json_log: Whether to report it as an event of --json-log.
    """
    if json_log:
        typer.echo(json_event("error", text=text, exit_status=status), err=True)
    else:
        typer.echo(f"reelscribe: {printable(text)}", err=True)
    return typer.Exit(status)


def warn(text: str, *, json_log: bool) -> None:
    """Report on standard error what does not end the command.

    Args:
        text: What it is, and what to do.
        json_log: Whether to report it as an event of --json-log.
    """
    text = f"WARNING: {text}"
    typer.echo(json_event("message", text=text) if json_log else printable(text), err=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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
