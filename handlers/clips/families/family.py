"""How a family of clip models chooses and cuts frames, and how its prompts refer to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clips.patches import Patching
from reelscribe.contract.clips import Clip, ClipBudget
from runtime.generation import generate
from runtime.second_stage import TensorTree


@dataclass(frozen=True)
class ProcessorSettings:
    """The settings of a checkpoint's own processors."""

    video: Mapping[str, Any]
    """The settings of its video processor; empty if it has none."""
    image: Mapping[str, Any]
    """The settings of its image processor."""


def frame_rule(video: Mapping[str, Any], patching: Patching) -> dict[str, Any]:
    """Return the fields of a `ClipBudget` that rule the number of frames, from the settings of a video processor."""
    return {
        "frame_factor": patching.frames,
        "fps": video.get("fps") or 2.0,
        "min_frames": video.get("min_frames", 4),
        "max_frames": video.get("max_frames", 768),
    }


class Family(ABC):
    """A family of models: budget, patches, and the text that stands for frames in a prompt."""

    stages: tuple[type[Any], type[Any]] | None = None
    """The classes of transformers' models that hold the weights of the first and the second of two stages; None if the
    family cannot be split. They have `encode` and `generate`."""
    patching: Patching
    """How frames are cut into patches."""
    budget: ClipBudget
    """How many frames of a clip are taken, and at which size."""
    still_budget: ClipBudget
    """At which size a still is taken."""
    still_placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    """The text that the chat template writes for a still."""
    video_placeholder = "<|vision_start|><|video_pad|><|vision_end|>"
    """The text that the chat template writes for a video."""
    image_token = "<|image_pad|>"  # noqa: S105 - no password
    """The token that stands for a group of patches of a still."""
    video_token = "<|video_pad|>"  # noqa: S105 - no password
    """The token that stands for a group of patches of a video."""

    @abstractmethod
    def video_text(self, clip: Clip) -> str:
        """Return the text that takes the place of `video_placeholder`, with as many tokens as the clip has groups."""

    def still_text(self, clip: Clip) -> str:
        """Return the text that takes the place of `still_placeholder`."""
        return self.still_placeholder.replace(self.image_token, self.image_token * self.tokens_per_time(clip))

    def tokens_per_time(self, clip: Clip) -> int:
        """Return the number of groups of patches at one time."""
        _, rows, columns = self.grid(clip)
        return rows * columns // self.patching.merge**2

    def grid(self, clip: Clip) -> tuple[int, int, int]:
        """Return the number of patches in time, in each column and in each row."""
        count, height, width, _ = clip.frames.shape
        return self.patching.grid(count, width, height)

    def video_inputs(self, clips: Sequence[Clip]) -> dict[str, Tensor]:  # noqa: ARG002 - for those that have some
        """Return further inputs of the model for the clips of a batch that are no stills."""
        return {}

    def encode(self, model: Any, inputs: TensorTree) -> TensorTree:  # noqa: ARG002 - for those that can be split
        """Compute the part of the first stage with `model`, whole or that stage alone. By default, it is nothing."""
        return inputs

    def generate(self, model: Any, options: dict[str, Any], inputs: TensorTree) -> TensorTree:
        """Generate the tokens of descriptions.

        Args:
            model: The model, whole or its second stage.
            options: Options of transformers' `generate`.
            inputs: What `encode` returned.

        Returns:
            What `runtime.generation.generate` returns.
        """
        return generate(model, options, dict(inputs))
