"""Qwen3-VL: the pixels of a whole clip have a limit, and the prompt says the time of each patch in time."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

from clips.families.family import Family, ProcessorSettings, frame_rule
from clips.patches import Patching
from reelscribe.contract.clips import Clip, ClipBudget
from runtime.generation import generate
from runtime.second_stage import TensorTree

_MEAN = _STD = (0.5, 0.5, 0.5)

_PIXELS = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
"""Names of the inputs with the patches of stills and of clips, and with their numbers."""


class Qwen3VLFirstStage(Qwen3VLForConditionalGeneration):
    """The image encoder alone."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("language_model", None)
        self.register_module("lm_head", None)
        self._keys_to_ignore_on_load_unexpected = {r"language_model\.", r"^lm_head\."}
        self.all_tied_weights_keys = {}  # only the language model has tied weights


class Qwen3VLSecondStage(Qwen3VLForConditionalGeneration):
    """The language model alone."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.register_module("visual", None)
        self._keys_to_ignore_on_load_unexpected = {r"visual\."}


class Qwen3VL(Family):
    """The family of `Qwen3VLForConditionalGeneration`."""

    stages = (Qwen3VLFirstStage, Qwen3VLSecondStage)

    def __init__(self, settings: ProcessorSettings) -> None:
        """Read what a checkpoint says about its processors; the defaults are those of their classes."""
        video = {**settings.image, **settings.video}
        self.patching = Patching.from_json(video, patch=16, mean=_MEAN, std=_STD)
        factor = self.patching.patch * self.patching.merge
        video_size = settings.video.get("size", {})
        self.budget = ClipBudget(
            factor=factor,
            min_pixels=video_size.get("shortest_edge", 128 * factor**2),
            # The reference implementation limits each frame, too; transformers does so from 5.22 on, unless it is told.
            max_pixels=_frame_tokens(video) * factor**2 if video.get("cap_pixels_per_frame", True) else None,
            total_pixels=video_size.get("longest_edge", 768 * factor**2),
            whole_clip=True,
            **frame_rule(video, self.patching),
        )
        self.still_budget = self.patching.still_budget(settings.image)

    def encode(self, model: Any, inputs: TensorTree) -> TensorTree:
        """Replace the patches in the inputs of `generate` by their features, one after the other.

        Args:
            model: A Qwen3-VL, whole or its first stage.
            inputs: The inputs.

        Returns:
            The other inputs, and under "image" and "video" the features of each layer that the language model gets, the
            last one first, (tokens, D) each.
        """
        encoded = {name: value for name, value in inputs.items() if not name.startswith("pixel_values")}
        for kind, (pixels, grid) in _PIXELS.items():
            if pixels in inputs:
                with torch.inference_mode():
                    output = model.get_image_features(inputs[pixels], inputs[grid], return_dict=True)
                layers = [output.pooler_output, *output.deepstack_features]
                encoded[kind] = [torch.cat(list(features)) for features in layers]
        return encoded

    def generate(self, model: Any, options: dict[str, Any], inputs: TensorTree) -> TensorTree:
        """Generate the tokens of descriptions from what `encode` returned; see `Family.generate`."""
        others = {name: value for name, value in inputs.items() if name not in _PIXELS}
        merged = model.config.vision_config.spatial_merge_size**2
        output: Any = BaseModelOutputWithDeepstackFeatures  # its annotations forget that each clip has a tensor
        features = {}
        for kind, (_, grid) in _PIXELS.items():
            if kind in inputs:
                counts = (inputs[grid].prod(-1) // merged).tolist()
                last, *layers = (torch.split(each, counts) for each in inputs[kind])
                features[kind] = output(pooler_output=last, deepstack_features=layers)
        return generate(model, options, {**others, "mm_encoder_outputs": features})

    def video_text(self, clip: Clip) -> str:
        """Return a mark for each patch in time, which says its presentation time, and its tokens."""
        frames, times = self.patching.frames, clip.pts_seconds
        tokens = self.video_placeholder.replace(self.video_token, self.video_token * self.tokens_per_time(clip))
        marks = [(times[at] + times[min(at + frames, len(times)) - 1]) / 2 for at in range(0, len(times), frames)]
        return "".join(f"<{mark:.1f} seconds>{tokens}" for mark in marks)


def _frame_tokens(video: dict[str, object]) -> int:
    return int(str(video.get("max_video_tokens") or 768))
