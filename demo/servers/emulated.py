"""Serves captioners on emulated devices of a chosen speed, so that results do not depend on the machine's speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reelscribe.contract.frames import InputSize, PixelBudget
from servers.torchserve import Serving, handler_modules, pack_handler, serve

FRAME = InputSize(224, 224)
MAX_FRAMES = 512
"""Most frames of a call, by default."""
HANDLER = Path(__file__).with_name("emulated_handler.py")


@dataclass(frozen=True)
class Emulated:
    """A captioner on emulated devices, which sleep as long as a device of the given speed would compute."""

    frames_per_second: float
    """Speed of each device, once a call has begun."""
    workers: int | None = 1
    """Number of workers that share each device. None leaves workers, devices and batches to the start of the server, as
    archives do that are built for no certain GPUs."""
    devices: int = 1
    batch_size: int = 1
    """Largest number of requests that TorchServe passes to one call of the handler."""
    batch_delay: int = 1
    """Milliseconds for which TorchServe waits for more requests."""
    call_seconds: float = 0.0
    """Seconds that each call takes besides, however few its frames are, as the launches of a GPU's kernels do."""
    frame: InputSize | PixelBudget = FRAME
    """Input size of the model."""
    max_frames: int = MAX_FRAMES
    """Most frames of a call."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of another kind of handler, which decide how many requests the start of the server joins."""
    workers_per_gpu: int = 1
    """Number of workers of each GPU, where `workers` is None."""

    def settings(self) -> dict[str, Any]:
        """Return the content of the archive's YAML file."""
        handler = {
            "frames_per_second": self.frames_per_second,
            "call_seconds": self.call_seconds,
            "devices": self.devices,
            "frame": asdict(self.frame),
            "max_frames": self.max_frames,
            **self.limits,
        }
        if self.workers is None:
            return {"workersPerGpu": self.workers_per_gpu, "handler": handler}
        workers = self.workers * self.devices
        joining = {"batchSize": self.batch_size, "maxBatchDelay": self.batch_delay}
        return {"minWorkers": workers, "maxWorkers": workers, **joining, "handler": handler}


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
    """Serve a captioner with one emulated device as the model `emulated`.

    Args:
        directory: As for `serve`.
        config: As for `serve`.
        frames_per_second: As for `Emulated`.
        workers: As for `Emulated`.
        frame: As for `Emulated`.
        overrides: As for `serve`.
    """
    model = Emulated(frames_per_second, workers, frame=frame)
    with serve_all_emulated(directory, config, {"emulated": model}, **overrides) as servings:
        yield servings["emulated"]


@contextmanager
def serve_all_emulated(
    directory: Path, config: Path, models: Mapping[str, Emulated], gpus: int = 0, /, **overrides: str
) -> Iterator[dict[str, Serving]]:
    """Serve several emulated captioners on one server.

    Args:
        directory: As for `serve`.
        config: As for `serve`.
        models: The captioners by name. Each has its own devices.
        gpus: As for `serve`.
        overrides: As for `serve`.
    """
    for name, model in models.items():
        pack_handler(HANDLER, name, directory / "store", settings=model.settings(), modules=handler_modules())
    with serve(directory, next(iter(models)), config, gpus, **overrides) as serving:
        yield {name: replace(serving, model=name) for name in models}
