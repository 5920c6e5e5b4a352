"""A handler of a model in two stages whose computing only sleeps, and whose features are sent for real.

It has no weights, so it shows what transfers cost where each stage has a device of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from runtime.device_batches import DeviceBatches
from runtime.model_settings import ModelSettings
from runtime.second_stage import LocalSecondStage, SecondStage, StageFunction, TensorTree
from worker.handler import LoadedModel, ModelHandler


@dataclass(frozen=True)
class StageSettings(ModelSettings):
    """The settings of an emulated model."""

    stage_ms: float = 50.0
    """Milliseconds that each stage takes for a device batch."""
    item_bytes: int = 1
    """Size of the features of an item, which the first stage sends to the second."""


class EmulatedStagesHandler(ModelHandler[StageSettings]):
    """Answers each item, a number, with itself."""

    settings_class = StageSettings

    def load_model(
        self,
        settings: StageSettings,
        device: torch.device,
        _response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Return the first stage, or with no `second_stage` both."""
        second = second_stage or LocalSecondStage(self.load_second_stage(settings, device))

        def submit(slices: list[list[int]]) -> Any:
            numbers = [number for part in slices for number in part]
            time.sleep(settings.stage_ms / 1000)
            features = torch.zeros(len(numbers), settings.item_bytes, dtype=torch.uint8)
            return second.submit({"numbers": numbers, "features": features})

        def collect(submitted: Any) -> list[int]:
            return list(second.result(submitted)["numbers"])

        batches = DeviceBatches(
            collect, settings.items_at_once(device), submit=submit, item="item", in_flight=settings.in_flight
        )
        return LoadedModel({"name": "emulated", "revision": "1"}, lambda: _no_reader, batches)

    def load_second_stage(self, settings: StageSettings, _device: torch.device) -> StageFunction:
        """Return the second stage."""

        def compute(tree: TensorTree) -> TensorTree:
            time.sleep(settings.stage_ms / 1000)
            return {"numbers": tree["numbers"]}

        return compute


def _no_reader(*_: Any) -> Any:
    raise NotImplementedError("this model gets its items without requests")
