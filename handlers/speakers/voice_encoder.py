"""The GE2E voice encoder (Wan et al., 2018) with the published weights of Resemblyzer, and its spectrograms.

The spectrograms are those of `librosa.feature.melspectrogram` with its defaults: powers in 40 bands of Slaney's mel
scale, of windows of 25 ms every 10 ms. Three layers of LSTM read a window of them, and what the last one ends with is
the embedding, as a vector of length 1. Embeddings of one speaker are more alike than those of two.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.audio_utils import mel_filter_bank

from runtime.state_dict import Weights

SAMPLE_RATE = 16_000
"""Sample rate of the encoder, in Hz."""

HOP = 160
"""Samples between the starts of two frames of a spectrogram."""

_FFT_SIZE = 400
_MELS = 40


class MelPowers:
    """Makes spectrograms on a device."""

    def __init__(self, device: torch.device) -> None:
        """Prepare the window and the filters.

        Args:
            device: Where to compute.
        """
        filters = mel_filter_bank(
            _FFT_SIZE // 2 + 1, _MELS, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, norm="slaney", mel_scale="slaney"
        )
        self._window = torch.hann_window(_FFT_SIZE, device=device)
        self._filters = torch.from_numpy(filters).to(device, torch.float32)

    def __call__(self, samples: NDArray[np.float32]) -> Tensor:
        """Make the spectrogram of audio.

        Args:
            samples: (N,) values from -1 to 1 at SAMPLE_RATE.

        Returns:
            (1 + N // HOP, 40) float32 powers, on the device. Frames are centred at multiples of HOP.
        """
        audio = torch.from_numpy(samples).to(self._window.device)
        spectrum = torch.stft(audio, _FFT_SIZE, HOP, window=self._window, pad_mode="constant", return_complex=True)
        return (spectrum.real.square() + spectrum.imag.square()).T @ self._filters


class VoiceEncoder(nn.Module):
    """The network, in evaluation mode, in float32 on the CPU until it is moved."""

    def __init__(self, weights: Weights) -> None:
        """Build the network.

        Args:
            weights: The published state dict, or one with other sizes; further entries are ignored.

        Raises:
            KeyError: Some of the weights are missing.
            IndexError, RuntimeError: Their shapes do not fit together.
        """
        super().__init__()
        layers = sum(name.startswith("lstm.weight_ih_l") for name in weights)
        hidden = weights["lstm.weight_hh_l0"].shape[1]
        size = weights["linear.weight"].shape[0]
        self.lstm = nn.LSTM(_MELS, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, size)
        self.load_state_dict({name: weights[name] for name in self.state_dict()})
        self.eval()

    @property
    def size(self) -> int:
        """Number of values of an embedding."""
        return self.linear.out_features

    def forward(self, windows: Tensor) -> Tensor:
        """Return embeddings, (B, size) of length 1, of windows of spectrograms, (B, T, 40)."""
        _, (hidden, _) = self.lstm(windows)
        embeddings: Tensor = torch.relu(self.linear(hidden[-1]))
        unit: Tensor = embeddings / embeddings.norm(dim=1, keepdim=True)
        return unit
