"""Keeps memory that a worker frees in its heap, so that the next call reuses it.

By default, glibc returns large blocks to the kernel and later gets them back filled with zeros. For arrays of pixels,
that takes a third of the time that a small model needs on a CPU (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

KEPT_BYTES = 2**30
"""Freed blocks, and free memory at the end of the heap, return to the kernel only above this many bytes."""

DOCUMENTED_BYTES = 32 << 20
"""The largest M_MMAP_THRESHOLD, in bytes, that mallopt(3) promises to accept; glibc 2.36 accepts more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Values of M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h."""


def keep_freed_memory() -> None:
    """Raise glibc's limits for this process. Does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    # Where glibc rejects the last setting, the one before it remains.
    settings = (_TRIM_THRESHOLD, KEPT_BYTES), (_MMAP_THRESHOLD, DOCUMENTED_BYTES), (_MMAP_THRESHOLD, KEPT_BYTES)
    accepted = [mallopt(name, value) for name, value in settings]
    if not all(accepted):
        logger.info("mallopt rejected a setting: freed memory may return to the kernel, which costs time")
