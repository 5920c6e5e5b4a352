"""Qwen3-VL: the pixels of a whole clip have a limit, and the prompt says the time of each patch in time."""

from __future__ import annotations

from clips.families.family import Family, ProcessorSettings, frame_rule
from clips.patches import Patching
from reelscribe.contract.clips import Clip, ClipBudget

_MEAN = _STD = (0.5, 0.5, 0.5)


class Qwen3VL(Family):
    """The family of `Qwen3VLForConditionalGeneration`."""

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

    def video_text(self, clip: Clip) -> str:
        """Return a mark for each patch in time, which says its presentation time, and its tokens."""
        frames, times = self.patching.frames, clip.pts_seconds
        tokens = self.video_placeholder.replace(self.video_token, self.video_token * self.tokens_per_time(clip))
        marks = [(times[at] + times[min(at + frames, len(times)) - 1]) / 2 for at in range(0, len(times), frames)]
        return "".join(f"<{mark:.1f} seconds>{tokens}" for mark in marks)


def _frame_tokens(video: dict[str, object]) -> int:
    return int(str(video.get("max_video_tokens") or 768))
