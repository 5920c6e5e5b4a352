"""Find frames that reuse the caption of the last captioned frame because they are nearly equal to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe.contract.frames import FrameArray

BLOCK = 16
"""Side of the blocks whose average colours are compared, in pixels. The average over a block hides most of the noise of
a camera or codec, and still changes with everything that moves or appears."""

REUSE_LEVELS = 6
"""Largest difference, in levels of 255, in any colour channel of any block between nearly equal frames. It is the
difference that an edge of full contrast makes when it moves by a third of a pixel, or a twentieth of a block when it
turns from black to grey. docs/decisions.md says how many captions this saves and how captions change."""


class ReuseDetector:
    """Remembers the last captioned frame and compares later frames with it."""

    def __init__(self) -> None:
        self._blocks: NDArray[np.int16] | None = None

    def remember(self, frame: FrameArray) -> None:
        """Remember a frame, (H, W, 3) uint8 RGB, instead of the one before."""
        self._blocks = _blocks(frame)

    def nearly_equal(self, frame: FrameArray) -> bool:
        """Compare a frame with the remembered one.

        Args:
            frame: (H, W, 3) uint8 RGB, of the same shape as the remembered frame.

        Returns:
            Whether all blocks differ by at most REUSE_LEVELS; False if no frame is remembered.
        """
        return self._blocks is not None and int(np.abs(_blocks(frame) - self._blocks).max()) <= REUSE_LEVELS


def _blocks(frame: FrameArray) -> NDArray[np.int16]:
    """Return the average colour of each block."""
    return np.asarray(Image.fromarray(frame).reduce(BLOCK), np.int16)
