"""Tiny random shot models, as the published one is saved, and the windows that whole films are cut into."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reelscribe.contract.frames import InputSize
from support.videos import read

SIZE = InputSize(48, 27)
RATES = (1, 2, 4, 8)


def transnetv2_weights(filters: int = 2, hidden: int = 16, similar: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """A random state dict with the names of the published one, and fewer channels."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        fan_in = max(1, int(np.prod(shape[1:])))
        weights[name] = torch.randn(shape, generator=generator) * (2 / fan_in) ** 0.5

    channels, of_blocks = 3, 0
    for block in range(3):
        for cell in range(2):
            prefix, width = f"SDDCNN.{block}.DDCNN.{cell}.", filters * 2**block
            for rate in RATES:
                add(f"{prefix}Conv3D_{rate}.layers.0.weight", 2 * width, channels, 1, 3, 3)
                add(f"{prefix}Conv3D_{rate}.layers.1.weight", width, 2 * width, 3, 1, 1)
            channels = 4 * width
            for name in ("weight", "bias", "running_mean", "running_var"):
                weights[f"{prefix}bn.{name}"] = torch.rand(channels, generator=generator) + 0.5
        of_blocks += channels
    layers = {"frame_sim_layer.projection": (similar, of_blocks), "frame_sim_layer.fc": (similar, 101)}
    layers |= {"color_hist_layer.fc": (similar, 101), "fc1": (hidden, channels * 3 * 6 + 2 * similar)}
    layers |= {"cls_layer1": (1, hidden), "cls_layer2": (1, hidden)}
    for name, shape in layers.items():
        add(f"{name}.weight", *shape)
        add(f"{name}.bias", shape[0])
    return weights


def save_transnetv2(folder: Path, **sizes: int) -> str:
    """Save such weights as torch does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(transnetv2_weights(**sizes), folder / "weights.pth")
    return str(folder)


def film(path: Path) -> np.ndarray:
    """All frames of a film, (N, 27, 48, 3) uint8 RGB."""
    return np.stack([image for _, _, image in read(path, SIZE, resize="fast")])


def windows_of(frames: np.ndarray) -> np.ndarray:
    """The windows of a film as its authors cut them, (windows, 100, 27, 48, 3): the middle 50 frames of each count.

    The first frame is repeated 25 times before it; the last one fills the last window.
    """
    rest = len(frames) % 50 or 50
    padded = np.concatenate([frames[:1].repeat(25, 0), frames, frames[-1:].repeat(75 - rest, 0)])
    return np.stack([padded[at : at + 100] for at in range(0, len(padded) - 99, 50)])


def middles(windows: np.ndarray, count: int) -> np.ndarray:
    """What counts of (windows, 100, values): (count, values)."""
    return np.concatenate([window[25:75] for window in windows])[:count]
