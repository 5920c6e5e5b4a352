"""Frames of any size become a model's pixel values on the device, as the model's own processor would make them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from reelscribe.errors import StartupError
from reelscribe.media import FrameArray, FrameSize, Resample

SOURCE_BYTES_AT_ONCE = 64 * 2**20
"""Larger arrays are resized in parts: as float32 they take four times their size on the device."""

_RESAMPLE: dict[int, Resample] = {2: "bilinear", 3: "bicubic"}
"""PIL's numbers."""


class FrameTransform:
    """Resize (bicubic or bilinear with antialias), cut, scale to 0..1 and normalise."""

    def __init__(self, processor: Any, device: torch.device, dtype: torch.dtype) -> None:
        """`processor` is an image processor of transformers. Raises StartupError for what cannot be reproduced here."""
        self.frame = _frame_size(processor)
        self.mean = tuple(float(m) for m in processor.image_mean)
        self.std = tuple(float(s) for s in processor.image_std)
        self._device, self._dtype = device, dtype
        # (x * factor - mean) / std in one multiplication and one addition, of whole rows: of three channels at a time
        # they would take a CPU several times as long.
        std = torch.tensor(self.std, device=device)
        self._scale = (processor.rescale_factor / std).repeat(self.frame.width)
        self._shift = (-torch.tensor(self.mean, device=device) / std).repeat(self.frame.width)

    def __call__(self, frames: FrameArray) -> torch.Tensor:
        """(N, H, W, 3) uint8 RGB -> (N, 3, height, width) on the device, channels last in memory.

        Frames of the input's size are not resized.
        """
        step = max(1, SOURCE_BYTES_AT_ONCE // max(1, frames[0].nbytes))
        return joined([self._transform(frames[at : at + step]) for at in range(0, len(frames), step)])

    def _transform(self, frames: FrameArray) -> torch.Tensor:
        # torch warns of read-only memory. Received bodies are writable, so they are not copied.
        source = torch.from_numpy(frames if frames.flags.writeable else frames.copy())
        levels = source.to(self._device, non_blocking=True).float()
        if levels.shape[1:3] != (self.frame.height, self.frame.width):
            levels = self._fitted(levels.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        rows = torch.addcmul(self._shift, levels.flatten(2), self._scale)
        return rows.view(levels.shape).permute(0, 3, 1, 2).to(self._dtype)

    def _fitted(self, levels: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, 3, height, width)."""
        frame, (height, width) = self.frame, levels.shape[-2:]
        scaled_width, scaled_height = frame.scaled(width, height)
        # As PIL does it for most frames: across, then down, with whole levels of 0 to 255 after each.
        levels = self._resize(levels, height, scaled_width)
        levels = self._resize(levels, scaled_height, scaled_width)
        left, top = frame.cut(scaled_width, scaled_height)
        return levels[..., top : top + frame.height, left : left + frame.width]

    def _resize(self, levels: torch.Tensor, height: int, width: int) -> torch.Tensor:
        mode = self.frame.resample
        resized = F.interpolate(levels, (height, width), mode=mode, antialias=True, align_corners=False)
        return resized.round_().clamp_(0, 255)


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """One after the other, along the first axis; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _frame_size(processor: Any) -> FrameSize:
    resample = _RESAMPLE.get(int(processor.resample))
    if resample is None:
        raise StartupError(f"image processor: expected bilinear or bicubic resampling, got PIL's {processor.resample}")
    size, crop = processor.size, processor.crop_size
    if processor.do_center_crop and crop and size.shortest_edge:
        return FrameSize(crop.width, crop.height, resample, size.shortest_edge)
    if not processor.do_center_crop and size.width and size.height:
        return FrameSize(size.width, size.height, resample)
    raise StartupError(
        f"image processor {type(processor).__name__}: expected one fixed input size, got size {size} and crop {crop};"
        " models of dynamic resolution are not served yet"
    )
