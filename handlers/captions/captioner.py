"""A captioner: a loaded image-text-to-text model of transformers that turns frames into captions.

`Captioner.encode` turns frames into the inputs of a second stage (runtime/second_stage.py), which generates tokens, and
`Captioner.decode` turns the tokens into text. The package `families` has what differs between models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from captions.families import FAMILIES, Family
from captions.frame_transform import FrameTransform, concatenate
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.fields import round_confidence
from reelscribe.contract.frames import FrameArray, FrameCaption
from reelscribe.errors import StartupError
from runtime.compiled_steps import CompiledSteps
from runtime.metrics import Counters
from runtime.model_settings import ModelSettings, revision_of
from runtime.pretrained import from_pretrained, load_pretrained
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree

PROCESSOR_TOLERANCE = 0.03
"""Largest accepted mean difference between our pixel values of a noise frame and those of the model's processor.

The values are normalised; this is about 2 of the 255 levels of a channel. A model whose processor does something else
is refused, because captions of wrong pixels look like captions.
"""


@dataclass(frozen=True)
class CaptionSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a captioner."""

    prompt: str = ""
    """Text that the model continues; empty for plain captions."""
    generation: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 30})
    """Options of transformers' `generate`."""
    max_frames: int = 512
    """The most frames of one request. 50 MiB hold 348 frames of 224 x 224 pixels."""
    max_side: int = 8192
    """Limit for the longer side of a frame, in pixels."""


