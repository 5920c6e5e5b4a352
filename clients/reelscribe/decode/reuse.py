"""Find frames that are so similar to the last captioned frame that they reuse its caption."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelscribe.contract.frames import FrameArray

BLOCK = 16
"""Side of the blocks whose average colours are compared, in pixels. An average over a block has little of the noise of
a camera or a codec and still shows what moves or appears."""

REUSE_LEVELS = 6
"""Largest difference, of 255, in any colour channel of any block between nearly equal frames. An edge of full contrast
that moves by a third of a pixel makes this difference, and so does a twentieth of a block that turns from black to
grey. docs/decisions.md says how many frames it saves and how captions change."""


class Reuse:
    """Remember the last captioned frame and compare later frames with it."""

    def __init__(self) -> None:
        self._blocks: NDArray[np.int16] | None = None

    def remember(self, frame: FrameArray) -> None:
        """Compare later frames with this one, (H, W, 3) uint8."""
        self._blocks = _blocks(frame)

    def nearly_equal(self, frame: FrameArray) -> bool:
        """Return whether a frame differs from the remembered one by at most REUSE_LEVELS everywhere.

        Args:
            frame: A frame of the same shape as the remembered one.

        Returns:
            False if no frame is remembered.
        """
        return self._blocks is not None and int(np.abs(_blocks(frame) - self._blocks).max()) <= REUSE_LEVELS


def _blocks(frame: FrameArray) -> NDArray[np.int16]:
    """Return the average colour of each block."""
    return np.asarray(Image.fromarray(frame).reduce(BLOCK), np.int16)
