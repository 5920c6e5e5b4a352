"""What is special about Qwen3-VL: how a prompt shows the model its frames and their times."""

from __future__ import annotations

from collections.abc import Sequence

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"


def video_text(pts_seconds: Sequence[float], frames: int, tokens: int) -> str:
    """Return the text that stands for a video in a prompt: for each patch in time its mark, and its tokens.

    Args:
        pts_seconds: Presentation time of each frame, in seconds.
        frames: Frames that a patch spans.
        tokens: Tokens of each patch in time.
    """
    text = ""
    for at in range(0, len(pts_seconds), frames):
        first, last = pts_seconds[at], pts_seconds[min(at + frames, len(pts_seconds)) - 1]
        text += f"<{(first + last) / 2:.1f} seconds>{VISION_START}{VIDEO * tokens}{VISION_END}"
    return text
