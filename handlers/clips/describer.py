"""A describer: a loaded video-language model of transformers that turns clips into descriptions.

`Describer.encode` turns a device batch of clips into the inputs of `generate` (runtime/generation.py), and
`Describer.decode` turns the generated tokens into text. Prompts are padded on the left, so that all answers begin at
the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

from clips.families import FAMILIES, Family
from clips.processor_files import chat_template, check_preprocessing, read_settings
from reelscribe.contract.clips import CLIP_PROMPT, STILL_PROMPT, Clip, ClipBudget, ClipDescription, ClipStatus
from reelscribe.contract.descriptions import ClipModelDescription
from reelscribe.contract.fields import round_confidence
from reelscribe.errors import PromptError, StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.generation import end_tokens
from runtime.metrics import Counters
from runtime.model_settings import ModelSettings, revision_of
from runtime.pretrained import from_pretrained, load_pretrained
from runtime.prompt_text import plain_tokens, spelled
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction

logger = logging.getLogger(__name__)

LARGEST_CLIP_BYTES = 40_000_000
"""The most bytes of the frames of a clip, as TorchServe's limit for a request is 50 MiB."""

MAX_PROMPT_LETTERS = 100_000
"""The most letters of a prompt, which is more than most models can read."""

_WARM_UP_TOKENS = 2

_CACHE_LENGTHS = (1024, 2048, 4096, 8192)
"""Lengths of the caches of compiled steps, in tokens of a clip, its prompt and its description. With more lengths, less
memory would be read in vain for each token; with fewer, less time is taken to compile."""


