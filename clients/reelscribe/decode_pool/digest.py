"""Compute the digest of a source file, by which runs recognise the file wherever it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from reelscribe.contract.source import Source
from reelscribe.errors import MediaError


def digest_file(path: str, heartbeat: Callable[[], None] = lambda: None) -> Source:
    """Read a whole file and compute its SHA-256.

    Args:
        path: Path of the file.
        heartbeat: Called after each mebibyte.

    Returns:
        The path, the size and the digest.

    Raises:
        MediaError: The file does not exist, is not a regular file, or cannot be read. The message has no path.
    """
    digest = hashlib.sha256()
    try:
        if os.path.isdir(path):  # a run replaces folders by the media files in them, unless it cannot read a folder
            os.listdir(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise MediaError("expected a regular file")
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
                heartbeat()
            return Source(path, file.tell(), digest.hexdigest())
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise MediaError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
