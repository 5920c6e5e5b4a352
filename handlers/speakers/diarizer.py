"""Nemotron's diarization model (Sortformer): it tells the speakers of a chunk apart, also where they speak at once.

The model gives each of at most eight speakers a probability every 10 ms, and numbers them in the order in which they
first speak. Its numbers are those of one chunk: which speakers of two chunks are the same, embeddings tell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    AutoProcessor,
    Nemotron3DiarizationForAudioFrameClassification,
    Nemotron3DiarizationProcessor,
)

from reelscribe.errors import StartupError
from runtime.model_settings import ModelSettings, revision_of
from runtime.pretrained import from_pretrained, load_pretrained
from speakers.voice_activity import Stretch
from speakers.voice_encoder import HOP, SAMPLE_RATE
from transcripts.speech_model import Samples


class Diarizer:
    """A loaded model with its processor, on one device."""

    def __init__(self, settings: ModelSettings, device: torch.device) -> None:
        """Load the model, and listen to noise.

        Args:
            settings: Which model, and in which dtype.
            device: Where to load it.

        Raises:
            StartupError: The directory is gone, or has another model, or one with frames of another length.
            FloatingPointError: The dtype has too small a range for what the model computes.
        """
        self._device = device
        self._processor: Any = from_pretrained(AutoProcessor, settings)
        if not isinstance(self._processor, Nemotron3DiarizationProcessor):
            raise StartupError(
                f"YAML, handler, diarizer: expected a Nemotron diarization model, got {settings.model} with a"
                f" {type(self._processor).__name__}; name another one, or null"
            )
        extractor = self._processor.feature_extractor
        if (extractor.sampling_rate, extractor.hop_length) != (SAMPLE_RATE, HOP):
            raise StartupError(
                f"YAML, handler, diarizer: expected frames of {HOP} samples at {SAMPLE_RATE} Hz, got {settings.model}"
                f" with {extractor.hop_length} at {extractor.sampling_rate} Hz"
            )
        self._model = load_pretrained(Nemotron3DiarizationForAudioFrameClassification, settings, device)
        self.revision = revision_of(settings, self._model)
        self(np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).astype(np.float32))  # one that cannot must not load

    def __call__(self, samples: Samples) -> list[Stretch]:
        """Return the stretches of speech in a chunk in the order of their starts; those of two speakers may overlap.

        Chunks go through the model one by one, as its last frames would look at what fills a batch up.

        Args:
            samples: (N,) values from -1 to 1 at SAMPLE_RATE.

        Raises:
            FloatingPointError: The dtype has too small a range for what the model computes.
        """
        inputs = self._processor(samples, sampling_rate=SAMPLE_RATE).to(self._device, self._model.dtype)
        with torch.inference_mode():
            logits = self._model(**inputs).logits
        if not logits.isfinite().all():
            raise FloatingPointError(f"diarizer: expected finite numbers, got NaN, in {self._model.dtype}")
        (told,) = self._processor.extract_speaker_dict(logits, inputs["attention_mask"])
        return [Stretch(_frame(each["Start"]), _frame(each["End"]), each["Speaker"]) for each in told]


def _frame(seconds: float) -> int:
    return round(seconds * SAMPLE_RATE / HOP)
