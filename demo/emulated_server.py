"""Servers of emulated captioners: devices of a chosen speed, so that results do not depend on the machine's speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from demo_server import Serving, handler_modules, pack_handler, serve
from reelscribe.contract.frames import InputSize, PixelBudget

FRAME = InputSize(224, 224)
HANDLER = Path(__file__).with_name("emulated_handler.py")


@dataclass(frozen=True)
class Emulated:
    """A captioner on emulated devices, which sleep for as long as a device of that speed would compute."""

    frames_per_second: float
    """Speed of each device."""
    workers: int = 1
    """Workers that share each device."""
    devices: int = 1
    batch_size: int = 1
    """Requests that TorchServe joins for a call of the handler; it waits a millisecond for them."""
    frame: InputSize | PixelBudget = FRAME

    def settings(self) -> dict[str, Any]:
        """The YAML of its archive."""
        workers = self.workers * self.devices
        return {
            "minWorkers": workers,
            "maxWorkers": workers,
            "batchSize": self.batch_size,
            "maxBatchDelay": 1,
            "handler": {
                "frames_per_second": self.frames_per_second,
                "devices": self.devices,
                "frame": asdict(self.frame),
            },
        }


@contextmanager
def serve_emulated(
    directory: Path,
    config: Path,
    *,
    frames_per_second: float,
    workers: int = 1,
    frame: InputSize | PixelBudget = FRAME,
    **overrides: str,
) -> Iterator[Serving]:
    """Serve one emulated device, as the model `emulated`; the arguments are those of `serve` and `Emulated`."""
    model = Emulated(frames_per_second, workers, frame=frame)
    with serve_all_emulated(directory, config, {"emulated": model}, **overrides) as servings:
        yield servings["emulated"]


@contextmanager
def serve_all_emulated(
    directory: Path, config: Path, models: Mapping[str, Emulated], **overrides: str
) -> Iterator[dict[str, Serving]]:
    """Serve several emulated models on one server, by their names. Each model has devices of its own."""
    for name, model in models.items():
        pack_handler(HANDLER, name, directory / "store", settings=model.settings(), modules=handler_modules())
    with serve(directory, next(iter(models)), config, **overrides) as serving:
        yield {name: replace(serving, model=name) for name in models}
