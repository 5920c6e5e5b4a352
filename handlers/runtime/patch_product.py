"""The first layer of an image encoder as a matrix product of the centred levels of frames, from -128 to 127.

transformers computes pixel values, and then convolves them with a kernel as large as its step. Both are linear, so the
weights and the bias can contain the normalisation, and what is multiplied is each level - 128.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reelscribe.errors import StartupError

TOLERANCE = 0.01
"""Largest accepted mean difference between what this product and what the model's own layer makes of the same frame,
in standard deviations of the latter. The demo captioner has 0.0015 in bfloat16; levels that are all off by one of 255
would be 0.013."""

_CENTRE = 128
"""What is subtracted from levels. In half precision, values around 0 are multiplied with half the error of others."""


def centred(levels: Tensor) -> Tensor:
    """Return level - 128 of uint8 levels, as int8."""
    # With its highest bit flipped, the byte of a level is that of level - 128 as a signed number.
    return levels.bitwise_xor(_CENTRE).view(torch.int8)


def uncentred(values: Tensor) -> Tensor:
    """Return the uint8 levels of which `centred` has made int8 values."""
    return values.view(torch.uint8).bitwise_xor(_CENTRE)


class PatchProduct(nn.Module):
    """Does to centred levels what normalisation and a convolution do to levels.

    Attributes:
        weight: (values of a patch, D).
        bias: (D,).
    """

    def __init__(self, convolution: Any, scale: Tensor, shift: Tensor) -> None:
        """Merge the normalisation into the weights.

        Args:
            convolution: An `nn.Conv2d` or `nn.Conv3d` on its device, whose kernel is as large as its step.
            scale: By channel, (3,) float32: with `shift`, a pixel value is level * scale + shift.
            shift: By channel, (3,) float32.
        """
        super().__init__()
        kernel = convolution.weight.detach().float().flatten(2)  # (D, 3, positions)
        weight = (kernel * scale[:, None]).permute(2, 1, 0).flatten(0, 1)
        bias = (kernel.sum(2) * (shift + _CENTRE * scale)).sum(1)
        if convolution.bias is not None:
            bias += convolution.bias.detach()
        self.weight = nn.Buffer(weight.to(convolution.weight), persistent=False)
        self.bias = nn.Buffer(bias.to(convolution.weight), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Multiply patches.

        Args:
            values: (N, values of a patch) centred levels, of any dtype. The three channels of a pixel follow each
                other.

        Returns:
            (N, D).
        """
        return torch.addmm(self.bias, values.to(self.weight.dtype), self.weight)

    def check(self, model: str, ours: Tensor, theirs: Tensor) -> None:
        """Compare what this product and what the model's own layer makes of the same frame.

        Args:
            model: The name of the model, for the message.
            ours: The results of this product, of any shape.
            theirs: The results of the model's own processor and convolution, in the same order.

        Raises:
            StartupError: They differ; texts would be silently wrong.
        """
        difference = ((ours.float() - theirs.float()).abs().mean() / theirs.float().std()).item()
        if not difference <= TOLERANCE:
            raise StartupError(
                f"model {model}: expected that its first layer makes of levels what it makes of the pixel values of the"
                f" model's own processor, to {TOLERANCE} of their standard deviation, got a difference of"
                f" {difference:.3f}; this handler does not support the model's preprocessing, so use another model"
            )
