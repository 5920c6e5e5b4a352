"""TorchServe's handler for shots: windows of frames come in, the probability that each frame ends a shot goes out.

The archive's YAML configures it under `handler:` (see shot.yaml). shots/window_requests.py describes requests and
responses, reelscribe.wire the format of a body, and worker/handler.py what TorchServe calls and when.
"""

from __future__ import annotations

import torch

from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage
from shots.detector import WINDOWING, ShotDetector, ShotSettings
from shots.window_requests import WindowReader
from worker.handler import LoadedModel, ModelHandler


class ShotHandler(ModelHandler[ShotSettings]):
    """Finds the transitions between shots with a TransNetV2."""

    settings_class = ShotSettings

    def load_model(
        self,
        settings: ShotSettings,
        device: torch.device,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the shot model; it has no second stage."""
        assert second_stage is None, "ShotSettings refuses two stages"
        counters = Counters()
        detector = ShotDetector(settings, device, counters)
        return LoadedModel(
            detector.description(response_seconds).to_json(),
            lambda: WindowReader(settings.max_windows, WINDOWING),
            # Windows are not padded, so those of one batch have the same length.
            DeviceBatches(
                detector.detect,
                settings.items_at_once(device),
                item="window",
                length=len,
                most_padding=0.0,
                counters=counters,
            ),
            counters,
        )


handle = ShotHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
