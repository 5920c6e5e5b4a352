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
        # (x * factor - mean) / std in one multiplication and one addition.
        std = torch.tensor(self.std, device=device)
        self._scale = (processor.rescale_factor / std).view(1, 3, 1, 1)
        self._shift = (-torch.tensor(self.mean, device=device) / std).view(1, 3, 1, 1)

    def __call__(self, frames: FrameArray) -> torch.Tensor:
        """(N, H, W, 3) uint8 RGB -> (N, 3, height, width) on the device; frames of the input's size are not resized."""
        step = max(1, SOURCE_BYTES_AT_ONCE // max(1, frames[0].nbytes))
        return torch.cat([self._transform(frames[at : at + step]) for at in range(0, len(frames), step)])

    def _transform(self, frames: FrameArray) -> torch.Tensor:
        # torch warns of read-only memory. Received bodies are writable, so they are not copied.
        source = torch.from_numpy(frames if frames.flags.writeable else frames.copy())
        pixels = source.to(self._device, non_blocking=True).permute(0, 3, 1, 2).float()
        frame, (height, width) = self.frame, pixels.shape[-2:]
        if (width, height) != (frame.width, frame.height):
            scaled_width, scaled_height = frame.scaled(width, height)
            # As PIL does it for most frames: across, then down, with whole levels of 0 to 255 after each.
            pixels = self._resize(pixels, height, scaled_width)
            pixels = self._resize(pixels, scaled_height, scaled_width)
            left, top = frame.cut(scaled_width, scaled_height)
            pixels = pixels[..., top : top + frame.height, left : left + frame.width]
        return torch.addcmul(self._shift, pixels, self._scale).to(self._dtype)

    def _resize(self, pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
        mode = self.frame.resample
        resized = F.interpolate(pixels, (height, width), mode=mode, antialias=True, align_corners=False)
        return resized.round_().clamp_(0, 255)


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
