"""A captioner: a loaded image-text-to-text model of transformers that turns frames into captions.

`Captioner.encode` turns frames into the inputs of a second stage (runtime/second_stage.py), which generates tokens, and
`Captioner.decode` turns the tokens into text. Of a BLIP-2, `encode` runs the image encoder, and the second stage is its
language model (caption_writer.py), in this process or in another one. Of any other model, `encode` only computes pixel
values, and the second stage is transformers' `generate` with the whole model (runtime/generation.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from captions.caption_writer import CaptionWriter
from captions.frame_transform import FrameTransform, concatenate
from captions.patch_embeddings import PatchEmbeddings
from reelscribe.contract.fields import round_confidence
from reelscribe.contract.frames import FrameArray, FrameCaption
from reelscribe.contract.model import CaptionerDescription
from reelscribe.errors import StartupError
from runtime.generation import generate
from runtime.metrics import Counters
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree
from runtime.settings import ModelSettings
from runtime.weights import load_pretrained, revision_of

PROCESSOR_TOLERANCE = 0.03
"""Largest accepted mean difference between our pixel values of a noise frame and those of the model's processor.

The values are normalised; this is about 2 of the 255 levels of a channel.
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
        model_class: type[Any] = AutoModelForImageTextToText
        if second_stage is not None:
            from captions.halves import Blip2FirstStage  # only a model in two stages needs it

            _check_two_stages(settings)
            model_class = Blip2FirstStage
        self.settings = settings
        self._counters = counters or Counters()
        self.processor = AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
        self.model = load_pretrained(model_class, settings, device)
        # Not the model's dtype: transformers keeps some parameters of a BLIP-2 in float32, whatever the others are.
        self.dtype = settings.torch_dtype(device)
        self.transform = FrameTransform(self.processor.image_processor, device, self.dtype)
        self._encodes_images = self.model.config.model_type == "blip-2"
        if self._encodes_images:
            self._embed_levels(self.model.vision_model)
        self._second_stage = second_stage or LocalSecondStage(_writer(self.model, settings.generation))
        self._prompt_inputs = self._encode_prompt(device)
        self._prefix = self._repeated_prompt()
        self._check_preprocessing()
        # A model that cannot caption must not load, and no request should wait for lazy initialisation.
        self.caption([np.zeros((1, self.transform.input_size.height, self.transform.input_size.width, 3), np.uint8)])

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
            A dict for the B frames of all arrays: of a BLIP-2, "features" (B, queries, D), which are the encoded
            images; of other models, "pixel_values" (B, 3, height, width). With a prompt, also "input_ids" (B, T) and,
            except for GIT, "attention_mask" (B, T).
        """
        with torch.inference_mode():
            if self._encodes_images:
                levels = concatenate([self.transform.levels(array) for array in frames])
                images = {"features": self.model.get_image_features(levels, return_dict=True).pooler_output}
            else:
                images = {"pixel_values": concatenate([self.transform(array) for array in frames])}
            # Copies, not views, as BLIP's `generate` writes into its prompt.
            count = sum(len(array) for array in frames)
            return images | {name: value.repeat(count, 1) for name, value in self._prompt_inputs.items()}

    def decode(self, tokens: list[list[int]]) -> list[str]:
        """Turn the token IDs of each frame into the text of its caption, without the prompt."""
        texts = self.processor.batch_decode(tokens, skip_special_tokens=True)
        self._counters.add("frames", len(tokens))
        self._counters.add("tokens", self._count_generated(tokens))
        return [text.strip().removeprefix(self._prefix).strip() for text in texts]

    def description(self, workers: int, response_seconds: float) -> CaptionerDescription:
        """Describe the model to clients.

        Args:
            workers: How many workers TorchServe starts for it.
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
            device_batch=self.settings.device_batch,
            max_frames=self.settings.max_frames,
            max_side=self.settings.max_side,
            workers=workers,
            response_seconds=response_seconds,
        )

    def _encode_prompt(self, device: torch.device) -> dict[str, Tensor]:
        """The inputs of the second stage for the prompt, (1, T) each, with image tokens if the model has them."""
        if not self.settings.prompt:
            return {}
        if self.model.config.model_type == "git":
            # GIT continues its prompt, so the prompt must not have the end token that the processor would add.
            tokenizer = self.processor.tokenizer
            ids = tokenizer(self.settings.prompt, add_special_tokens=False)["input_ids"]
            return {"input_ids": torch.tensor([[tokenizer.cls_token_id, *ids]], device=device)}
        image = Image.new("RGB", (self.transform.input_size.width, self.transform.input_size.height))
        inputs = self.processor(images=image, text=self.settings.prompt, return_tensors="pt").to(device)
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

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

    def _embed_levels(self, vision: Any) -> None:
        """Have the image encoder of a BLIP-2 take levels, and compare its first layer with what it was before.

        Raises:
            StartupError: They differ.
        """
        convolution = vision.embeddings.patch_embedding
        vision.embeddings = PatchEmbeddings(vision.embeddings, self.transform)
        # A frame of the input size is not resized, so nothing but the layer can differ.
        size = self.transform.input_size
        frame = np.random.default_rng(1).integers(0, 256, (size.height, size.width, 3), np.uint8)
        pixels = self.processor.image_processor(images=[Image.fromarray(frame)], return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            theirs = convolution(pixels.to(convolution.weight)).flatten(2).transpose(1, 2)
            ours = vision.embeddings.patches(self.transform.levels(frame[None]))
        vision.embeddings.product.check(self.settings.model, ours, theirs)

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
    """Load the language model of a BLIP-2 onto `device`.

    Returns:
        What writes captions with this model.

    Raises:
        StartupError: The model is not a BLIP-2.
    """
    from captions.halves import Blip2SecondStage  # only a model in two stages needs it

    _check_two_stages(settings)
    return _writer(load_pretrained(Blip2SecondStage, settings, device), settings.generation)


def _writer(model: Any, options: dict[str, Any]) -> StageFunction:
    """The second stage of a captioner in the process that has the weights of its language model."""
    if model.config.model_type == "blip-2":
        return CaptionWriter(model, options)
    return partial(generate, model, options)


def _check_two_stages(settings: CaptionSettings) -> None:
    """Raise StartupError for a model other than a BLIP-2, as only a BLIP-2 can be split into two stages."""
    kind = AutoConfig.from_pretrained(settings.pretrained, revision=settings.revision).model_type
    if kind != "blip-2":
        raise StartupError(
            f"model {settings.model}: expected BLIP-2 where handler, stages is 2, got {kind}; models like BLIP and GIT"
            " fit one GPU: build the archive without --stages"
        )
