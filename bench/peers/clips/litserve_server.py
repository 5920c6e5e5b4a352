"""A LitServe server of a clip model, which joins requests of one clip each.

    python -m peers.clips.litserve_server --model handler --weights demo/models/clips --prompt "What?" \
        --wait-seconds 0.02 --port 8000

--model handler runs the model by the code of our handler, and --model card by that of the model card.
"""

# No `from __future__ import annotations` here: LitServe reads those of decode_request, and not as text.

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import litserve
import numpy as np
import torch
from fastapi import Request

from lib.command import command_parser
from peers.clips.card import CardModel, SampledFrames

MOST_JOINED = 8
"""Clips in a batch, as the device batch of clip.yaml."""

Describe = Callable[[Sequence[SampledFrames]], list[str]]


def load_handler_model(weights: str, prompt: str) -> Describe:
    """Load the model as our handler does."""
    # Imported here, as the Python that runs the model card's code may not have what our handler needs.
    from clips.describer import ClipSettings, Describer
    from reelscribe.contract.clips import Clip

    torch.set_num_threads(1)
    describer = Describer(ClipSettings(weights, prompt=prompt), torch.device("cpu"))
    return lambda clips: [
        answer.text for answer in describer.describe([[Clip(clip.frames, clip.times) for clip in clips]])
    ]


def load_card_model(weights: str, prompt: str) -> Describe:
    """Load the model as its card does."""
    return CardModel(weights, prompt).describe


MODELS = {"handler": load_handler_model, "card": load_card_model}


class ClipApi(litserve.LitAPI):  # type: ignore[misc]  # LitServe ships no types
    """Answers a form with the file `frames`, the bytes of RGB frames, and JSON of their `shape` and `times`."""

    def __init__(self, load: Callable[[], Describe], wait_seconds: float) -> None:
        super().__init__(max_batch_size=MOST_JOINED, batch_timeout=wait_seconds)
        self._load = load

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        """Load the model, in the worker."""
        self._describe = self._load()

    def decode_request(self, request: Request) -> SampledFrames:
        """Return the clip of a request."""
        form: Any = request  # in fact the parsed form
        levels = np.frombuffer(bytearray(form["frames"].file.read()), np.uint8)
        return SampledFrames(levels.reshape(json.loads(form["shape"])), json.loads(form["times"]))

    def batch(self, inputs: list[SampledFrames]) -> list[SampledFrames]:
        """Return the clips as a list; their sizes may differ."""
        return inputs

    def predict(self, x: list[SampledFrames]) -> list[str]:
        """Return a description for each clip."""
        return self._describe(x)

    def unbatch(self, output: list[str]) -> list[str]:
        """Return the descriptions of the requests."""
        return output

    def encode_response(self, output: str) -> dict[str, str]:
        """Return the JSON of an answer."""
        return {"description": output}


def main() -> None:
    """Run the server."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--wait-seconds", type=float, required=True, help="how long a batch waits for more clips")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    api = ClipApi(partial(MODELS[options.model], options.weights, options.prompt), options.wait_seconds)
    litserve.LitServer(api, accelerator="cpu").run(
        "127.0.0.1", options.port, log_level="warning", generate_client_file=False
    )


if __name__ == "__main__":
    main()
