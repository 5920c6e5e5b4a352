"""TransNetV2 (Soucek and Lokoc, 2020), the network that finds the transitions between shots.

Its input are 27 x 48 pixels of successive frames, its output two probabilities for each frame. It has three parts:

- blocks of cells look at the pixels. A cell convolves each frame, and then the frames around each one at four rates, so
  that a few cells see both a cut and a long dissolve. At the end of a block, frames shrink to half of their sides;
- two kinds of similarity of each frame to those around it, of what the blocks have seen and of the histograms of its
  colours;
- fully connected layers of all of this, with two heads.

The network is made of published weights, whose shapes tell how many blocks, cells and channels it has. It computes the
same as the published one in fewer steps: convolutions are two-dimensional, those over time of frames x pixels, and the
batch normalization is part of their weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.state_dict import Weights

RATES = (1, 2, 4, 8)
"""The distances, in frames, between the three frames that a convolution over time looks at."""

_NORM_EPSILON = 1e-3
"""What the batch normalization adds to a variance: the default of Keras, in which the network was trained."""

_LEVEL_BITS = 3
"""A histogram has 2**3 levels of each colour channel."""


class TransNetV2(nn.Module):
    """The network, in evaluation mode, in float32 on the CPU until it is moved."""

    def __init__(self, weights: Weights) -> None:
        """Build the network.

        Args:
            weights: The published state dict, or one with other numbers of blocks, cells and channels.

        Raises:
            KeyError: Some of the weights are missing.
            IndexError, TypeError, ValueError, RuntimeError: Their shapes do not fit together.
        """
        super().__init__()
        self.blocks = nn.ModuleList(_Block(weights, prefix) for prefix in _numbered(weights, "SDDCNN."))
        self.projection = _linear(weights, "frame_sim_layer.projection")
        self.frame_similarity = _linear(weights, "frame_sim_layer.fc")
        self.colour_similarity = _linear(weights, "color_hist_layer.fc")
        self.hidden = _linear(weights, "fc1")
        self.cut = _linear(weights, "cls_layer1")
        self.transition = _linear(weights, "cls_layer2")
        self.eval()

    def forward(self, windows: Tensor) -> Tensor:
        """Compute the probabilities of frames.

        Args:
            windows: (B, T, 27, 48, 3) uint8 RGB: B windows of T successive frames.

        Returns:
            (B, T, 2) float32, from 0 to 1: the probabilities that a shot ends with the frame, which are high for one
            frame of each transition, and that the frame is part of a transition, of which there may be many.
        """
        batch, frames = windows.shape[:2]
        dtype = self.hidden.weight.dtype
        # The memory format that convolutions are fastest in is also the one that the published network flattens.
        seen = windows.flatten(0, 1).permute(0, 3, 1, 2).to(dtype) / 255
        means = []
        for block in self.blocks:
            seen = block(seen, frames)
            means.append(seen.mean((2, 3)))
        projected = self.projection(torch.cat(means, 1).unflatten(0, (batch, frames)))
        features = [
            F.relu(self.colour_similarity(_similarities(_histograms(windows), self.colour_similarity).to(dtype))),
            F.relu(self.frame_similarity(_similarities(projected.float(), self.frame_similarity).to(dtype))),
            seen.permute(0, 2, 3, 1).reshape(batch, frames, -1),
        ]
        hidden = F.relu(self.hidden(torch.cat(features, 2)))
        return torch.cat([self.cut(hidden), self.transition(hidden)], 2).float().sigmoid()


class _Block(nn.Module):
    """Cells one after the other, and a short cut past all but the first of them."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.cells = nn.ModuleList(_Cell(weights, cell) for cell in _numbered(weights, f"{prefix}DDCNN."))

    def forward(self, seen: Tensor, frames: int) -> Tensor:
        """Return (B * T, 4 F, H // 2, W // 2) of (B * T, C, H, W), with T frames a window."""
        seen = first = self.cells[0](seen, frames).relu_()
        for cell in self.cells[1:]:
            seen = cell(seen, frames).relu_()
        return F.avg_pool2d(seen + first, 2)


