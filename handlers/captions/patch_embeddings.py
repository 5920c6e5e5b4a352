"""The embeddings of BLIP-2's image encoder, which take the levels of frames instead of pixel values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from captions.frame_transform import FrameTransform
from runtime.patch_product import PatchProduct, centred


class PatchEmbeddings(nn.Module):
    """Takes the place of the embeddings of a `Blip2VisionModel`."""

    def __init__(self, embeddings: Any, transform: FrameTransform) -> None:
        """Merge the normalisation into the weights.

        Args:
            embeddings: The loaded `Blip2VisionEmbeddings`, whose weights are on the device.
            transform: Says how levels are normalised.
        """
        super().__init__()
        convolution = embeddings.patch_embedding
        self._patch = convolution.kernel_size[0]
        self.product = PatchProduct(convolution, transform.scale, transform.shift)
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
        patches = self.patches(levels)
        classes = self.class_embedding.to(patches.dtype).expand(len(levels), 1, -1)
        embeddings: Tensor = torch.cat([classes, patches], 1) + self.position_embedding.to(patches.dtype)
        return embeddings

    def patches(self, levels: Tensor) -> Tensor:
        """Embed the patches of frames alone: (B, height, width, 3) uint8 -> (B, patches, D)."""
        patch, dtype = self._patch, self.product.weight.dtype
        count, rows, columns = len(levels), levels.shape[1] // patch, levels.shape[2] // patch
        values = centred(levels[:, : rows * patch, : columns * patch]).contiguous()
        lines = values.view(count, rows, patch, columns, patch * 3).transpose(2, 3)
        values = lines.to(dtype, memory_format=torch.contiguous_format).view(count * rows * columns, -1)
        embedded: Tensor = self.product(values).view(count, rows * columns, -1)
        return embedded
