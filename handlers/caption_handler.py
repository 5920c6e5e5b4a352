"""TorchServe's handler for captioning: frames come in, captions go out.

The archive's YAML configures it under `handler:` (see caption.yaml). captions/frame_requests.py describes requests and
responses, reelscribe.wire the format of a body, and worker/handler.py what TorchServe calls and when.
"""

from __future__ import annotations

import torch

from captions.captioner import Captioner, CaptionSettings, load_second_stage
from captions.frame_requests import FrameLimits, FrameReader, FramesOfFiles
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage, StageFunction
from worker.handler import LoadedModel, ModelHandler
from worker.media_file import MediaFiles


class CaptionHandler(ModelHandler[CaptionSettings]):
    """Captions frames with BLIP-2 and other image-text-to-text models of transformers."""

    settings_class = CaptionSettings

    def load_model(
        self,
        settings: CaptionSettings,
        device: torch.device,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the captioner, or with a `second_stage` only its image encoder."""
        counters = Counters()
        captioner = Captioner(settings, device, counters, second_stage)
        limits = FrameLimits(settings.max_frames, settings.max_side)
        size = captioner.transform.input_size
        description = captioner.description(response_seconds)
        files = MediaFiles(FramesOfFiles(description, settings.max_frames), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: FrameReader(limits, size, files),
            DeviceBatches(
                captioner.collect,
                settings.items_at_once(device),
                submit=captioner.submit,
                item="frame",
                counters=counters,
                in_flight=settings.in_flight if second_stage else 1,
                steps=captioner.steps,
            ),
            counters,
            captioner.black_frames,
        )

    def load_second_stage(self, settings: CaptionSettings, device: torch.device) -> StageFunction:
        """Load the language model of a BLIP-2."""
        return load_second_stage(settings, device)


handle = CaptionHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
