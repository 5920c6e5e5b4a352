"""Whisper as two models, each of which loads only the weights of one stage: encoder and decoder."""

from __future__ import annotations

from typing import Any

from transformers import WhisperForConditionalGeneration


class WhisperFirstStage(WhisperForConditionalGeneration):
    """A Whisper that loads only the weights of its encoder."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("decoder", None)
        self.register_module("proj_out", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.decoder\.", r"^proj_out\."}
        self.all_tied_weights_keys = {}  # only the decoder has tied weights


class WhisperSecondStage(WhisperForConditionalGeneration):
    """A Whisper that loads all weights but those of its encoder; `generate` and `forward` need `encoder_outputs`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("encoder", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.encoder\."}
