"""Reports the errors and interrupts of every command as one line on standard error and an exit status."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from reelscribe.errors import ReelscribeError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_SOURCES_FAILED = 3
EXIT_INTERRUPTED = 130


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Turn each error that a command expects into one line and an exit status.

    A command imports the packages below within this block, so that `reelscribe --help` is fast and a library that is
    not installed is reported like any other error. SIGTERM, which service managers send, counts as Ctrl-C.

    Raises:
        typer.Exit: The command failed or was interrupted; the reason has been printed.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except ReelscribeError as error:
        typer.echo(f"reelscribe: {error}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED) from None
    except ModuleNotFoundError as error:
        typer.echo(
            f"reelscribe: the package {error.name} is missing; in the project's folder, run pip install '.[client]' to"
            " caption and transcribe, or '.[server]' to build archives and serve them",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        typer.echo("reelscribe: interrupted; run the same command again to continue", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
