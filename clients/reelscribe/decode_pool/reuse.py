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
turns from black to grey. docs/decisions/two-limits-for-reuse.md says how many captions this saves and how captions
change."""

AREA_BLOCKS = 3
"""Side of the areas whose average colours tell whether the whole frame changes slowly, in blocks. Noise that is left in
the average over a block disappears in that over an area."""

REUSE_DRIFT_LEVELS = 0.3
"""Largest difference, in levels of 255, between nearly equal frames on average over all areas and colour channels. A
cross-fade exceeds it within a few frames, long before any block differs by REUSE_LEVELS."""


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
            Whether all blocks differ by at most REUSE_LEVELS, and all areas by at most REUSE_DRIFT_LEVELS on average;
            False if no frame is remembered.
        """
        if self._blocks is None:
            return False
        difference = _blocks(frame) - self._blocks
        return int(np.abs(difference).max()) <= REUSE_LEVELS and _drift(difference) <= REUSE_DRIFT_LEVELS


def _blocks(frame: FrameArray) -> NDArray[np.int16]:
    """Return the average colour of each block."""
    return np.asarray(Image.fromarray(frame).reduce(BLOCK), np.int16)


def _drift(difference: NDArray[np.int16]) -> float:
    """Return how much the areas differ on average, of the difference of all blocks, (rows, columns, 3)."""
    totals, blocks = difference.astype(np.float64), np.ones(difference.shape[:2])
    for axis, length in enumerate(difference.shape[:2]):
        edges = np.arange(0, length, AREA_BLOCKS)
        totals, blocks = np.add.reduceat(totals, edges, axis), np.add.reduceat(blocks, edges, axis)
    return float(np.abs(totals / blocks[..., None]).mean())
