"""Which frames are so like the last captioned one that they take over its caption."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe.contract.frames import FrameArray

BLOCK = 16
"""Pixels of a side. Averages over so many forget the noise of a camera or a codec, and keep what moves or appears."""

REUSE_LEVELS = 6
"""Of 255, in any colour of any block: an edge of full contrast that moved by a third of a pixel, or a twentieth of a
block that turned from black to grey. docs/decisions.md has what it saves and what it changes.
"""


class Reuse:
    """Remembers the last frame that was captioned."""

    def __init__(self) -> None:
        self._blocks: NDArray[np.int16] | None = None

    def remember(self, frame: FrameArray) -> None:
        """Compare what follows with this (H, W, 3) frame."""
        self._blocks = _blocks(frame)

    def nearly_equal(self, frame: FrameArray) -> bool:
        """Whether this frame, of the same shape, differs from the remembered one nowhere by more than REUSE_LEVELS."""
        return self._blocks is not None and int(np.abs(_blocks(frame) - self._blocks).max()) <= REUSE_LEVELS


def _blocks(frame: FrameArray) -> NDArray[np.int16]:
    return np.asarray(Image.fromarray(frame).reduce(BLOCK), np.int16)