class Captioner:
    """A loaded model with its processor, on one device.

    Attributes:
        settings: The settings that it was loaded with.
        model: The model of transformers; with a second stage in another process, its image encoder.
        processor: The processor of transformers.
        transform: Computes pixel values of frames.
        dtype: The dtype of pixel values.
        steps: The compiled steps of the model, if the settings ask for them.
    """

    def __init__(
        self,
        settings: CaptionSettings,
        device: torch.device,
        counters: Counters | None = None,
        second_stage: SecondStage | None = None,
    ) -> None:
        """Load the model, check its preprocessing, and caption a black frame.

        Args:
            settings: Which model, and how it generates.
            device: Where to load it.
            counters: Counts frames and tokens.
            second_stage: The language model of a BLIP-2 in another process. By default, this process loads the whole
                model.

        Raises:
            StartupError: The model's preprocessing cannot be reproduced here, or the model cannot be split into two
                stages.
        """
        self.settings, self._device, self._family = settings, device, _family(settings)
        self._counters = counters or Counters()
        self.processor = from_pretrained(AutoProcessor, settings)
        model_class = AutoModelForImageTextToText if second_stage is None else _stages(settings, self._family)[0]
        self.model = load_pretrained(model_class, settings, device)
        # Not the model's dtype: transformers keeps some parameters of a BLIP-2 in float32, whatever the others are.
        self.dtype = settings.torch_dtype(device)
        self.transform = FrameTransform(self.processor.image_processor, device, self.dtype)
        self.steps = CompiledSteps(self._family.generator(self.model), ()) if settings.compile else None
        self._second_stage = second_stage or LocalSecondStage(
            partial(self._family.generate, self.model, settings.generation)
        )
        self._prompt_inputs: dict[str, torch.Tensor] = {}
        if settings.prompt:
            inputs = self._family.encode_prompt(self.processor, settings.prompt, self.transform.input_size)
            self._prompt_inputs = {name: value.to(device) for name, value in inputs.items()}
        self._prefix = self._repeated_prompt()
        self._check_preprocessing()
        # A model that cannot caption must not load, and no request should wait for lazy initialisation.
        self.caption([self.black_frames(1)])

    def black_frames(self, count: int) -> FrameArray:
        """Return black frames of the model's input size, (count, H, W, 3)."""
        size = self.transform.input_size
        return np.zeros((count, size.height, size.width, 3), np.uint8)

    def caption(self, frames: list[FrameArray]) -> list[FrameCaption]:
        """Caption frames: encode them, generate tokens, and decode these.

        Args:
            frames: Arrays (N, H, W, 3) of uint8 RGB; each array may have its own size.

        Returns:
            The captions of all frames, in order.
        """
        return self.collect(self.submit(frames))

    def submit(self, frames: list[FrameArray]) -> Any:
        """Encode frames, and submit them to the second stage; returns a handle for `collect`."""
        return self._second_stage.submit(self.encode(frames))

    def collect(self, pending: Any) -> list[FrameCaption]:
        """Wait until the second stage has made the tokens of frames, and decode them; returns the captions."""
        generated = self._second_stage.result(pending)
        texts = self.decode(generated["tokens"])
        return [
            FrameCaption(text, round_confidence(average))
            for text, average in zip(texts, generated["avg_logprobs"], strict=True)
        ]

    def encode(self, frames: list[FrameArray]) -> TensorTree:
        """Make the inputs of the second stage.

        Args:
            frames: Arrays (N, H, W, 3) of uint8 RGB; each array may have its own size.

        Returns:
            The inputs that the family of the model makes of the B frames of all arrays, and with a prompt also
            "input_ids" (B, T) and, for most families, "attention_mask" (B, T).
        """
        with torch.inference_mode():
            pixel_values = concatenate([self.transform(array) for array in frames])
            images = self._family.encode(self.model, pixel_values)
            # Copies, not views, as BLIP's `generate` writes into its prompt.
            count = sum(len(array) for array in frames)
            return images | {name: value.repeat(count, 1) for name, value in self._prompt_inputs.items()}

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """Turn the token IDs of each frame into the text of its caption, without the prompt."""
        texts = self.processor.batch_decode(tokens, skip_special_tokens=True)
        self._counters.add("frames", len(tokens))
        self._counters.add("tokens", self._count_generated(tokens))
        return [text.strip().removeprefix(self._prefix).strip() for text in texts]

    def description(self, response_seconds: float) -> CaptionerDescription:
        """Describe the model to clients.

        Args:
            response_seconds: TorchServe's timeout for a call, in seconds.
        """
        return CaptionerDescription(
            name=self.settings.model,
            revision=revision_of(self.settings, self.model),
            prompt=self.settings.prompt,
            generation=self.settings.generation,
            input_size=self.transform.input_size,
            mean=self.transform.mean,
            std=self.transform.std,
            dtype=str(self.dtype).removeprefix("torch."),
            device_batch=self.settings.items_at_once(self._device),
            max_frames=self.settings.max_frames,
            max_side=self.settings.max_side,
            response_seconds=response_seconds,
        )

    def _count_generated(self, tokens: list[list[int]]) -> int:
        """Return how many tokens the model generated, without the prompt and special tokens."""
        prompt = self._prompt_inputs["input_ids"][0].tolist() if self._prompt_inputs else []
        start = len(prompt) if tokens[0][: len(prompt)] == prompt else 0
        special = set(self.processor.tokenizer.all_special_ids)
        return sum(token not in special for caption in tokens for token in caption[start:])

    def _repeated_prompt(self) -> str:
        """The text before each caption of a decoder-only model: the prompt, after encoding and decoding it."""
        if not self._prompt_inputs or self.model.config.get_text_config().is_encoder_decoder:
            return ""
        (text,) = self.processor.batch_decode(self._prompt_inputs["input_ids"], skip_special_tokens=True)
        return str(text).strip()

    def _check_preprocessing(self) -> None:
        """Compare FrameTransform with the model's own processor; if they differed, captions would be silently wrong.

        Raises:
            StartupError: They differ.
        """
        # Noise shows every difference, as each way of resizing gives it other pixel values.
        frame = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
        processor = self.processor.image_processor
        expected = processor(images=[Image.fromarray(frame)], return_tensors="pt")
        ours = self.transform(frame[None]).float().cpu()
        theirs = expected.get("pixel_values")
        if set(expected) - {"pixel_values", "pixel_mask"} or theirs is None or theirs.shape != ours.shape:
            raise StartupError(
                f"model {self.settings.model}: expected a processor that makes only pixel_values of"
                f" {tuple(ours.shape)}, got {type(processor).__name__}, which makes {', '.join(expected)}; use a"
                " BLIP-2, BLIP or GIT model"
            )
        difference = (theirs.float() - ours).abs().mean().item()
        if difference > PROCESSOR_TOLERANCE:
            raise StartupError(
                f"model {self.settings.model}: expected pixel values within {PROCESSOR_TOLERANCE} of those of"
                f" {type(processor).__name__} on average, got a difference of {difference:.3f}; this handler does not"
                " support the model's preprocessing, so use another model"
            )


def load_second_stage(settings: CaptionSettings, device: torch.device) -> StageFunction:
    """Load the second stage of a model, its language model, onto `device`.

    Returns:
        The function that generates the tokens of captions with this model.

    Raises:
        StartupError: The model cannot be split into two stages.
    """
    family = _family(settings)
    model = load_pretrained(_stages(settings, family)[1], settings, device)
    return partial(family.generate, model, settings.generation)


def _family(settings: CaptionSettings) -> Family:
    config = from_pretrained(AutoConfig, settings)
    return FAMILIES.get(config.model_type, Family)()


def _stages(settings: CaptionSettings, family: Family) -> tuple[type[Any], type[Any]]:
    """The classes of the two stages of a model. Raises StartupError if it cannot be split."""
    if family.stages is None:
        kind = from_pretrained(AutoConfig, settings).model_type
        raise StartupError(
            f"model {settings.model}: expected BLIP-2 where handler, stages is 2, got {kind}; models like BLIP and GIT"
            " fit one GPU: build the archive without --stages"
        )
    return family.stages
