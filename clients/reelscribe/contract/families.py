"""What families of models take of a clip and of a picture, where no handler of ours can read it from the checkpoint.

A server with OpenAI's API scales what it is sent to the sizes of its model. Frames that have such a size already are
not scaled twice, cost no more to send than the model can see, and are those of their times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reelscribe.contract.clips import STILL_PROMPT, ClipBudget
from reelscribe.contract.frames import InputSize, PixelBudget

FrameTimes = Literal["video", "prompt"]
"""How a model is told the times of the frames of a clip: they are a video with times, or pictures in the prompt, each
after its time."""


MOST_CLIP_PIXELS = 40_000_000 // 3
"""Largest number of pixels of all frames of a clip together: those of 40 MB, as in handlers."""


@dataclass(frozen=True)
class ModelFamily:
    """A family of models."""

    names: tuple[str, ...]
    """Parts of the names of its checkpoints, in lower case."""
    clips: ClipBudget
    """How many frames of a clip are sent, and at which size."""
    pictures: InputSize | PixelBudget
    """Size of single pictures."""
    times: FrameTimes
    """How it is told the times of frames, where the server can do both."""
    picture_prompt: str = STILL_PROMPT
    """What it is asked about a single picture."""


def _qwen(names: tuple[str, ...], factor: int, frame_tokens: int, total_tokens: int, *, whole: bool) -> ModelFamily:
    """Return a family of the Qwen-VL models, whose tokens are squares of `factor` pixels."""
    square = factor**2
    clips = ClipBudget(
        factor,
        min_pixels=4 * square if whole else 128 * square,
        max_pixels=frame_tokens * square,
        total_pixels=min(total_tokens * square, MOST_CLIP_PIXELS // (1 if whole else 2)),
        whole_clip=whole,
    )
    return ModelFamily(names, clips, PixelBudget(factor, 64 * square, 1280 * square), "video")


def _squares(
    names: tuple[str, ...],
    side: int,
    times: FrameTimes,
    max_frames: int,
    picture_prompt: str = ModelFamily.picture_prompt,
) -> ModelFamily:
    """Return a family that stretches every picture to a square with sides of `side` pixels."""
    clips = ClipBudget(
        factor=1,
        min_pixels=side**2,
        max_pixels=side**2,
        resized_width=side,
        resized_height=side,
        frame_factor=1,
        fps=1.0,
        max_frames=max_frames,
    )
    return ModelFamily(names, clips, InputSize(side, side), times, picture_prompt)


FAMILIES: dict[str, ModelFamily] = {
    # video_preprocessor_config.json of Qwen/Qwen3-VL-2B-Instruct, and of Qwen/Qwen3.5-4B, which has the same; the limit
    # of a frame is that of its reference implementation, qwen-vl-utils.
    "qwen3-vl": _qwen(("qwen3-vl", "qwen3.5", "qwen3_5"), 32, 768, 24_576, whole=True),
    # preprocessor_config.json of Qwen/Qwen2.5-VL-3B-Instruct, and qwen-vl-utils
    "qwen2.5-vl": _qwen(("qwen2.5-vl", "qwen2-vl"), 28, 768, 115_200, whole=False),
    # A tile of OpenGVLab/InternVL3-2B's config.json (force_image_size); a video has one tile a frame.
    "internvl": _squares(("internvl",), 448, "prompt", 32),
    # preprocessor_config.json of google/gemma-3-4b-it
    "gemma": _squares(("gemma",), 896, "prompt", 32),
    # preprocessor_config.json of llava-hf/llava-onevision-qwen2-0.5b-ov-hf. As pictures, frames would take ten times as
    # many tokens.
    "llava-onevision": _squares(("llava-onevision", "llava_onevision"), 384, "video", 32),
    # A slice of openbmb/MiniCPM-V-4_5's preprocessor_config.json (scale_resolution), with patches of 14 pixels
    "minicpm-v": ModelFamily(
        ("minicpm-v", "minicpm-o"),
        ClipBudget(14, 14**2, 448**2, frame_factor=1, fps=1.0, max_frames=64),
        PixelBudget(14, 14**2, 448**2),
        "prompt",
    ),
    # preprocessor_config.json of Salesforce/blip2-opt-2.7b; its captions continue an empty prompt
    "blip2": _squares(("blip2", "blip-2"), 224, "prompt", 1, picture_prompt=""),
}
"""The families by their names."""

OTHER = ModelFamily(
    (),
    ClipBudget(factor=2, min_pixels=4, max_pixels=768**2, frame_factor=1, fps=1.0, max_frames=32),
    PixelBudget(factor=2, min_pixels=4, max_pixels=1024**2),
    "prompt",
)
"""What is sent to models of other families: pictures of a size that most take as it is, or scale down once."""


def family_of(*names: str) -> str | None:
    """Return the name of the family of a checkpoint; None if it is of no known one.

    Args:
        names: Names of the checkpoint, such as "Qwen/Qwen3-VL-2B-Instruct" or the path of its folder.
    """
    for name in map(str.lower, names):
        for family, known in FAMILIES.items():
            if any(part in name for part in known.names):
                return family
    return None
