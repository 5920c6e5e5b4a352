"""Normalised log-mel spectrograms, the input of the Fast Conformer of Parakeet and Canary.

They are those of transformers' `ParakeetFeatureExtractor`, to within 1e-4, but computed where the model is: a GPU would
wait longer for a CPU to make spectrograms than it takes to transcribe them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transcripts.speech_model import Samples

_LOG_GUARD = 2.0**-24
"""Added to each power before its logarithm is taken."""

_STD_GUARD = 1e-5
"""Added to each standard deviation before a difference is divided by it."""


class ParakeetFeatures:
    """Makes the spectrograms of chunks on a device."""

    def __init__(self, extractor: Any, device: torch.device) -> None:
        """Take the settings of a model.

        Args:
            extractor: The `ParakeetFeatureExtractor` of the model.
            device: Where to compute.
        """
        self._fft_size, self._hop, self._size = extractor.n_fft, extractor.hop_length, extractor.win_length
        self._preemphasis: float = extractor.preemphasis or 0.0
        self._window = torch.hann_window(self._size, periodic=False, device=device)
        self._filters = extractor.mel_filters.to(device)

    def __call__(self, chunks: Sequence[Samples]) -> dict[str, Tensor]:
        """Make the spectrograms of chunks, padded to the longest.

        Args:
            chunks: B arrays (N,) at the model's sample rate, each with two frames at least.

        Returns:
            On the device, "input_features", (B, frames, mels) float32, and "attention_mask", (B, frames) bool, which is
            False where there is padding.
        """
        spectrograms = [self._spectrogram(samples) for samples in chunks]
        lengths = torch.tensor([len(spectrogram) for spectrogram in spectrograms], device=self._window.device)
        features = pad_sequence(spectrograms, batch_first=True)
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        return {"input_features": features, "attention_mask": mask}

    def _spectrogram(self, samples: Samples) -> Tensor:
        """One spectrogram, (frames, mels)."""
        audio = torch.from_numpy(samples).to(self._window.device)
        audio = torch.cat([audio[:1], audio[1:] - self._preemphasis * audio[:-1]])
        spectrum = torch.stft(
            audio, self._fft_size, self._hop, self._size, self._window, pad_mode="constant", return_complex=True
        )
        # The last frame is centred behind the end of the audio, and transformers masks it.
        powers = self._filters @ (spectrum.real.square() + spectrum.imag.square())[:, : len(samples) // self._hop]
        logs = (powers + _LOG_GUARD).log()
        normalised: Tensor = (logs - logs.mean(1, keepdim=True)) / (logs.std(1, keepdim=True) + _STD_GUARD)
        return normalised.T
