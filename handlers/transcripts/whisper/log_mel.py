"""Log-mel spectrograms, the input of Whisper's encoder.

They are those of transformers' `WhisperFeatureExtractor`, to within 1e-5. It computes the padding of all windows, and
the magnitude of each complex number before it squares it. Here, only what has audio is computed, one window after the
other, which fits the caches of a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reelscribe.errors import StartupError
from transcripts.speech_model import Samples

_SMALLEST_POWER = 1e-10
"""Lower powers, such as those of digital silence, count as this."""

_DYNAMIC_RANGE = 8.0
"""Powers of ten below the highest power of a window, under which all powers are equal."""


class LogMel:
    """Makes the spectrograms of windows on a device."""

    def __init__(self, extractor: Any, device: torch.device) -> None:
        """Take the settings of a model.

        Args:
            extractor: The `WhisperFeatureExtractor` of the model.
            device: Where to compute.

        Raises:
            StartupError: The extractor adds noise, or does not pad with silence.
        """
        for name in ("dither", "padding_value"):
            if value := getattr(extractor, name):
                raise StartupError(
                    f"processor_config.json, {name}: expected 0, got {value}; spectrograms are made of audio alone,"
                    " padded with silence, so set it to 0"
                )
        self._fft_size: int = extractor.n_fft
        self._hop: int = extractor.hop_length
        self._frames: int = extractor.nb_max_frames
        self._fft_window = torch.hann_window(self._fft_size, device=device)
        self._filters = torch.from_numpy(extractor.mel_filters).to(device, torch.float32).T.contiguous()

    def __call__(self, windows: Sequence[Samples]) -> Tensor:
        """Make the spectrograms of windows, padded to the model's window.

        Args:
            windows: B arrays (N,) at the model's sample rate; samples beyond the model's window are left out.

        Returns:
            (B, mels, frames), float32, on the device.
        """
        features = self._filters.new_empty(len(windows), len(self._filters), self._frames)
        for out, samples in zip(features, windows, strict=True):
            powers = self._log_powers(samples)
            floor = (powers.amax() - _DYNAMIC_RANGE).clamp(min=torch.tensor(_SMALLEST_POWER).log10().item())
            length = powers.shape[-1]
            torch.maximum(powers, floor, out=out[:, :length])
            out[:, length:] = floor
        return features.add_(4).div_(4)

    def _log_powers(self, samples: Samples) -> Tensor:
        """The logarithms of the mel powers, (mels, M), of the frames that reach into the audio."""
        # Frames are centred at multiples of the hop, so that half of one may lie beyond its end.
        frames = min(self._frames, -(-(len(samples) + self._fft_size // 2) // self._hop))
        audio = self._fft_window.new_zeros(frames * self._hop)
        samples = samples[: len(audio)]
        audio[: len(samples)] = torch.from_numpy(samples)
        spectrum = torch.stft(audio, self._fft_size, self._hop, window=self._fft_window, return_complex=True)[:, :-1]
        # abs() would take a square root first, and a sum over both parts is slower.
        powers = self._filters @ (spectrum.real.square() + spectrum.imag.square())
        return powers.clamp_(min=_SMALLEST_POWER).log10_()
