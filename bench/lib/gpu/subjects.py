"""The models that gpu.py measures: how each is saved, loaded in a variant, and run, and what work that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from captions.captioner import Captioner, CaptionSettings
from clips.describer import ClipSettings, Describer
from lib.gpu.limits import Work, blip2_work, qwen3_vl_work, whisper_work
from reelscribe.contract.clips import Clip
from reelscribe.contract.speech import TranscriptionOptions
from synthetic.random_models import (
    TEXT_TOKENS,
    Size,
    blip2_config,
    qwen3_vl_config,
    save_blip2,
    save_qwen3_vl,
    save_whisper,
    whisper_config,
)
from synthetic.random_speech_models import (
    TDT_TOKENS,
    canary_config,
    parakeet_tdt_config,
    qwen3_asr_config,
    save_canary,
    save_parakeet_tdt,
    save_qwen3_asr,
)
from transcripts.canary_model import CanaryModel
from transcripts.one_stage_model import OneStageModel
from transcripts.qwen3_asr_model import Qwen3AsrModel
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.tdt_model import TdtModel
from transcripts.whisper.model import WhisperModel
from transcripts.whisper.torch_engine import TorchEngine

DType = Literal["bfloat16", "float16"]

PROMPT_TOKENS = 4
"""Tokens of Whisper's prompt: start, language, task, no timestamps."""


@dataclass(frozen=True)
class Variant:
    """How a model is run."""

    dtype: DType = "bfloat16"
    attention: Literal["sdpa", "eager"] = "sdpa"
    compile: bool = False

    def settings(self, generation: dict[str, Any]) -> dict[str, Any]:
        """Settings of a handler for this variant."""
        return {"dtype": self.dtype, "compile": self.compile, "generation": generation}


VARIANTS = {
    "bf16": Variant(),
    "fp16": Variant(dtype="float16"),
    "eager": Variant(attention="eager"),
    "compiled": Variant(compile=True),
}


@dataclass(frozen=True)
class Loaded:
    """A model in one variant."""

    model: Any
    """The model of transformers."""
    generator: Any
    """The part of it that generates text."""
    batch: Callable[[int], Callable[[], object]]
    """Takes a number of items, and returns a function that runs this many through the model."""

    @property
    def compiled(self) -> bool:
        """True if it generates in compiled steps."""
        return hasattr(self.generator, "compiled_steps")


@dataclass(frozen=True)
class Subject:
    """A model to be measured."""

    title: str
    unit: str
    per_item: float
    """How many units an item of a batch is."""
    save: Callable[[Path, torch.device], None]
    load: Callable[[Path, Variant, torch.device], Loaded]
    work: Callable[[int], list[Work]] | None = None
    """Takes a number of items, and returns the work of a batch of this many. None where it is not counted: such a
    model has no columns of shares."""


def blip2(size: Size, tokens: int) -> Subject:
    """BLIP-2 with captions of `tokens` tokens."""
    generation = {"max_new_tokens": tokens, "min_new_tokens": tokens, "num_beams": 1, "do_sample": False}

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        captioner = Captioner(CaptionSettings(str(folder), **variant.settings(generation)), device)
        captioner.model.set_attn_implementation(variant.attention)
        frame = captioner.transform.input_size

        def batch(items: int) -> Callable[[], object]:
            frames = np.random.default_rng(0).integers(0, 256, (items, frame.height, frame.width, 3), np.uint8)
            return lambda: captioner.caption([frames])

        return Loaded(captioner.model, captioner.model.language_model, batch)

    return Subject(
        f"BLIP-2 opt-2.7b ({size}), captions of {tokens} tokens",
        "frames/s",
        1,
        lambda folder, device: save_blip2(blip2_config(size), folder, device),
        load,
        lambda items: blip2_work(blip2_config(size), items, tokens),
    )


