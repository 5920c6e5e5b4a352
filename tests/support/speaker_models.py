"""Tiny random voice encoders, as the published one is saved, a tiny diarizer, and voices that they tell apart."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reelscribe.contract.voices import ChunkVoices
from support.audio import RATE

DIARIZER = Path(__file__).parents[1] / "data" / "diarizer"
"""A tiny diarization model, trained to tell two speakers apart who buzz at PITCHES. What trains it is beside it."""

PITCHES = (120, 310)
"""Pitches, in Hz, of the voices of a conversation."""


def encoder_weights(hidden: int = 8, size: int = 16, layers: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """A random state dict with the names of the published one, and smaller layers."""
    generator = torch.Generator().manual_seed(seed)
    weights = {"linear.weight": torch.randn(size, hidden, generator=generator), "linear.bias": torch.ones(size)}
    for layer in range(layers):
        inputs = hidden if layer else 40
        weights[f"lstm.weight_ih_l{layer}"] = torch.randn(4 * hidden, inputs, generator=generator) / 4
        weights[f"lstm.weight_hh_l{layer}"] = torch.randn(4 * hidden, hidden, generator=generator) / 4
        for bias in ("ih", "hh"):
            weights[f"lstm.bias_{bias}_l{layer}"] = torch.zeros(4 * hidden)
    return weights


def save_encoder(folder: Path, **sizes: int) -> str:
    """Save such weights as a checkpoint of a training has them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"step": 1, "model_state": encoder_weights(**sizes)}, folder / "pretrained.pt")
    return str(folder)


def conversation(*parts: tuple[int, int, float]) -> np.ndarray:
    """Buzzing voices, (N,) float32: parts of (whether the first one speaks, whether the second one does, seconds)."""
    voices = [talk(*((pitch * part[k], part[-1]) for part in parts)) for k, pitch in enumerate(PITCHES)]
    return np.sum(voices, axis=0, dtype=np.float32)


def talk(*parts: tuple[float, float]) -> np.ndarray:
    """Buzzing voices with faint noise, (N,) float32: parts of (pitch in Hz, seconds); of pitch 0, nobody speaks."""
    rng, sounds = np.random.default_rng(0), []
    for pitch, seconds in parts:
        at = np.arange(round(seconds * RATE)) / RATE
        sounds.append(0.1 * np.sign(np.sin(2 * np.pi * pitch * at)) * (1 + 0.5 * np.sin(40 * at)))
    speech = np.concatenate(sounds)
    return (speech + rng.normal(0, 1e-3, len(speech))).astype(np.float32)


def voices(*directions: int, seconds: float = 0.5, size: int = 8, seed: int = 0) -> ChunkVoices:
    """Parts of speech one after the other, whose embeddings point about along these axes."""
    rng = np.random.default_rng(seed)
    vectors = 0.1 * rng.random((len(directions), size)) + np.eye(size)[list(directions)]
    times = tuple((k * seconds, (k + 1) * seconds) for k in range(len(directions)))
    return ChunkVoices(times, vectors.astype("<f2").tobytes())
