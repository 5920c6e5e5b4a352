"""Servers of the handlers of this folder: one that computes nothing, and emulated models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from servers.torchserve import CONFIG, Serving, handler_modules, pack_handler, serve

FAKES = Path(__file__).parent


@contextmanager
def serve_noop(directory: Path, *, unpickle: bool = False, **overrides: str) -> Iterator[Serving]:
    """Serve the handler that computes nothing, with one worker.

    Args:
        directory: As for `serve`.
        unpickle: Whether it reads requests by pickle.loads rather than reelscribe.wire.
        overrides: Settings that replace those of config.properties.
    """
    settings = {"handler": {"unpickle": unpickle}}
    pack_handler(FAKES / "noop_handler.py", "noop", directory / "store", settings=settings, modules={})
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


@contextmanager
def serve_variants(
    directory: Path, handler: str, variants: Mapping[str, Mapping[str, Any]], *, batch_size: int
) -> Iterator[dict[str, Serving]]:
    """Serve one handler of this folder as several models, with one worker each.

    Args:
        directory: As for `serve`.
        handler: The name of the handler's file, without the suffix.
        variants: The settings of each model under `handler:` in its YAML, by its name.
        batch_size: How many requests TorchServe joins for a call of a handler.
    """
    joining = {"batchSize": batch_size, "maxBatchDelay": 20} if batch_size > 1 else {}
    for name, variant in variants.items():
        settings = {"minWorkers": 1, "maxWorkers": 1, **joining, "handler": {"model": "emulated", **variant}}
        script = FAKES / f"{handler}.py"
        pack_handler(script, name, directory / "store", settings=settings, modules=handler_modules())
    with serve(directory, next(iter(variants)), CONFIG) as serving:
        yield {name: replace(serving, model=name) for name in variants}