class _Cell(nn.Module):
    """Convolutions of each frame, and then over time, at each rate; their outputs become channels side by side."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        super().__init__()
        scale = weights[f"{prefix}bn.weight"] * (weights[f"{prefix}bn.running_var"] + _NORM_EPSILON).rsqrt()
        shift = weights[f"{prefix}bn.bias"] - weights[f"{prefix}bn.running_mean"] * scale
        self.spaces, self.times = nn.ModuleList(), nn.ModuleList()
        for number, rate in enumerate(RATES):
            of_space, of_time = (weights[f"{prefix}Conv3D_{rate}.layers.{k}.weight"] for k in range(2))
            channels = slice(number * len(of_time), (number + 1) * len(of_time))
            scaled = of_time[..., 0] * scale[channels, None, None, None]
            self.spaces.append(_convolution(of_space[:, :, 0], padding=(1, 1)))
            self.times.append(_convolution(scaled, shift[channels], padding=(rate, 0), dilation=(rate, 1)))

    def forward(self, seen: Tensor, frames: int) -> Tensor:
        """Return (B * T, 4 F, H, W) of (B * T, C, H, W), with T frames a window."""
        height, width = seen.shape[2:]
        of_rates = []
        for space, time in zip(self.spaces, self.times, strict=True):
            of_space = space(seen).permute(0, 2, 3, 1)
            rows = of_space.reshape(-1, frames, height * width, of_space.shape[3])
            of_rates.append(time(rows.permute(0, 3, 1, 2)))
        joined = torch.cat(of_rates, 1).permute(0, 2, 3, 1)
        return joined.reshape(-1, height, width, joined.shape[3]).permute(0, 3, 1, 2)


def _histograms(windows: Tensor) -> Tensor:
    """Return (B, T, 512) float32: how many pixels of each frame have each colour, in few levels of each channel."""
    levels = (windows >> (8 - _LEVEL_BITS)).long()
    colours = (((levels[..., 0] << _LEVEL_BITS) + levels[..., 1] << _LEVEL_BITS) + levels[..., 2]).flatten(2)
    counts = torch.zeros(*colours.shape[:2], 2 ** (3 * _LEVEL_BITS), device=windows.device)
    return counts.scatter_add_(2, colours, torch.ones_like(colours, dtype=counts.dtype))


def _similarities(features: Tensor, layer: nn.Linear) -> Tensor:
    """Return the cosine similarity of each frame to those around it: as many as a layer takes, itself in the middle.

    Args:
        features: (B, T, values) of the frames.
        layer: The layer.

    Returns:
        (B, T, similarities), 0 where there is no frame.
    """
    unit = F.normalize(features, dim=2)
    frames, around = features.shape[1], layer.in_features
    padded = F.pad(unit @ unit.transpose(1, 2), (around // 2, around // 2))
    columns = torch.arange(frames, device=unit.device)[:, None] + torch.arange(around, device=unit.device)
    return padded.gather(2, columns.expand(len(unit), -1, -1))


def _numbered(weights: Weights, prefix: str) -> list[str]:
    """Return the prefixes of the numbered parts that weights have under a prefix, at least one; numbers are from 0."""
    parts = {name[len(prefix) :].partition(".")[0] for name in weights if name.startswith(prefix)}
    numbers = [str(number) for number in range(max(1, len(parts)))]
    for number in numbers:
        if number not in parts:
            raise KeyError(f"{prefix}{number}")
    return [f"{prefix}{number}." for number in numbers]


def _convolution(
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    padding: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> nn.Conv2d:
    outputs, inputs, *kernel = weight.shape
    height, width = kernel
    layer = nn.Conv2d(inputs, outputs, (height, width), padding=padding, dilation=dilation, bias=bias is not None)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    layer.weight = nn.Parameter(layer.weight.contiguous(memory_format=torch.channels_last))
    return layer


def _linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[f"{name}.weight"]
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": weights[f"{name}.bias"]})
    return layer
