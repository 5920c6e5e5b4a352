"""TorchServe handler: images in, captions out, with BLIP-2 and other image-text-to-text models of transformers.

Everything about the model stands under `handler:` in the archive's YAML (see caption.yaml). Requests and responses:
request_batch.py; the body: reelscribe.wire.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from device_batches import DeviceBatches
from frame_transform import FrameTransform
from reelscribe import wire
from reelscribe.errors import StartupError
from reelscribe.media import FrameArray, ModelDescription
from request_batch import Context, Limits, RequestBatch

logger = logging.getLogger(__name__)

DEFAULT_RESPONSE_SECONDS = 120
"""TorchServe's responseTimeout where a model says nothing of it."""

PROCESSOR_TOLERANCE = 0.03
"""How far pixel values of noise may be from the processor's own on average, in normalised units: 2 levels of 255."""


@dataclass(frozen=True)
class CaptionSettings:
    """What stands under `handler:` in the YAML."""

    model: str
    """Hub name, or a directory of weights and processor files in safetensors format."""
    revision: str | None = None
    dtype: str = "auto"
    """A torch dtype by name; auto is bfloat16 (or float16) on a GPU and float32 on a CPU."""
    prompt: str = ""
    generation: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 30})
    device_batch: int = 32
    """Frames that run through the model at once."""
    max_frames: int = 512
    """Frames of one request: 50 MiB of frames at 224 x 224 are 348."""
    max_side: int = 8192
    """Pixels of the longer side of a frame."""
    cpu_threads: int = 1
    """Threads that a worker computes with on the CPU: its cores belong to all workers, and to what decodes there."""

    @classmethod
    def from_yaml(cls, config: Any) -> CaptionSettings:
        """Raises StartupError for a missing or unknown name."""
        known = [f.name for f in fields(cls)]
        options = (config or {}).get("handler")
        if not isinstance(options, dict) or "model" not in options or not set(options) <= set(known):
            raise StartupError(f"YAML, handler: expected model and optionally {', '.join(known[1:])}, got {options}")
        return cls(**options)

    def torch_dtype(self, device: torch.device) -> torch.dtype:
        """The dtype that `dtype` stands for on this device."""
        if self.dtype != "auto":
            dtype = getattr(torch, self.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise StartupError(f"YAML, handler, dtype: expected auto or a torch dtype, got {self.dtype!r}")
            return dtype
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


class Captioner:
    """A loaded model with its processor, on one device."""

    def __init__(self, settings: CaptionSettings, device: torch.device) -> None:
        self.settings = settings
        dtype = settings.torch_dtype(device)
        self.processor = AutoProcessor.from_pretrained(settings.model, revision=settings.revision)
        # Any: each family has a class of its own, and what they have in common is not typed.
        family: Any = AutoModelForImageTextToText
        self.model = family.from_pretrained(
            settings.model, revision=settings.revision, dtype=dtype, use_safetensors=True
        )
        self.model.to(device).eval()
        self.transform = FrameTransform(self.processor.image_processor, device, dtype)
        self.prompt = self._prompt_inputs(device)
        self.echo = self._echo()
        self._check_against_processor()
        # A model that cannot caption should not load, and no request should pay for what starts lazily.
        self.caption([np.zeros((1, self.transform.frame.height, self.transform.frame.width, 3), np.uint8)])

    def caption(self, pieces: list[FrameArray]) -> list[str]:
        """Captions of all frames, in order; each piece is (N, H, W, 3) uint8 RGB of its own size."""
        with torch.inference_mode():
            pixels = torch.cat([self.transform(piece) for piece in pieces])
            # Copies, not views: BLIP writes into its prompt.
            prompt = {name: value.repeat(len(pixels), 1) for name, value in self.prompt.items()}
            tokens = self.model.generate(pixel_values=pixels, **prompt, **self.settings.generation)
        texts = self.processor.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip().removeprefix(self.echo).strip() for text in texts]

    def description(self, workers: int, response_seconds: float) -> ModelDescription:
        """What clients need to know, with what TorchServe was told of the model."""
        return ModelDescription(
            name=self.settings.model,
            revision=_revision(self.settings.model, self.model),
            prompt=self.settings.prompt,
            generation=self.settings.generation,
            frame=self.transform.frame,
            mean=self.transform.mean,
            std=self.transform.std,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device_batch=self.settings.device_batch,
            max_frames=self.settings.max_frames,
            max_side=self.settings.max_side,
            workers=workers,
            response_seconds=response_seconds,
        )

    def _prompt_inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
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


def _revision(name: str, model: Any) -> str:
    """The hub's commit, or for a directory a digest of its weights: changed weights are another revision."""
    commit = getattr(model.config, "_commit_hash", None)
    if commit:
        return str(commit)
    digest = hashlib.sha256()
    files = sorted(Path(name).glob("*.safetensors"))
    if not files:
        return "unknown"
    for path in files:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"


class CaptionHandler:
    """Answers TorchServe's calls: the first loads the model, the others bring requests."""

    def load(self, context: Context) -> None:
        """Load the model of the YAML onto the worker's GPU, or the CPU where there is none."""
        settings = CaptionSettings.from_yaml(context.model_yaml_config)
        gpu = context.system_properties.get("gpu_id")
        torch.set_num_threads(settings.cpu_threads)
        if gpu is not None and not torch.cuda.is_available():
            raise StartupError(
                f"TorchServe gave this worker GPU {gpu}, but torch sees none; install a CUDA build of torch"
            )
        device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        captioner = Captioner(settings, device)
        served = context.model_yaml_config
        self._description = captioner.description(
            served.get("minWorkers", 1), served.get("responseTimeout", DEFAULT_RESPONSE_SECONDS)
        ).to_json()
        self._limits = Limits(settings.max_frames, settings.max_side)
        self._size = captioner.transform.frame
        self._batches = DeviceBatches(captioner.caption, settings.device_batch)
        logger.info("%s %s on %s", settings.model, self._description["revision"], device)

    def answer(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """One response a request; a request that is wrong gets its own status and costs the others nothing."""
        began = time.monotonic()
        requests = RequestBatch(data, context, self._limits, self._size)
        responses = requests.responses(self._batches.map(requests.frames), self._description)
        # Shared out, so that a client that adds up what it is told gets the time of the device.
        seconds = (time.monotonic() - began) / max(1, len(data))
        for i in range(len(data)):
            context.set_response_header(i, wire.COMPUTE_SECONDS_HEADER, f"{seconds:.6f}")
        return responses


_handler = CaptionHandler()


def handle(data: list[dict[str, Any]] | None, context: Context) -> list[Any] | None:
    """TorchServe's entry point; `data` is None when the worker starts."""
    if data is None:
        try:
            _handler.load(context)
        except Exception as error:
            # One line that `reelscribe server start` finds in the log and shows; the traceback follows it.
            logger.exception("cannot load: %s: %s", type(error).__name__, " ".join(str(error).split()))
            raise
        return None
    return _handler.answer(data, context)
