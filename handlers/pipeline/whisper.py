"""Whisper in two halves, each of which loads no weights but its own: what hears sound, and what writes of it."""

from __future__ import annotations

from typing import Any

from transformers import WhisperForConditionalGeneration


class WhisperEncoder(WhisperForConditionalGeneration):
    """Has no decoder."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("decoder", None)
        self.register_module("proj_out", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.decoder\.", r"^proj_out\."}
        self.all_tied_weights_keys = {}  # they are the decoder's


class WhisperWriter(WhisperForConditionalGeneration):
    """Has no encoder: `generate` and `forward` want `encoder_outputs`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("encoder", None)
        self._keys_to_ignore_on_load_unexpected = {r"^model\.encoder\."}
