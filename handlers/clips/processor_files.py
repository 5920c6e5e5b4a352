"""Reads the settings of a checkpoint's processors, and checks that our own preprocessing does the same.

The video processors of transformers need torchvision, which workers do without, so their settings are read here.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor

from clips.families import Family, ProcessorSettings
from reelscribe.contract.clips import Clip
from reelscribe.errors import StartupError
from runtime.model_settings import ModelSettings
from runtime.pretrained import from_pretrained, read_json

logger = logging.getLogger(__name__)

PROCESSOR_TOLERANCE = 1 / 127.5
"""Largest accepted difference between our normalised values and those of the model's processor: a level of 255."""


def read_settings(settings: ModelSettings) -> ProcessorSettings:
    """Read the settings of the image processor and of the video processor of a checkpoint.

    Raises:
        StartupError: It has none.
    """
    both = _read(settings, "processor_config.json")
    image = both.get("image_processor") or _read(settings, "preprocessor_config.json")
    video = both.get("video_processor") or _read(settings, "video_preprocessor_config.json")
    if not image and not video:
        raise StartupError(
            f"model {settings.model}: expected preprocessor_config.json or video_preprocessor_config.json beside its"
            " weights, got neither; put it there"
        )
    return ProcessorSettings(video, image)


def chat_template(settings: ModelSettings, tokenizer: Any) -> str:
    """Return the chat template of a checkpoint: that of its tokenizer, or of its processor.

    Raises:
        StartupError: It has none.
    """
    template = tokenizer.chat_template or _read(settings, "chat_template.json").get("chat_template")
    if not template:
        raise StartupError(f"model {settings.model}: expected a chat template, got none; put chat_template.jinja there")
    return str(template)


def check_preprocessing(settings: ModelSettings, family: Family) -> None:
    """Compare our patches of a noise picture with those of the model's own image processor.

    The image processor cuts and normalises as the video processor does, and needs no torchvision.

    Args:
        settings: Which model it is.
        family: Cuts the picture into patches.

    Raises:
        StartupError: They differ; descriptions would be silently wrong.
    """
    factor = family.patching.patch * family.patching.merge
    frame = np.random.default_rng(0).integers(0, 256, (4 * factor, 6 * factor, 3), np.uint8)
    try:
        processor: Any = from_pretrained(AutoImageProcessor, settings, backend="pil")
    except (OSError, ValueError, ImportError) as error:
        logger.info("the preprocessing was not compared with the model's own: %s", error)
        return
    expected = processor(images=[frame], do_resize=False, return_tensors="pt")
    ours = family.patching(frame[None], torch.device("cpu"), torch.float32)
    theirs, grid = expected["pixel_values"], tuple(expected["image_grid_thw"][0].tolist())
    if theirs.shape != ours.shape or grid != family.grid(Clip(frame[None], [0.0])):
        raise StartupError(
            f"model {settings.model}: expected patches of {tuple(theirs.shape)} in a grid of {grid}, as"
            f" {type(processor).__name__} makes them, got {tuple(ours.shape)}; this handler does not support the"
            " model"
        )
    difference = (theirs.float() - ours).abs().max().item()
    if difference > PROCESSOR_TOLERANCE:
        raise StartupError(
            f"model {settings.model}: expected pixel values within {PROCESSOR_TOLERANCE:.4f} of those of"
            f" {type(processor).__name__}, got a difference of {difference:.3f}; this handler does not support the"
            " model's preprocessing, so use another model"
        )


def _read(settings: ModelSettings, name: str) -> dict[str, Any]:
    return read_json(settings.pretrained, settings.revision, name)