@dataclass(frozen=True)
class ClipSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a clip model."""

    device_batches: ClassVar[tuple[int, int]] = (8, 32)

    system_prompt: str = ""
    """Text of the system message; empty for none, or for the chat template's own."""
    prompt: str = CLIP_PROMPT
    """The prompt for clips whose request has none."""
    still_prompt: str = STILL_PROMPT
    """The prompt for single pictures whose request has none."""
    allow_prompts: bool = True
    """True if requests may have prompts of their own."""
    generation: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 256, "do_sample": False})
    """Options of transformers' `generate`."""
    fps: float | None = None
    """Frames for each second of a clip; None, here and below, for what the checkpoint says."""
    min_frames: int | None = None
    """Smallest number of frames of a clip that has so many."""
    max_frames: int | None = None
    """Largest number of frames of a clip."""
    min_pixels: int | None = None
    """Smallest number of pixels of a frame, or for Qwen3-VL of all frames of a clip together."""
    max_pixels: int | None = None
    """Largest number of pixels of a frame."""
    total_pixels: int | None = None
    """Largest number of pixels of all frames of a clip together."""
    resized_width: int | None = None
    """Width of all frames, in pixels; it comes with `resized_height` and overrides the limits."""
    resized_height: int | None = None
    """Height of all frames, in pixels."""
    max_clips: int = 64
    """The most clips of one request."""
    max_side: int = 8192
    """Limit for the longer side of a frame, in pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("fps", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")
        for name in (*names, "resized_width", "resized_height"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise StartupError(f"YAML, handler, {name}: expected a number over 0 or null, got {value!r}")
        if (self.resized_width is None) != (self.resized_height is None):
            raise StartupError("YAML, handler: expected resized_width and resized_height together, got one of them")

    def budget(self, own: ClipBudget) -> ClipBudget:
        """Return the budget of a checkpoint with these settings in it. Logs which wishes exceed a limit."""
        names = ("fps", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels")
        wishes = {name: value for name in names if (value := getattr(self, name)) is not None}
        # Where sizes are rounded frame by frame, `total_pixels` counts the frames of a patch once.
        most = LARGEST_CLIP_BYTES // 3 // (1 if own.whole_clip else own.frame_factor)
        limits = {"max_frames": own.max_frames, "total_pixels": min(most, own.total_pixels or most)}
        if self.resized_width is None and (own.max_pixels is not None or not own.whole_clip):
            # No frame is smaller than this, so a clip of many frames would be too large whatever `total_pixels` says.
            least = 1.05 * wishes.get("min_pixels", own.min_pixels)
            fitting = int(LARGEST_CLIP_BYTES / 3 / least) // own.frame_factor * own.frame_factor
            limits["max_frames"] = max(own.frame_factor, min(own.max_frames, fitting))
        for name, limit in limits.items():
            if wishes.get(name, 0) > limit:
                logger.warning("%s: %s is over the limit of the model, so it is %s", name, wishes[name], limit)
                wishes[name] = limit
        fields: dict[str, Any] = {**limits, **wishes}
        return replace(own, **fields, resized_width=self.resized_width, resized_height=self.resized_height)


class Describer:
    """A loaded model with its tokenizer, on one device.

    Attributes:
        settings: The settings that it was loaded with.
        model: The model of transformers.
        family: What is special about its family.
        budget: How many frames of a clip it takes, and at which size.
        dtype: The dtype of pixel values.
        steps: The compiled steps of the model, if the settings ask for them.
    """

    def __init__(
        self,
        settings: ClipSettings,
        device: torch.device,
        counters: Counters | None = None,
        second_stage: SecondStage | None = None,
    ) -> None:
        """Load the model, check its preprocessing, and describe a black clip.

        Args:
            settings: Which model, and how it generates.
            device: Where to load it.
            counters: Counts clips, frames and tokens.
            second_stage: The language model of a Qwen3-VL in another process. By default, this process loads the whole
                model.

        Raises:
            StartupError: The model is of no known family, its preprocessing cannot be reproduced here, or it cannot be
                split into two stages.
        """
        self.settings, self._device = settings, device
        self._counters = counters or Counters()
        self.family = _family(settings)
        check_preprocessing(settings, self.family)
        self.budget = settings.budget(self.family.budget)
        self.dtype = settings.torch_dtype(device)
        self._tokenizer = from_pretrained(AutoTokenizer, settings, padding_side="left")
        self._template = chat_template(settings, self._tokenizer)
        vocabulary = self._tokenizer.get_vocab()
        self._image_id, self._video_id = vocabulary[self.family.image_token], vocabulary[self.family.video_token]
        model_class = AutoModelForImageTextToText if second_stage is None else _stages(settings, self.family)[0]
        self.model = load_pretrained(model_class, settings, device)
        self._ends = end_tokens(self.model.generation_config, settings.generation)
        self.steps = CompiledSteps(self.model, self._cache_lengths()) if settings.compile else None
        # A model that cannot describe must not load, and no request should wait for lazy initialisation.
        few = {"max_new_tokens": _WARM_UP_TOKENS, "min_new_tokens": None}
        self._second_stage = second_stage or self._local_stage({**settings.generation, **few})
        self.describe([self.black_clips(1)])
        self._second_stage = second_stage or self._local_stage(settings.generation)

    def black_clips(self, count: int) -> list[Clip]:
        """Return short black clips."""
        size = self.budget.frame_size(self.budget.min_frames, 16 * self.budget.factor, 9 * self.budget.factor)
        frames = np.zeros((self.budget.min_frames, size.height, size.width, 3), np.uint8)
        return [Clip(frames, [k / self.budget.fps for k in range(len(frames))])] * count

    def describe(self, clips: list[Sequence[Clip]]) -> list[ClipDescription]:
        """Describe clips: encode them, generate tokens, and decode these.

        Args:
            clips: The clips of one device batch, in slices of those of requests.

        Returns:
            Their descriptions, in order.
        """
        return self.collect(self.submit(clips))

    def submit(self, clips: list[Sequence[Clip]]) -> tuple[int, Any]:
        """Encode clips, and submit them to the second stage; returns the handle for `collect`."""
        inputs = self.encode([clip for part in clips for clip in part])
        return inputs["input_ids"].shape[1], self._second_stage.submit(self.family.encode(self.model, inputs))

    def collect(self, submitted: tuple[int, Any]) -> list[ClipDescription]:
        """Wait until the second stage has made the tokens of clips, and decode them; returns the descriptions."""
        prompt, pending = submitted
        generated = self._second_stage.result(pending)
        return self.decode([row[prompt:] for row in generated["tokens"]], generated["avg_logprobs"])

    def encode(self, clips: Sequence[Clip]) -> dict[str, Tensor]:
        """Make the inputs of `generate`.

        Args:
            clips: The B clips; a clip of one frame is a still.

        Returns:
            "input_ids", "attention_mask" and "mm_token_type_ids", (B, T) each; "pixel_values_videos" (P, values of a
            patch) and "video_grid_thw" (clips, 3), likewise "pixel_values" and "image_grid_thw" for stills; and what
            else the family needs.
        """
        stills, videos = [clip for clip in clips if _is_still(clip)], [clip for clip in clips if not _is_still(clip)]
        rows = self._tokenizer([self.text(clip) for clip in clips], add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            inputs = self._padded(rows)
            if stills:
                inputs |= self._pixels(stills, "pixel_values", "image_grid_thw")
            if videos:
                inputs |= self._pixels(videos, "pixel_values_videos", "video_grid_thw")
            # Without videos, too: a compiled step takes no other arguments than those it was compiled for.
            inputs |= {name: value.to(self._device) for name, value in self.family.video_inputs(videos).items()}
        self._counters.add("frames", sum(len(clip.frames) for clip in clips))
        return inputs

    def text(self, clip: Clip) -> str:
        """Return the whole prompt of a clip, with a token for each group of its patches."""
        if _is_still(clip):
            prompt = self._prompt("image", clip.prompt or self.settings.still_prompt)
            return prompt.replace(self.family.still_placeholder, self.family.still_text(clip), 1)
        prompt = self._prompt("video", clip.prompt or self.settings.prompt)
        return prompt.replace(self.family.video_placeholder, self.family.video_text(clip), 1)

    def length(self, clip: Clip) -> int:
        """Return about how many tokens the prompt of a clip has, to put similar ones into a device batch."""
        times = 1 if _is_still(clip) else self.family.grid(clip)[0]
        return times * (self.family.tokens_per_time(clip) + 8) + len(clip.prompt or self.settings.prompt) // 4

    def check_prompt(self, prompt: str) -> None:
        """Raise PromptError for a prompt that a request may not have."""
        if not self.settings.allow_prompts:
            raise PromptError("prompt: expected none, as this model has a prompt of its own; leave it out")
        plain_tokens(self._tokenizer, "prompt", prompt, MAX_PROMPT_LETTERS)

    def decode(self, tokens: list[list[int]], averages: list[float]) -> list[ClipDescription]:
        """Turn generated tokens into descriptions.

        Args:
            tokens: The token IDs of each answer, with whatever follows its end.
            averages: The average log-probability of each answer.
        """
        descriptions = []
        for row, average in zip(tokens, averages, strict=True):
            end = next((k for k, token in enumerate(row) if token in self._ends), None)
            text = str(self._tokenizer.decode(row[:end], skip_special_tokens=True)).strip()
            count = len(row) if end is None else end + 1
            status: ClipStatus = "truncated" if end is None else "complete"
            descriptions.append(ClipDescription(text, status, count, round_confidence(average)))
            self._counters.add("tokens", count)
        self._counters.add("clips", len(tokens))
        return descriptions

    def description(self, response_seconds: float) -> ClipModelDescription:
        """Describe the model to clients.

        Args:
            response_seconds: TorchServe's timeout for a call, in seconds.
        """
        settings = self.settings
        return ClipModelDescription(
            name=settings.model,
            revision=revision_of(settings, self.model),
            prompt=settings.prompt,
            system_prompt=settings.system_prompt,
            still_prompt=settings.still_prompt,
            allow_prompts=settings.allow_prompts,
            generation=settings.generation,
            budget=self.budget,
            dtype=str(self.dtype).removeprefix("torch."),
            device_batch=settings.items_at_once(self._device),
            max_clips=settings.max_clips,
            max_side=settings.max_side,
            response_seconds=response_seconds,
        )

    @lru_cache(maxsize=64)  # noqa: B019 - a worker has one describer, as long as it lives
    def _prompt(self, kind: str, prompt: str) -> str:
        """The chat of a prompt, up to where the model answers."""
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": kind, kind: ""}, {"type": "text", "text": spelled(prompt)}]}
        ]
        if self.settings.system_prompt:
            # As a list of parts, because some templates know no other form.
            system = [{"type": "text", "text": self.settings.system_prompt}]
            messages.insert(0, {"role": "system", "content": system})
        return str(
            self._tokenizer.apply_chat_template(
                messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        )

    def _cache_lengths(self) -> list[int]:
        """The lengths that caches of compiled steps have: no more than the longest clips need."""
        pixels = self.budget.factor**2 * (self.family.patching.frames if self.budget.whole_clip else 1)
        longest = (self.budget.total_pixels or 0) // pixels + self.settings.generation.get("max_new_tokens", 0)
        return [length for length in _CACHE_LENGTHS if length < 2 * longest] or [*_CACHE_LENGTHS[:1]]

    def _local_stage(self, options: dict[str, Any]) -> LocalSecondStage:
        return LocalSecondStage(partial(self.family.generate, self.model, options))

    def _pixels(self, clips: Sequence[Clip], values: str, grids: str) -> dict[str, Tensor]:
        patches = [self.family.patching(clip.frames, self._device, self.dtype) for clip in clips]
        grid = torch.tensor([self.family.grid(clip) for clip in clips], device=self._device)
        return {values: patches[0] if len(patches) == 1 else torch.cat(patches), grids: grid}

    def _padded(self, rows: list[list[int]]) -> dict[str, Tensor]:
        longest = max(map(len, rows))
        padding = self._tokenizer.pad_token_id
        ids = torch.tensor([[padding] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        kinds = (ids == self._image_id).int() + 2 * (ids == self._video_id).int()
        inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": kinds}
        return {name: value.to(self._device) for name, value in inputs.items()}


def _is_still(clip: Clip) -> bool:
    return len(clip.frames) == 1


def load_second_stage(settings: ClipSettings, device: torch.device) -> StageFunction:
    """Load the second stage of a model, its language model, onto `device`.

    Returns:
        The function that generates the tokens of descriptions with this model.

    Raises:
        StartupError: The model cannot be split into two stages.
    """
    family = _family(settings)
    model = load_pretrained(_stages(settings, family)[1], settings, device)
    return partial(family.generate, model, settings.generation)


def _family(settings: ClipSettings) -> Family:
    """The family of a model. Raises StartupError if it is of none that is known."""
    model_type = from_pretrained(AutoConfig, settings).model_type
    if model_type not in FAMILIES:
        raise StartupError(
            f"model {settings.model}: expected one of {', '.join(FAMILIES)}, got {model_type}; use another model, or"
            " add its family to handlers/clips/families"
        )
    return FAMILIES[model_type](read_settings(settings))


def _stages(settings: ClipSettings, family: Family) -> tuple[type[Any], type[Any]]:
    """The classes of the two stages of a model. Raises StartupError if it cannot be split."""
    if family.stages is None:
        raise StartupError(
            f"model {settings.model}: expected a Qwen3-VL where handler, stages is 2, got a {type(family).__name__};"
            " build the archive without --stages"
        )
    return family.stages
