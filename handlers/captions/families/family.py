"""How a family of captioning models takes frames and prompts, and generates."""

from __future__ import annotations

from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

from reelscribe.contract.frames import InputSize
from runtime.generation import generate
from runtime.second_stage import TensorTree


class Family:
    """A family of models; this base class is right for most models of transformers.

    The first stage makes inputs of frames and the prompt (`encode`, `encode_prompt`), and the second generates tokens
    from them (`generate`).
    """

    stages: ClassVar[tuple[type[Any], type[Any]] | None] = None
    """Classes that load only the weights of the first and of the second stage; None if the model cannot be split."""

    def encode(self, model: Any, pixel_values: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - for those that encode
        """Make the inputs of the second stage from frames.

        Args:
            model: The model of transformers, or its first stage.
            pixel_values: (B, 3, height, width).
        """
        return {"pixel_values": pixel_values}

    def encode_prompt(self, processor: Any, prompt: str, size: InputSize) -> dict[str, Tensor]:
        """Make the inputs of the second stage from a prompt, (1, T) each, with image tokens if the model has them.

        Args:
            processor: The processor of the model.
            prompt: A text that is not empty.
            size: The input size of the model.
        """
        image = Image.new("RGB", (size.width, size.height))
        inputs = processor(images=image, text=prompt, return_tensors="pt")
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def generator(self, model: Any) -> Any:
        """Return the part of a model that generates."""
        return model

    def generate(self, model: Any, options: dict[str, Any], inputs: TensorTree) -> TensorTree:
        """Generate the tokens of captions: the second stage.

        Args:
            model: The model of transformers, or its second stage.
            options: Options of transformers' `generate`.
            inputs: What `encode` and `encode_prompt` returned, with a row for each frame.

        Returns:
            What `runtime.generation.generate` returns.
        """
        return generate(model, options, inputs)
