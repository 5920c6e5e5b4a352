"""A TorchServe of its own for a benchmark or a test, on ports that nobody uses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from reelscribe.archive.build import build as archive
from reelscribe.contract.frames import InputSize, PixelBudget
from reelscribe.server.instance import Instance
from reelscribe.server.launcher import launcher as server
from reelscribe.server.options import StartOptions
from reelscribe.server.settings import free_ports, read_properties

ROOT = Path(__file__).parents[1]
FRAME = InputSize(224, 224)


@dataclass(frozen=True)
class Serving:
    """A server that runs one model."""

    instance: Instance
    model: str

    @property
    def settings(self) -> dict[str, str]:
        """What it runs with."""
        return read_properties(self.instance.config.read_text())

    @property
    def url(self) -> str:
        """Its inference address."""
        return self.instance.address("inference_address")

    @property
    def predictions(self) -> str:
        """Where requests for the model go."""
        return f"{self.url}/predictions/{self.model}"

    @property
    def token(self) -> str:
        """For inference."""
        return self.instance.key("inference")

    @property
    def headers(self) -> dict[str, str]:
        """What every request needs."""
        return {"Authorization": f"Bearer {self.token}"}

    def processes(self) -> dict[str, list[int]]:
        """Process ids of the Java process and of the workers."""
        words = {process.pid: " ".join(process.cmdline()) for process in self.instance.processes()}
        return {
            "java": [pid for pid, line in words.items() if "ModelServer" in line],
            "workers": [pid for pid, line in words.items() if "model_service_worker" in line],
        }


@contextmanager
def serve(directory: Path, model: str, config: Path, **overrides: str) -> Iterator[Serving]:
    """Serve the archives in `directory`/store with `config`."""
    instance = Instance(directory / "instance")
    settings = {**free_ports(), **overrides}
    options = StartOptions(config, directory / "store", load_seconds=120, overrides=settings)
    server.start(instance, options, say=lambda _: None)
    try:
        yield Serving(instance, model)
    finally:
        server.stop(instance)


@contextmanager
def serve_demo(directory: Path, config: Path) -> Iterator[Serving]:
    """Serve the demo captioner with one worker."""
    weights = str(ROOT / "demo" / "models" / "captioner")
    archive.build("captioner", "caption", weights, directory / "store", handlers=ROOT / "handlers")
    with serve(directory, "captioner", config) as serving:
        yield serving


@contextmanager
def serve_noop(directory: Path, config: Path, **overrides: str) -> Iterator[Serving]:
    """Serve the handler that computes nothing, with one worker."""
    _pack(directory / "store", "noop")
    with serve(directory, "noop", config, default_workers_per_model="1", **overrides) as serving:
        yield serving


@dataclass(frozen=True)
class Emulated:
    """A model on emulated devices, which sleep for as long as a device of that speed would compute."""

    frames_per_second: float
    """Of each device."""
    workers: int = 1
    """That share each device."""
    devices: int = 1
    batch_size: int = 1
    """Requests that TorchServe joins for a call, as many as there are after a millisecond."""
    frame: InputSize | PixelBudget = FRAME

    def settings(self) -> dict[str, Any]:
        """Its YAML."""
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
    frame: InputSize | PixelBudget | None = None,
    **overrides: str,
) -> Iterator[Serving]:
    """Serve an emulated device of a certain speed, which `workers` share, for 224 x 224 or as `frame` says."""
    model = Emulated(frames_per_second, workers, frame=frame or FRAME)
    with serve_all_emulated(directory, config, {"emulated": model}, **overrides) as servings:
        yield servings["emulated"]


@contextmanager
def serve_all_emulated(
    directory: Path, config: Path, models: Mapping[str, Emulated], **overrides: str
) -> Iterator[dict[str, Serving]]:
    """Serve emulated models by their names, on one server; each has devices of its own."""
    for name, model in models.items():
        files = ["request_batch.py", "frame_requests.py", "still_image.py", "handler_metrics.py", "tally.py"]
        _pack_with_settings(directory, name, model.settings(), files, handler="emulated")
    with serve(directory, next(iter(models)), config, **overrides) as serving:
        yield {name: replace(serving, model=name) for name in models}


@contextmanager
def serve_emulated_speech(directory: Path, config: Path, *, speed: float) -> Iterator[Serving]:
    """Serve an emulated speech model, with one worker, that hears so many seconds of sound in a second."""
    _pack_with_settings(
        directory,
        "emulated_speech",
        {"minWorkers": 1, "maxWorkers": 1, "handler": {"model": "emulated", "speed": speed}},
        archive.HANDLER_FILES["speech"],
    )
    with serve(directory, "emulated_speech", config) as serving:
        yield serving


def _pack_with_settings(
    directory: Path, name: str, settings: dict[str, Any], handler_files: list[str], handler: str | None = None
) -> None:
    """An archive in `directory`/store, with its YAML and the files of `handlers` that it imports."""
    directory.mkdir(parents=True, exist_ok=True)
    yaml_file = directory / "model-config.yaml"
    yaml_file.write_text(yaml.safe_dump(settings))
    files = ",".join(str(ROOT / "handlers" / file) for file in handler_files)
    _pack(directory / "store", name, "--extra-files", files, "--config-file", str(yaml_file), handler=handler)


def _pack(store: Path, name: str, *options: str, handler: str | None = None) -> None:
    """An archive of a handler of this folder, by default the one that is called like the model."""
    store.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", "1.0"]
    command += [
        "--handler",
        str(ROOT / "bench" / f"{handler or name}_handler.py"),
        "--export-path",
        str(store),
        *options,
    ]
    subprocess.run(command, check=True, capture_output=True)
