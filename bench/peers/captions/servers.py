"""The servers of all ways to caption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from peers.services import Service, serve_module
from servers.torchserve import CAPTIONER, CONFIG, pack_handler, serve, serve_demo

HERE = Path(__file__).parent
WEIGHTS = ("--weights", str(CAPTIONER))


@contextmanager
def serve_ours(directory: Path) -> Iterator[Service]:
    """Serve our handler with our settings."""
    with serve_demo(directory, CONFIG) as serving:
        yield Service.ours(serving)


@contextmanager
def serve_blog(
    directory: Path, *, batch_size: int = 1, batch_delay_ms: int = 0, weights: Path = CAPTIONER, **generation: int
) -> Iterator[Service]:
    """Serve the blog's handler with the blog's settings, these weights, and options of `generate`."""
    pack_handler(
        HERE / "blog_handler.py",
        "blip2",
        directory / "store",
        settings={"handler": {"weights": str(weights), "generation": generation}},
        modules={"peers/captions/plain_model.py": HERE / "plain_model.py"},
    )
    version = {"defaultVersion": True, "marName": "blip2.mar", "minWorkers": 1, "maxWorkers": 1}
    version |= {"batchSize": batch_size, "maxBatchDelay": batch_delay_ms, "responseTimeout": 120}
    models = json.dumps({"blip2": {"1.0": version}})
    with serve(directory, "blip2", HERE / "blog.properties", models=models) as serving:
        yield Service.of(serving, "--url", serving.predictions)


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Service]]] = {
    "ours": serve_ours,
    "blog": serve_blog,
    "blog, joining": lambda directory: serve_blog(directory, batch_size=128, batch_delay_ms=100),
    "flask": lambda directory: serve_module("peers.captions.flask_server", directory, WEIGHTS),
    "litserve": lambda directory: serve_module("peers.captions.litserve_server", directory, WEIGHTS),
}
"""Servers by name; each needs a directory of its own."""
