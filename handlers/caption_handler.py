"""TorchServe handler: images in, captions out, with BLIP-2 and other image-text-to-text models of transformers.

Everything about the model stands under `handler:` in the archive's YAML (see caption.yaml). Requests and responses:
frame_requests.py; the body: reelscribe.wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from pipeline.blip2 import Blip2Encoder, Blip2Writer
from runtime.device_batches import DeviceBatches
from captions.frame_requests import FrameLimits, FrameReader
from captions.frame_transform import FrameTransform, joined
from worker.handler import ModelHandler, Served
from runtime.settings import ModelSettings, load_pretrained, revision_of
from reelscribe.errors import StartupError
from reelscribe.media import FrameArray, ModelDescription
from runtime.metrics import Tally
from pipeline.remote import SecondStage, SecondStageHere, Tree, Work

PROCESSOR_TOLERANCE = 0.03
"""How far pixel values of noise may be from the processor's own on average, in normalised units: 2 levels of 255."""


@dataclass(frozen=True)
class CaptionSettings(ModelSettings):
    """What stands under `handler:` in the YAML."""

    prompt: str = ""
    generation: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 30})
    max_frames: int = 512
    """Frames of one request: 50 MiB of frames at 224 x 224 are 348."""
    max_side: int = 8192
    """Pixels of the longer side of a frame."""


class Captioner:
    """A loaded model with its processor, on one device."""

    def __init__(
        self,
        settings: CaptionSettings,
        device: torch.device,
        tally: Tally | None = None,
        second: SecondStage | None = None,
    ) -> None:
        """`tally` counts frames and tokens. With `second`, a BLIP-2's language model is there, and not here."""
        self.settings = settings
        self._tally = tally or Tally()
        self.processor = AutoProcessor.from_pretrained(settings.pretrained, revision=settings.revision)
        self.model = load_pretrained(Blip2Encoder if second else AutoModelForImageTextToText, settings, device)
        self._see = self.model.features if second else None
        self._second = second or SecondStageHere(writing(self.model, settings))
        # Not the model's: transformers keeps some parameters of a BLIP-2 in float32, whatever the rest is.
        self.dtype = settings.torch_dtype(device)
        self.transform = FrameTransform(self.processor.image_processor, device, self.dtype)
        self.prompt = self._prompt_inputs(device)
        self.echo = self._echo()
        self._check_against_processor()
        # A model that cannot caption should not load, and no request should pay for what starts lazily.
        self.caption([np.zeros((1, self.transform.frame.height, self.transform.frame.width, 3), np.uint8)])

    def caption(self, pieces: list[FrameArray]) -> list[str]:
        """Captions of all frames, in order; each piece is (N, H, W, 3) uint8 RGB of its own size."""
        return self.finish(self.begin(pieces))

    def begin(self, pieces: list[FrameArray]) -> Any:
        """All that comes before the second stage, which begins; `finish` takes what it returns."""
        with torch.inference_mode():
            pixels = joined([self.transform(piece) for piece in pieces])
            # Copies, not views: BLIP writes into its prompt.
            prompt = {name: value.repeat(len(pixels), 1) for name, value in self.prompt.items()}
            images = self._see(pixels) if self._see else pixels
        return self._second.begin({"pixel_values": images, **prompt})

    def finish(self, begun: Any) -> list[str]:
        """The captions of what was begun."""
        tokens = self._second.finish(begun)["tokens"]
        texts = self.processor.batch_decode(tokens, skip_special_tokens=True)
        self._tally.add("frames", len(tokens))
        self._tally.add("tokens", self._written(tokens))
        return [text.strip().removeprefix(self.echo).strip() for text in texts]

    def description(self, workers: int, response_seconds: float) -> ModelDescription:
        """What clients need to know, with what TorchServe was told of the model."""
        return ModelDescription(
            name=self.settings.model,
            revision=revision_of(self.settings, self.model),
            prompt=self.settings.prompt,
            generation=self.settings.generation,
            frame=self.transform.frame,
            mean=self.transform.mean,
            std=self.transform.std,
            dtype=str(self.dtype).removeprefix("torch."),
            device_batch=self.settings.device_batch,
            max_frames=self.settings.max_frames,
            max_side=self.settings.max_side,
            workers=workers,
            response_seconds=response_seconds,
        )

    def _prompt_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """The prompt's tokens, (1, T) each, with image tokens where the model has them; nothing without a prompt."""
        if not self.settings.prompt:
            return {}
        if self.model.config.model_type == "git":
            # GIT goes on after its prompt, so no end token may follow it.
            tokenizer = self.processor.tokenizer
            ids = tokenizer(self.settings.prompt, add_special_tokens=False)["input_ids"]
            return {"input_ids": torch.tensor([[tokenizer.cls_token_id, *ids]], device=device)}
        image = Image.new("RGB", (self.transform.frame.width, self.transform.frame.height))
        inputs = self.processor(images=image, text=self.settings.prompt, return_tensors="pt").to(device)
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def _written(self, tokens: list[list[int]]) -> int:
        """How many tokens of captions are words of the model's own."""
        prompt = self.prompt["input_ids"][0].tolist() if self.prompt else []
        start = len(prompt) if tokens[0][: len(prompt)] == prompt else 0
        special = set(self.processor.tokenizer.all_special_ids)
        return sum(token not in special for caption in tokens for token in caption[start:])

    def _echo(self) -> str:
        """What a decoder-only model says before its caption: the prompt, as its tokenizer spells it."""
        if not self.prompt or self.model.config.get_text_config().is_encoder_decoder:
            return ""
        (text,) = self.processor.batch_decode(self.prompt["input_ids"], skip_special_tokens=True)
        return str(text).strip()

    def _check_against_processor(self) -> None:
        """Refuse a model whose processor does what FrameTransform does not: captions would be silently wrong."""
        # Noise: every way to resize that is not the processor's gives other pixels.
        frame = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
        images = self.processor.image_processor
        expected = images(images=[Image.fromarray(frame)], return_tensors="pt")
        ours = self.transform(frame[None]).float().cpu()
        theirs = expected.get("pixel_values")
        if set(expected) - {"pixel_values", "pixel_mask"} or theirs is None or theirs.shape != ours.shape:
            raise StartupError(
                f"model {self.settings.model}: {type(images).__name__} makes {', '.join(expected)}, and only"
                f" pixel_values of {tuple(ours.shape)} are served here; use a BLIP-2, BLIP or GIT model"
            )
        difference = (theirs.float() - ours).abs().mean().item()
        if difference > PROCESSOR_TOLERANCE:
            raise StartupError(
                f"model {self.settings.model}: pixel values differ from {type(images).__name__} by {difference:.3f} on"
                f" average, and {PROCESSOR_TOLERANCE} is allowed; its preprocessing is not served here"
            )


