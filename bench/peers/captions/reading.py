"""Reading frames as most people do: with decord, at full size."""

from __future__ import annotations

from collections.abc import Iterator

import decord
import numpy as np
from numpy.typing import NDArray


def frames_of(path: str) -> Iterator[NDArray[np.uint8]]:
    """Yield each frame, (H, W, 3)."""
    reader = decord.VideoReader(path)
    for k in range(len(reader)):
        yield reader[k].asnumpy()


def prebatches_of(path: str, frames: int) -> Iterator[NDArray[np.uint8]]:
    """Yield `frames` frames at a time, (N, H, W, 3); the last time there may be fewer."""
    reader = decord.VideoReader(path)
    for first in range(0, len(reader), frames):
        yield reader.get_batch(range(first, min(first + frames, len(reader)))).asnumpy()
