"""Qwen2.5-VL: the pixels of each frame have a limit, and the model is told how much time lies between patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clips.families.family import Family, ProcessorSettings, frame_rule
from clips.patches import Patching
from reelscribe.contract.clips import Clip, ClipBudget

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)


class Qwen25VL(Family):
    """The family of `Qwen2_5_VLForConditionalGeneration`."""

    def __init__(self, settings: ProcessorSettings) -> None:
        """Read what a checkpoint says about its processors; the defaults are those of their classes."""
        video = {**settings.image, **settings.video}
        self.patching = Patching.from_json(video, patch=14, mean=_MEAN, std=_STD)
        factor = self.patching.patch * self.patching.merge
        size = video.get("size") or {}
        tokens = video.get("max_video_tokens") or 128_000
        self.budget = ClipBudget(
            factor=factor,
            min_pixels=video.get("min_pixels") or size.get("shortest_edge", 128 * factor**2),
            max_pixels=video.get("max_pixels") or size.get("longest_edge", 768 * factor**2),
            # The reference implementation limits a clip, too; transformers does so from 5.22 on, unless it is told.
            total_pixels=int(tokens * factor**2 * 0.9) if video.get("cap_pixels_per_frame", True) else None,
            **frame_rule(video, self.patching),
        )
        self.still_budget = self.patching.still_budget(settings.image)

    def video_text(self, clip: Clip) -> str:
        """Return the tokens of a clip."""
        tokens = self.tokens_per_time(clip) * self.grid(clip)[0]
        return self.video_placeholder.replace(self.video_token, self.video_token * tokens)

    def video_inputs(self, clips: Sequence[Clip]) -> dict[str, Tensor]:
        """Return the seconds between successive patches in time, which follow from presentation times."""
        seconds = [
            (clip.pts_seconds[-1] - clip.pts_seconds[0]) / max(1, len(clip.pts_seconds) - 1) * self.patching.frames
            for clip in clips
        ]
        return {"second_per_grid_ts": torch.tensor(seconds)}
