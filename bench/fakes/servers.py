"""Servers of the handlers of this folder: one that computes nothing, and an emulated speech model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_server import CONFIG, Serving, handler_modules, pack_handler, serve

FAKES = Path(__file__).parent


@contextmanager
def serve_noop(directory: Path, **overrides: str) -> Iterator[Serving]:
    """Serve the handler that computes nothing, with one worker. `overrides` replace settings of config.properties."""
    pack_handler(FAKES / "noop_handler.py", "noop", directory / "store", settings={}, modules={})
    with serve(directory, "noop", CONFIG, default_workers_per_model="1", **overrides) as serving:
        yield serving


@contextmanager
def serve_emulated_speech(directory: Path, *, speed: float) -> Iterator[Serving]:
    """Serve an emulated speech model with one worker, which transcribes `speed` seconds of audio in a second."""
    settings = {"minWorkers": 1, "maxWorkers": 1, "handler": {"model": "emulated", "speed": speed}}
    handler = FAKES / "emulated_speech_handler.py"
    pack_handler(handler, "emulated_speech", directory / "store", settings=settings, modules=handler_modules())
    with serve(directory, "emulated_speech", CONFIG) as serving:
        yield serving
