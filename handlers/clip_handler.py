"""TorchServe's handler for clips: several frames of a video come in, descriptions of what happens go out.

The archive's YAML configures it under `handler:` (see clip.yaml). clips/clip_requests.py describes requests and
responses, reelscribe.wire the format of a body, and worker/handler.py what TorchServe calls and when.
"""

from __future__ import annotations

import torch

from clips.clip_requests import ClipReader, ClipsOfFiles
from clips.describer import ClipSettings, Describer
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage
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
        workers: int,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the clip model; it has no second stage."""
        assert second_stage is None, "ClipSettings refuses two stages"
        counters = Counters()
        describer = Describer(settings, device, counters)
        description = describer.description(workers, response_seconds)
        files = MediaFiles(ClipsOfFiles(description, settings.max_clips), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: ClipReader(describer, files),
            DeviceBatches(
                describer.describe,
                settings.items_at_once(device),
                item="clip",
                length=describer.length,
                most_padding=MOST_PADDING,
                counters=counters,
            ),
            counters,
        )


handle = ClipHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
