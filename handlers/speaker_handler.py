"""TorchServe's handler for speakers: audio comes in, embeddings of the voices in it go out.

The archive's YAML configures it under `handler:` (see speaker.yaml). transcripts/audio_requests.py describes requests,
which are those of speech without options, reelscribe.contract.voices an answer, reelscribe.wire the format of a body,
and worker/handler.py what TorchServe calls and when.
"""

from __future__ import annotations

import torch

from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from runtime.second_stage import SecondStage
from speakers.speaker_model import SpeakerModel, SpeakerSettings
from transcripts.audio_requests import AudioLimits, AudioReader
from worker.handler import LoadedModel, ModelHandler


class SpeakerHandler(ModelHandler[SpeakerSettings]):
    """Finds voices with a GE2E encoder."""

    settings_class = SpeakerSettings

    def load_model(
        self,
        settings: SpeakerSettings,
        device: torch.device,
        response_seconds: float,
        second_stage: SecondStage | None = None,
    ) -> LoadedModel:
        """Load the speaker model; it has no second stage."""
        assert second_stage is None, "SpeakerSettings refuses two stages"
        counters = Counters()
        model = SpeakerModel(settings, device, counters)
        limits = AudioLimits(settings.max_chunks, settings.chunk_seconds)
        return LoadedModel(
            model.description(response_seconds).to_json(),
            lambda: AudioReader(limits, model),
            DeviceBatches(model.voices, settings.items_at_once(device), item="chunk", counters=counters),
            counters,
        )


handle = SpeakerHandler().handle
"""The function that TorchServe calls: to load the model, and with the requests of each call."""