def whisper(size: Size, tokens: int) -> Subject:
    """Whisper with `tokens` tokens in each window."""
    config = whisper_config(size)
    window_seconds = config.max_source_positions / 50
    # With random weights, results would be dropped or repeated at random.
    settings: dict[str, Any] = {"timestamps": False, "temperatures": (0.0,), "no_speech_threshold": None}
    suppressed = list(range(TEXT_TOKENS[size], config.vocab_size))
    generation = {"max_new_tokens": tokens, "suppress_tokens": suppressed}

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        model = WhisperModel(SpeechSettings(str(folder), **variant.settings(generation), **settings), device)
        assert isinstance(model.engine, TorchEngine)
        network = model.engine.model
        network.set_attn_implementation(variant.attention)
        samples = np.random.default_rng(0).normal(0, 0.1, round(window_seconds * model.sample_rate)).astype(np.float32)

        def batch(items: int) -> Callable[[], object]:
            # Copies, as chunks with the same array are encoded once.
            chunks = [Chunk(samples.copy(), TranscriptionOptions()) for _ in range(items)]
            return lambda: model.transcribe(chunks)

        return Loaded(network, network, batch)

    return Subject(
        f"Whisper large-v3-turbo ({size}), {tokens} tokens in {window_seconds:g} s",
        "RTFx",
        window_seconds,
        lambda folder, device: save_whisper(whisper_config(size), folder, device),
        load,
        lambda items: whisper_work(config, items, tokens, PROMPT_TOKENS),
    )


class _Speech(NamedTuple):
    """A speech model that is not a Whisper: its name, class, configuration, and what saves it."""

    name: str
    model_class: type[OneStageModel[Any]]
    config: Callable[[Size], Any]
    save: Callable[[Any, Path, torch.device], None]


SPEECH = {
    "parakeet": _Speech("Parakeet-TDT-0.6b-v3", TdtModel, parakeet_tdt_config, save_parakeet_tdt),
    "canary": _Speech("Canary-1b-v2", CanaryModel, canary_config, save_canary),
    "qwen3asr": _Speech("Qwen3-ASR-1.7B", Qwen3AsrModel, qwen3_asr_config, save_qwen3_asr),
}


def speech(model: str, size: Size, tokens: int) -> Subject:
    """A model of SPEECH with `tokens` tokens in each chunk of 30 s; a Parakeet has as many as its weights say."""
    kind = SPEECH[model]
    generation = {} if kind.model_class is TdtModel else {"max_new_tokens": tokens, "min_new_tokens": tokens}

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        loaded = kind.model_class(SpeechSettings(str(folder), **variant.settings(generation)), device)
        loaded.model.set_attn_implementation(variant.attention)
        samples = np.random.default_rng(0).normal(0, 0.1, round(30 * loaded.sample_rate)).astype(np.float32)
        options = TranscriptionOptions(language="en" if loaded.languages else None)

        def batch(items: int) -> Callable[[], object]:
            return lambda: loaded.transcribe([Chunk(samples, options)] * items)

        return Loaded(loaded.model, loaded.model, batch)

    said = f"{TDT_TOKENS} steps" if kind.model_class is TdtModel else f"{tokens} tokens"
    return Subject(
        f"{kind.name} ({size}), {said} in 30 s",
        "RTFx",
        30,
        lambda folder, device: kind.save(kind.config(size), folder, device),
        load,
    )


def qwen3_vl(size: Size, tokens: int, count: int, width: int, height: int) -> Subject:
    """Qwen3-VL with descriptions of `tokens` tokens, about `count` frames of a video of this size."""
    config = qwen3_vl_config(size)
    generation = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    prompt: list[int] = []
    """The number of tokens of a prompt, once a tokenizer has been loaded."""
    grid: list[tuple[int, int, int]] = []

    def load(folder: Path, variant: Variant, device: torch.device) -> Loaded:
        describer = Describer(ClipSettings(str(folder), **variant.settings(generation)), device)
        describer.model.set_attn_implementation(variant.attention)
        frame = describer.budget.frame_size(count, width, height)
        frames = np.random.default_rng(0).integers(0, 256, (count, frame.height, frame.width, 3), np.uint8)
        clip = Clip(frames, [(k + 0.5) / 2 for k in range(count)])
        prompt[:] = [describer.encode([clip])["input_ids"].shape[1]]
        grid[:] = [describer.family.grid(clip)]
        return Loaded(describer.model, describer.model, lambda items: lambda: describer.describe([[clip] * items]))

    return Subject(
        f"Qwen3-VL-2B ({size}), {tokens} tokens about {count} frames",
        "clips/s",
        1,
        lambda folder, device: save_qwen3_vl(qwen3_vl_config(size), folder, device),
        load,
        lambda items: qwen3_vl_work(config, items, tokens, prompt[0], grid[0]),
    )
