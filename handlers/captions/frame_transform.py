"""Turns frames of any size into a model's pixel values on the device, as the model's own processor would."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from reelscribe.contract.frames import FrameArray, InputSize, Resample
from reelscribe.errors import StartupError

SOURCE_BYTES_AT_ONCE = 64 * 2**20
"""Larger arrays are transformed in parts, as float32 takes four times their bytes on the device."""

_RESAMPLE: dict[int, Resample] = {2: "bilinear", 3: "bicubic"}
"""By the numbers of PIL's Image.Resampling."""


class FrameTransform:
    """Resizes with antialiasing, crops, rescales to 0 to 1, and normalises.

    As PIL does, it scales in two passes and rounds to whole levels between them. Without that, levels would differ by
    up to 8 instead of 1.

    Attributes:
        input_size: The model's input size, and how frames are resampled to it.
        mean: What is subtracted from each channel (R, G, B), whose values are from 0 to 1.
        std: What each channel is then divided by.
    """

    def __init__(self, processor: Any, device: torch.device, dtype: torch.dtype) -> None:
        """Read the settings of a processor.

        Args:
            processor: The model's image processor of transformers.
            device: Where pixel values are computed.
            dtype: The dtype of the returned pixel values.

        Raises:
            StartupError: The processor does something that this class does not reproduce.
        """
        self.input_size = _input_size(processor)
        self.mean = tuple(float(m) for m in processor.image_mean)
        self.std = tuple(float(s) for s in processor.image_std)
        self._device, self._dtype = device, dtype
        # (level * factor - mean) / std is level * scale + shift, here for a whole row of R, G, B, R, G, B, ... If rows
        # had only the three channels of a pixel, a CPU would take several times as long.
        std = torch.tensor(self.std, device=device)
        self._scale = (processor.rescale_factor / std).repeat(self.input_size.width)
        self._shift = (-torch.tensor(self.mean, device=device) / std).repeat(self.input_size.width)

    def __call__(self, frames: FrameArray) -> torch.Tensor:
        """Compute the pixel values of frames; frames that already have the input size are not resized.

        Args:
            frames: (N, H, W, 3) uint8 RGB.

        Returns:
            Pixel values, (N, 3, height, width) in channels-last memory format, on the device.
        """
        step = max(1, SOURCE_BYTES_AT_ONCE // max(1, frames[0].nbytes))
        levels = concatenate([self._levels(frames[at : at + step]) for at in range(0, len(frames), step)])
        rows = torch.addcmul(self._shift, levels.flatten(2).float(), self._scale)
        return rows.view(levels.shape).permute(0, 3, 1, 2).to(self._dtype)

    def _levels(self, frames: FrameArray) -> torch.Tensor:
        """The levels of frames in the input size, (N, height, width, 3) uint8, on the device."""
        # torch warns of read-only arrays. Frames of requests are views of a writable body, so they are not copied.
        source = torch.from_numpy(frames if frames.flags.writeable else frames.copy())
        levels = source.to(self._device, non_blocking=True)
        if levels.shape[1:3] == (self.input_size.height, self.input_size.width):
            return levels
        resized = self._resize_and_crop(levels.float().permute(0, 3, 1, 2))
        return resized.permute(0, 2, 3, 1).to(torch.uint8, memory_format=torch.contiguous_format)

    def _resize_and_crop(self, levels: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, 3, height, width), values from 0 to 255."""
        size, (height, width) = self.input_size, levels.shape[-2:]
        scaled_width, scaled_height = size.scaled_size(width, height)
        # Horizontally, then vertically, and rounded to whole levels after each, which is what PIL does for most sizes.
        levels = self._resize(levels, height, scaled_width)
        levels = self._resize(levels, scaled_height, scaled_width)
        left, top = size.crop_offset(scaled_width, scaled_height)
        return levels[..., top : top + size.height, left : left + size.width]

    def _resize(self, levels: torch.Tensor, height: int, width: int) -> torch.Tensor:
        mode = self.input_size.resample
        resized = F.interpolate(levels, (height, width), mode=mode, antialias=True, align_corners=False)
        return resized.round_().clamp_(0, 255)


def concatenate(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors along the first axis; a single tensor is returned without a copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _input_size(processor: Any) -> InputSize:
    resample = _RESAMPLE.get(int(processor.resample))
    if resample is None:
        raise StartupError(
            f"image processor {type(processor).__name__}: expected bilinear or bicubic resampling, got PIL's number"
            f" {processor.resample}; use a BLIP-2, BLIP or GIT model"
        )
    size, crop = processor.size, processor.crop_size
    if processor.do_center_crop and crop and size.shortest_edge:
        return InputSize(crop.width, crop.height, resample, size.shortest_edge)
    if not processor.do_center_crop and size.width and size.height:
        return InputSize(size.width, size.height, resample)
    raise StartupError(
        f"image processor {type(processor).__name__}: expected one fixed input size, got size {size} and crop {crop};"
        " models of dynamic resolution are not supported yet, so use a BLIP-2, BLIP or GIT model"
    )
