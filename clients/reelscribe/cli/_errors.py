"""What every command does with errors and interrupts: one line, and an exit status."""

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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Around each command, its imports included: they wait until needed, and may be missing."""
    # A service manager's SIGTERM is the same wish as Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except ReelscribeError as error:
        typer.echo(f"reelscribe: {error}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED) from None
    except ModuleNotFoundError as error:
        typer.echo(
            f"reelscribe: the package {error.name} is missing; in the project's folder, pip install '.[client]' to"
            " caption or '.[server]' to build archives and serve them",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        typer.echo("reelscribe: interrupted; the same command goes on", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