def writing(model: Any, settings: CaptionSettings) -> Work:
    """What is left to do when images have been seen: `generate` with that and the prompt, to tokens of each."""

    def write(tree: Tree) -> Tree:
        with torch.inference_mode():
            # A list, as words are made of it on the host; a short one travels with its message's first bytes.
            return {"tokens": model.generate(**tree, **settings.generation).tolist()}

    return write


class CaptionHandler(ModelHandler[CaptionSettings]):
    """Captions frames."""

    settings = CaptionSettings

    def serve(
        self,
        settings: CaptionSettings,
        device: torch.device,
        workers: int,
        response_seconds: float,
        second: SecondStage | None = None,
    ) -> Served:
        """Load the captioner, or what of it comes before `second`."""
        if second:
            _check_halves(settings)
        tally = Tally()
        captioner = Captioner(settings, device, tally, second)
        limits, size = FrameLimits(settings.max_frames, settings.max_side), captioner.transform.frame
        return Served(
            captioner.description(workers, response_seconds).to_json(),
            lambda: FrameReader(limits, size),
            DeviceBatches(
                captioner.finish,
                settings.device_batch,
                item="frame",
                tally=tally,
                begin=captioner.begin,
                in_flight=settings.in_flight if second else 1,
            ),
            tally,
        )

    def second_stage(self, settings: CaptionSettings, device: torch.device) -> Work:
        """Load the language model of a BLIP-2."""
        _check_halves(settings)
        return writing(load_pretrained(Blip2Writer, settings, device), settings)


def _check_halves(settings: CaptionSettings) -> None:
    kind = AutoConfig.from_pretrained(settings.pretrained, revision=settings.revision).model_type
    if kind != "blip-2":
        raise StartupError(
            f"model {settings.model}: expected BLIP-2 where handler, stages is 2, got {kind}; models like BLIP and GIT"
            " fit one GPU: build the archive without --stages"
        )


handle = CaptionHandler().handle
"""TorchServe's entry point."""
