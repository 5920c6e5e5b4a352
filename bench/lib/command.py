"""The start and the end that all commands of bench/ share: exit status, signals, and the option --json."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM."""


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with the status that it returns.

    SIGTERM interrupts it as Ctrl-C does, so that servers and processes that it started are stopped first.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def killed_at_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill `process` if it still runs when the block ends, and wait for it."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def command_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the command, as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json FILE`, for `report.publish`. A folder that does not exist is a usage error."""
    parser.add_argument("--json", type=_file_in_folder, metavar="FILE", help="also write the tables to this file")


def _file_in_folder(word: str) -> Path:
    path = Path(word)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {word}; make {path.parent}")
    return path
