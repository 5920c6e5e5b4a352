"""TorchServe's handler for clips: several frames of a video come in, descriptions of what happens go out.

The archive's YAML configures it under `handler:` (see clip.yaml). clips/clip_requests.py describes requests and
responses, reelscribe.wire the format of a body, and worker/handler.py what TorchServe calls and when.
"""

from __future__ import annotations

import torch

from clips.clip_requests import ClipReader, ClipsOfFiles
from clips.describer import ClipSettings, Describer, load_second_stage
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage, StageFunction
from worker.handler import LoadedModel, ModelHandler
from worker.media_file import MediaFiles

MOST_PADDING = 0.25
"""Limit for the part of a device batch that is padding, because prompts with many frames are longer than others."""


class ClipHandler(ModelHandler[ClipSettings]):
    """Describes clips with Qwen3-VL and other video-language models of transformers."""

    settings_class = ClipSettings

    def load_model(
        self,
        settings: ClipSettings,
        device: torch.device,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the clip model, or with a `second_stage` only its image encoder."""
        counters = Counters()
        describer = Describer(settings, device, counters, second_stage)
        description = describer.description(response_seconds)
        files = MediaFiles(ClipsOfFiles(describer, description), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: ClipReader(describer, files),
            DeviceBatches(
                describer.collect,
                settings.items_at_once(device),
                submit=describer.submit,
                item="clip",
                length=describer.length,
                most_padding=MOST_PADDING,
                counters=counters,
                in_flight=settings.in_flight if second_stage else 1,
                steps=describer.steps,
            ),
            counters,
            describer.black_clips,
        )

    def load_second_stage(self, settings: ClipSettings, device: torch.device) -> StageFunction:
        """Load the language model of a Qwen3-VL."""
        return load_second_stage(settings, device)


handle = ClipHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
