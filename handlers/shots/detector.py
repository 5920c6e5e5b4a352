"""A shot model: a TransNetV2 that tells for each frame of a window how likely a shot ends there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.contract.fields import DECIMALS
from reelscribe.contract.shots import WindowAnswer, WindowArray, Windowing
from reelscribe.errors import StartupError
from runtime.metrics import Counters
from runtime.model_settings import ModelSettings, digest_of
from runtime.state_dict import load_weights, weights_file
from shots.transnetv2 import TransNetV2

WINDOWING = Windowing(width=48, height=27, frames=100, context=25)
"""The windows that a TransNetV2 was trained with, and their part that counts."""


@dataclass(frozen=True)
class ShotSettings(ModelSettings):
    """Settings under `handler:` in the YAML of a shot model."""

    device_batches: ClassVar[tuple[int, int]] = (8, 64)

    dtype: str = "float32"
    """Name of a torch dtype. A model this small gains little by another one, and finds other shots with it."""
    max_windows: int = 64
    """The most windows of one request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages != 1:
            raise StartupError("YAML, handler, stages: expected 1 for a shot model, which runs on one GPU, got 2")


class ShotDetector:
    """A loaded network, on one device.

    Attributes:
        settings: The settings that it was loaded with.
        network: The network.
    """

    def __init__(self, settings: ShotSettings, device: torch.device, counters: Counters | None = None) -> None:
        """Load the weights, and look at a black window.

        Args:
            settings: Which weights.
            device: Where to load them.
            counters: Counts frames.

        Raises:
            StartupError: There is not one file of weights, it is damaged, or it is not of a TransNetV2.
        """
        self.settings, self._device = settings, device
        self._counters = counters or Counters()
        self._file = weights_file(Path(settings.pretrained))
        self._dtype = settings.torch_dtype(device)
        try:
            network = TransNetV2(load_weights(self._file)).to(device, self._dtype)
            self.network = network
            # A model that cannot detect must not load, and no request should wait for lazy initialisation.
            self._probabilities(np.zeros((1, WINDOWING.frames, WINDOWING.height, WINDOWING.width, 3), np.uint8))
        except (LookupError, TypeError, ValueError, RuntimeError, FloatingPointError) as error:
            why = " ".join(str(error).split())
            raise StartupError(f"{self._file}: expected the weights of a TransNetV2, got others ({why})") from None

    def detect(self, windows: Sequence[Sequence[WindowArray]]) -> list[WindowAnswer]:
        """Look at windows.

        Args:
            windows: The windows of one device batch, in slices of those of requests: (T, 27, 48, 3) uint8 RGB each,
                all of the same T.

        Returns:
            Their answers, in order.

        Raises:
            FloatingPointError: The dtype has too small a range for what the model computes.
        """
        joined = np.stack([window for part in windows for window in part])
        self._counters.add("frames", joined.shape[0] * joined.shape[1])
        return [
            WindowAnswer(*(tuple(round(each, DECIMALS) for each in head) for head in zip(*frames, strict=True)))
            for frames in self._probabilities(joined).tolist()
        ]

    def description(self, response_seconds: float) -> ShotModelDescription:
        """Describe the model to clients.

        Args:
            response_seconds: TorchServe's timeout for a call, in seconds.
        """
        return ShotModelDescription(
            name=self.settings.model,
            revision=digest_of([self._file]),
            generation={},
            windowing=WINDOWING,
            dtype=str(self._dtype).removeprefix("torch."),
            device_batch=self.settings.items_at_once(self._device),
            max_windows=self.settings.max_windows,
            response_seconds=response_seconds,
        )

    def _probabilities(self, windows: WindowArray) -> Tensor:
        """Return (B, T, 2) float32 on the CPU of (B, T, 27, 48, 3) uint8 RGB. Raises FloatingPointError for NaN."""
        with torch.inference_mode():
            probabilities: Tensor = self.network(torch.from_numpy(windows).to(self._device)).cpu()
        if not probabilities.isfinite().all():
            raise FloatingPointError(f"probabilities: expected numbers from 0 to 1, got NaN, in {self._dtype}")
        return probabilities
