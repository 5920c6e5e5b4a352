"""faster-whisper with a Whisper checkpoint of transformers, which CTranslate2 converts.

Two things that it takes for granted do not hold for the demo model, and are corrected here, or its words would be
other ones: it pads every window to 30 s, whatever the model's is; and CTranslate2 tells a multilingual model by its
51,865 tokens or more, and leaves language and task out of the prompts of others. What it does with its words stays as
it is, with two exceptions: it decodes greedily, as the others do, and does not show a window the text of the last one,
which the demo model was not trained on (with both, its defaults, it got 7 of 10 words wrong).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import faster_whisper
import numpy as np
from ctranslate2.converters import TransformersConverter
from numpy.typing import NDArray

Windows = Literal["sequential", "fixed", "vad"]
"""sequential: one after the other, each from where the last one stopped, with temperatures where it is doubtful. The
others are batched: fixed: wherever a window ends; vad: where its detector hears a voice, as it is by default."""

OPTIONS: dict[str, Any] = {"language": "en", "beam_size": 1}


class FasterWhisper:
    """On the CPU, with one thread, in float32."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        """`folder` is where the converted model goes; it must not be there yet."""
        TransformersConverter(str(checkpoint), copy_files=["tokenizer.json"]).convert(str(folder))
        processor = json.loads((checkpoint / "processor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps(processor["feature_extractor"]))
        self._model = faster_whisper.WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=1)
        self._model.model = _Multilingual(self._model.model)
        self._batched = faster_whisper.BatchedInferencePipeline(self._model)
        frames = self._model.feature_extractor.nb_max_frames
        module = faster_whisper.transcribe
        module.pad_or_trim = functools.partial(module.pad_or_trim, length=frames)

    def transcribe(self, samples: NDArray[np.int16], windows: Windows, batch: int, *, timestamps: bool) -> str:
        """The text of (N,) samples at the model's rate."""
        sound = samples.astype(np.float32) / 32768
        options = {**OPTIONS, "without_timestamps": not timestamps}
        if windows == "sequential":
            segments, _ = self._model.transcribe(sound, condition_on_previous_text=False, **options)
        else:
            cuts = self._cuts(len(sound)) if windows == "fixed" else None
            segments, _ = self._batched.transcribe(sound, batch_size=batch, clip_timestamps=cuts, **options)
        return " ".join(segment.text.strip() for segment in segments)

    def _cuts(self, samples: int) -> Sequence[dict[str, float]]:
        extractor = self._model.feature_extractor
        rate, window = extractor.sampling_rate, extractor.n_samples
        return [{"start": at / rate, "end": min(at + window, samples) / rate} for at in range(0, samples, window)]


class _Multilingual:
    """A model of CTranslate2 that says so."""

    is_multilingual = True

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
