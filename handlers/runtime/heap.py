"""Memory that a worker has freed stays with it, for its next call.

glibc gives what is large back to the kernel, and gets it again filled with zeros: for arrays of pixels that is a third
of the time that a small model takes on a CPU (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

KEPT_BYTES = 2**30
"""What is freed at the heap's end goes back only if it is more than this, and so does each single piece."""
DOCUMENTED_BYTES = 32 << 20
"""The largest limit for a single piece that mallopt(3) promises; glibc 2.36 takes more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As malloc.h has them."""


def keep_freed_memory() -> None:
    """For this process; does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    wanted = (_TRIM_THRESHOLD, KEPT_BYTES), (_MMAP_THRESHOLD, DOCUMENTED_BYTES), (_MMAP_THRESHOLD, KEPT_BYTES)
    taken = [mallopt(name, value) for name, value in wanted]
    if not all(taken):
        logger.info("mallopt did not take all settings: freed memory may go back to the kernel, which takes time")
