"""A LitServe server of the same model, which joins requests of one frame each.

python -m peers.captions.litserve_server --weights demo/models/captioner --port 8000
"""

# No `from __future__ import annotations` here: LitServe reads those of decode_request, and not as text.

from typing import Any

import litserve
import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from lib.command import command_parser
from peers.captions.plain_model import PlainCaptioner

MOST_JOINED = 32
"""Frames in a batch, as the device batch of caption.yaml."""

WAIT_SECONDS = 0.02
"""How long a batch waits for more frames, as in config-single.properties."""


class CaptionApi(litserve.LitAPI):  # type: ignore[misc]  # LitServe ships no types
    """Answers a form whose field `frame` is a file with the bytes of a square RGB frame, (S, S, 3)."""

    def __init__(self, weights: str) -> None:
        super().__init__(max_batch_size=MOST_JOINED, batch_timeout=WAIT_SECONDS)
        self._weights = weights

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        """Load the model, in the worker."""
        self._captioner = PlainCaptioner(self._weights)

    def decode_request(self, request: Request) -> NDArray[np.uint8]:
        """Return the frame of a request."""
        form: Any = request  # in fact the parsed form
        flat = np.frombuffer(form["frame"].file.read(), np.uint8)
        side = round((len(flat) / 3) ** 0.5)
        return flat.reshape(side, side, 3)

    def batch(self, inputs: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """Return the frames as a list; they are not stacked."""
        return inputs

    def predict(self, x: list[NDArray[np.uint8]]) -> list[str]:
        """Return a caption for each frame."""
        return self._captioner.caption(x)

    def unbatch(self, output: list[str]) -> list[str]:
        """Return the captions of the requests."""
        return output

    def encode_response(self, output: str) -> dict[str, str]:
        """Return the JSON of an answer."""
        return {"caption": output}


def main() -> None:
    """Run the server."""
    parser = command_parser(__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    server = litserve.LitServer(CaptionApi(options.weights), accelerator="cpu")
    server.run("127.0.0.1", options.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
