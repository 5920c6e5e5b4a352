"""The beginning of the `reelscribe` command, which is also `python -m reelscribe.cli`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Execute the command, with paths and texts as UTF-8 in every locale, as Python does from version 3.15 on.

    Paths are bytes. Where the locale has another encoding, they would be other texts in records, and TorchServe would
    look for other files than this process.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.environ |= {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}  # also for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606 - no shell is needed
    from reelscribe.cli import app

    app()


if __name__ == "__main__":
    main()
