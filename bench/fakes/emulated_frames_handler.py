"""A TorchServe handler that reads requests as the caption handler does, but whose model only sleeps.

Unlike demo/servers/emulated_handler.py, which is about devices and workers, it is a `ModelHandler` with device batches,
as the caption handler is. The model captions `speed` frames in a second, a setting under `handler:` in the YAML.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from captions.frame_requests import FrameLimits, FrameReader, FramesOfFiles
from reelscribe.contract.descriptions import CaptionerDescription
from reelscribe.contract.frames import FrameArray, FrameCaption, InputSize
from runtime.device_batches import DeviceBatches
from runtime.model_settings import ModelSettings
from runtime.second_stage import SecondStage
from worker.handler import LoadedModel, ModelHandler
from worker.media_file import MediaFiles


@dataclass(frozen=True)
class EmulatedSettings(ModelSettings):
    """The settings under `handler:` in the YAML."""

    speed: float = 400
    """Frames captioned in a second."""


class EmulatedFramesHandler(ModelHandler[EmulatedSettings]):
    """The caption handler with the emulated model."""

    settings_class = EmulatedSettings

    def load_model(
        self,
        settings: EmulatedSettings,
        device: torch.device,
        response_seconds: float,
        _second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Return the model and its reader of requests; no weights are loaded."""

        def caption(slices: list[FrameArray]) -> list[FrameCaption]:
            sizes = [frame.shape[:2] for frames in slices for frame in frames]
            time.sleep(len(sizes) / settings.speed)
            return [FrameCaption(f"{width} x {height}") for height, width in sizes]

        size, limits = InputSize(224, 224), FrameLimits(512, 8192)
        description = CaptionerDescription(
            name=settings.model,
            revision="1",
            dtype="float32",
            generation={},
            device_batch=settings.items_at_once(device),
            response_seconds=response_seconds,
            prompt="",
            input_size=size,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            max_frames=limits.frames,
            max_side=limits.side,
        )
        files = MediaFiles(FramesOfFiles(description, limits.frames), settings.threads_that_read())
        return LoadedModel(
            description.to_json(),
            lambda: FrameReader(limits, size, files),
            DeviceBatches(caption, settings.items_at_once(device), item="frame"),
        )


handle = EmulatedFramesHandler().handle
"""TorchServe's entry point."""
