"""Files that are seen only when they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reelscribe.errors import UsageError


@contextmanager
def whole_file(path: Path, written: list[Path]) -> Iterator[Path]:
    """Gives the name to write to, `<path>.partial`, in a folder that is there.

    If the block ends well it becomes `path`, which is added to `written`; if not, it is removed. Raises UsageError for
    what the disk refuses, also within the block.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"export: {path.parent} cannot be written to: {error.strerror or error}") from None
    written.append(path)
