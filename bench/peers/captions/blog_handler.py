"""The TorchServe handler of the blog "Video captioning in bulk": pickled frames in, captions out.

A request is a frame, (H, W, 3), or a prebatch of frames, (N, H, W, 3) or a list. All requests that TorchServe joined
run through the model at once. The handler unpickles any body, so only the clients of this folder may reach it.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peers.captions.plain_model import PlainCaptioner


class BlogHandler:
    """One worker."""

    def load(self, context: Any) -> None:
        """Load the weights that the archive's YAML names, with its options of `generate`."""
        self._captioner = PlainCaptioner(**context.model_yaml_config["handler"])

    def answer(self, data: list[dict[str, Any]]) -> list[str | list[str]]:
        """Return a caption for each frame, and a list of captions for each prebatch."""
        requests = [pickle.loads(row["body"]) for row in data]  # noqa: S301 - the blog does so
        frames: list[NDArray[np.uint8]] = []
        for request in requests:
            frames += [request] if _is_frame(request) else list(request)
        captions = iter(self._captioner.caption(frames))
        return [next(captions) if _is_frame(request) else [next(captions) for _ in request] for request in requests]


def _is_frame(request: Any) -> bool:
    return isinstance(request, np.ndarray) and request.ndim == 3


_handler = BlogHandler()


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[str | list[str]] | None:
    """TorchServe's entry point; `data` is None when the worker starts."""
    if data is None:
        _handler.load(context)
        return None
    return _handler.answer(data)
