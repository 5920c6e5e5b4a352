"""faster-whisper with a Whisper checkpoint of transformers, which CTranslate2 converts.

Two of its assumptions do not hold for the demo model. They are corrected here, or its words would differ: it pads every
window to 30 s, whatever the model's window; and CTranslate2 takes a model for multilingual only with 51,865 tokens or
more, and leaves language and task out of the prompts of others. Neither correction changes a published model. Its
options are the defaults, with two exceptions: it decodes greedily, as the other ways do, and it does not put the text
of the last window into the prompt, on which the demo model was not trained. With both defaults, 7 of 10 words were
wrong.
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
"""How audio is cut into windows.

sequential: one window after the other, each from where the last one stopped; decoded again at higher temperatures where
the result is doubtful. The other two are batched. fixed: cut wherever a window ends. vad: cut by its detector of voice
activity, as it is by default.
"""

OPTIONS: dict[str, Any] = {"language": "en", "beam_size": 1}


class FasterWhisper:
    """A converted model on the CPU, with one thread, in float32."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        """Convert the checkpoint into the new folder `folder`, and load it."""
        TransformersConverter(str(checkpoint), copy_files=["tokenizer.json"]).convert(str(folder))
        processor = json.loads((checkpoint / "processor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps(processor["feature_extractor"]))
        self._model = faster_whisper.WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=1)
        if json.loads((checkpoint / "generation_config.json").read_text())["is_multilingual"]:
            self._model.model = _Multilingual(self._model.model)
        self._batched = faster_whisper.BatchedInferencePipeline(self._model)
        frames = self._model.feature_extractor.nb_max_frames
        module = faster_whisper.transcribe
        module.pad_or_trim = functools.partial(module.pad_or_trim, length=frames)

    def transcribe(self, samples: NDArray[np.int16], windows: Windows, batch: int, *, timestamps: bool) -> str:
        """Return the text of (N,) samples at the model's rate."""
        audio = samples.astype(np.float32) / 32768
        options = {**OPTIONS, "without_timestamps": not timestamps}
        if windows == "sequential":
            segments, _ = self._model.transcribe(audio, condition_on_previous_text=False, **options)
        else:
            cuts = self._cuts(len(audio)) if windows == "fixed" else None
            segments, _ = self._batched.transcribe(audio, batch_size=batch, clip_timestamps=cuts, **options)
        return " ".join(segment.text.strip() for segment in segments)

    def _cuts(self, samples: int) -> Sequence[dict[str, float]]:
        extractor = self._model.feature_extractor
        rate, window = extractor.sampling_rate, extractor.n_samples
        return [{"start": at / rate, "end": min(at + window, samples) / rate} for at in range(0, samples, window)]


class _Multilingual:
    """A model of CTranslate2 that says it is multilingual."""

    is_multilingual = True

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
