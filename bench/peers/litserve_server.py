"""LitServe with the same model: requests of one frame each, which it joins.

python -m peers.litserve_server --weights demo/models/captioner --port 8000
"""

# No annotations from the future here: LitServe looks at those of decode_request, and does not know them as text.

import argparse
from typing import Any

import litserve
import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from peers.plain_model import PlainCaptioner

MOST_JOINED = 32
"""Frames: caption.yaml's device batch."""

WAIT_SECONDS = 0.02
"""That a batch may wait for more frames: config-single.properties' delay."""


class CaptionApi(litserve.LitAPI):  # type: ignore[misc]  # it is not typed
    """A form whose field `frame` is a file: the bytes of a square RGB frame, (S, S, 3)."""

    def __init__(self, weights: str) -> None:
        super().__init__(max_batch_size=MOST_JOINED, batch_timeout=WAIT_SECONDS)
        self._weights = weights

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        """In the worker."""
        self._captioner = PlainCaptioner(self._weights)

    def decode_request(self, request: Request) -> NDArray[np.uint8]:
        """The frame."""
        form: Any = request  # LitServe hands on what it parsed
        flat = np.frombuffer(form["frame"].file.read(), np.uint8)
        side = round((len(flat) / 3) ** 0.5)
        return flat.reshape(side, side, 3)

    def batch(self, inputs: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """As they are."""
        return inputs

    def predict(self, x: list[NDArray[np.uint8]]) -> list[str]:
        """A caption each."""
        return self._captioner.caption(x)

    def unbatch(self, output: list[str]) -> list[str]:
        """As they are."""
        return output

    def encode_response(self, output: str) -> dict[str, str]:
        """JSON."""
        return {"caption": output}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    server = litserve.LitServer(CaptionApi(options.weights), accelerator="cpu")
    server.run("127.0.0.1", options.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
