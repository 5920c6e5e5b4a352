"""Turns frames into the patches that the vision encoders of the Qwen-VL families take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import FrameArray


@dataclass(frozen=True)
class Patching:
    """How a model cuts frames into patches, and normalises their values."""

    patch: int
    """Height and width of a patch, in pixels."""
    frames: int
    """Frames that a patch spans."""
    merge: int
    """Patches in each row and column of a group; the language model takes one token for each group."""
    mean: tuple[float, ...]
    """The mean of each channel (R, G, B), whose values are from 0 to 1; it is subtracted."""
    std: tuple[float, ...]
    """The standard deviation of each channel, which is then divided by it."""

    @classmethod
    def from_json(
        cls, processor: Mapping[str, Any], *, patch: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Self:
        """Read the settings of a processor.

        Args:
            processor: The settings of a video processor or an image processor.
            patch: Patch size, where it says none.
            mean: Mean of the channels, where it says none.
            std: Standard deviation of the channels, where it says none.
        """
        return cls(
            processor.get("patch_size", patch),
            processor.get("temporal_patch_size", 2),
            processor.get("merge_size", 2),
            tuple(processor.get("image_mean", mean)),
            tuple(processor.get("image_std", std)),
        )

    def still_budget(self, processor: Mapping[str, Any]) -> ClipBudget:
        """Return the size at which stills are taken, from the settings of an image processor."""
        size, factor = processor.get("size") or {}, self.patch * self.merge
        return ClipBudget(
            factor=factor,
            min_pixels=processor.get("min_pixels") or size.get("shortest_edge", 56 * 56),
            max_pixels=processor.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280),
        )

    def grid(self, count: int, width: int, height: int) -> tuple[int, int, int]:
        """Return how many patches there are in time, in each column and in each row.

        Args:
            count: Number of frames.
            width: Width of the frames, a multiple of `patch * merge` pixels.
            height: Height of the frames, another one.
        """
        return -(-count // self.frames), height // self.patch, width // self.patch

    def __call__(self, frames: FrameArray, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Cut frames into patches. The last frame is repeated until the frames fill the patches.

        Args:
            frames: (N, H, W, 3) uint8 RGB; H and W are multiples of `patch * merge`.
            device: Where to compute.
            dtype: The dtype of the result.

        Returns:
            (P, 3 * frames * patch * patch), normalised. The patches of a group of `merge` x `merge` follow each other,
            then come the groups of a row, the rows, and the times.
        """
        # torch warns of read-only arrays. Frames of requests are views of a writable body, so they are not copied.
        source = torch.from_numpy(frames if frames.flags.writeable else frames.copy())
        levels = source.to(device, non_blocking=True)
        if missing := -len(levels) % self.frames:
            levels = torch.cat([levels, levels[-1:].expand(missing, -1, -1, -1)])
        t, rows, columns = self.grid(len(levels), levels.shape[2], levels.shape[1])
        # Frames in Fortran's order, which pickle and .npy keep, have no such view and are copied.
        groups = levels.reshape(
            t,
            self.frames,
            rows // self.merge,
            self.merge,
            self.patch,
            columns // self.merge,
            self.merge,
            self.patch,
            3,
        ).permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
        values = groups.reshape(t * rows * columns, 3, -1).float()
        # (level / 255 - mean) / std, as one multiplication and one addition
        std = torch.tensor(self.std, device=device)
        scale, shift = 1 / (255 * std), -torch.tensor(self.mean, device=device) / std
        return torch.addcmul(shift[:, None], values, scale[:, None]).flatten(1).to(dtype)
