"""The first layer of BLIP-2's image encoder as a matrix product of the levels of frames, from 0 to 255.

transformers computes pixel values, and then convolves them with a kernel as large as its step. Both are linear, so the
weights and the bias can contain the normalisation, and each patch of a frame is multiplied as it was received.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from captions.frame_transform import FrameTransform

_CENTRE = 128
"""What is subtracted from levels. In half precision, values around 0 are multiplied with half the error of others."""


class PatchEmbeddings(nn.Module):
    """Takes the place of the embeddings of a `Blip2VisionModel`, and takes levels instead of pixel values."""

    def __init__(self, embeddings: Any, transform: FrameTransform) -> None:
        """Merge the normalisation into the weights.

        Args:
            embeddings: The loaded `Blip2VisionEmbeddings`, whose weights are on the device.
            transform: Says how levels are normalised.
        """
        super().__init__()
        convolution = embeddings.patch_embedding
        kernel, bias = convolution.weight.detach().float(), convolution.bias.detach().float()
        scale, shift = (values.view(1, 3, 1, 1) for values in (transform.scale, transform.shift))
        self._patch = kernel.shape[-1]
        weights = (kernel * scale).permute(2, 3, 1, 0).reshape(-1, kernel.shape[0])
        bias = bias + (kernel * (shift + _CENTRE * scale)).sum((1, 2, 3))
        self.weights = nn.Buffer(weights.to(convolution.weight), persistent=False)  # (values of a patch, D)
        self.bias = nn.Buffer(bias.to(convolution.bias), persistent=False)
        self.class_embedding = embeddings.class_embedding
        self.position_embedding = embeddings.position_embedding

    def forward(self, levels: Tensor, interpolate_pos_encoding: bool = False) -> Tensor:
        """Embed the patches of frames, and add a class token and the positions.

        Args:
            levels: (B, height, width, 3) uint8.
            interpolate_pos_encoding: transformers says it; frames always have the input size, so it is false.

        Returns:
            (B, 1 + patches, D).
        """
        assert not interpolate_pos_encoding
        patch, dtype = self._patch, self.weights.dtype
        count, rows, columns = len(levels), levels.shape[1] // patch, levels.shape[2] // patch
        # With its highest bit flipped, the byte of a level is that of level - 128 as a signed number.
        centred = levels[:, : rows * patch, : columns * patch].bitwise_xor(_CENTRE).contiguous().view(torch.int8)
        lines = centred.view(count, rows, patch, columns, patch * 3).transpose(2, 3)
        values = lines.to(dtype, memory_format=torch.contiguous_format).view(count * rows * columns, -1)
        patches = torch.addmm(self.bias, values, self.weights).view(count, rows * columns, -1)
        classes = self.class_embedding.to(dtype).expand(count, 1, -1)
        embeddings: Tensor = torch.cat([classes, patches], 1) + self.position_embedding.to(dtype)
        return embeddings
