"""A TorchServe of its own for a benchmark or a test, on ports that nobody uses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from reelscribe import archive, server
from reelscribe.instance import Instance
from reelscribe.media import FrameSize, PixelBudget
from reelscribe.server_settings import free_ports, read_properties

ROOT = Path(__file__).parents[1]


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
    server.start(instance, config, directory / "store", load_seconds=120, say=lambda _: None, overrides=settings)
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


@contextmanager
def serve_emulated(
    directory: Path,
    config: Path,
    *,
    frames_per_second: float,
    workers: int = 1,
    frame: FrameSize | PixelBudget | None = None,
) -> Iterator[Serving]:
    """Serve an emulated device of a certain speed, which `workers` share, for 224 x 224 or as `frame` says."""
    handler = {"frames_per_second": frames_per_second, "frame": asdict(frame or FrameSize(224, 224))}
    _pack_with_settings(
        directory,
        "emulated",
        {"minWorkers": workers, "maxWorkers": workers, "handler": handler},
        ["request_batch.py", "frame_requests.py", "still_image.py"],
    )
    with serve(directory, "emulated", config) as serving:
        yield serving


@contextmanager
def serve_emulated_speech(directory: Path, config: Path, *, speed: float) -> Iterator[Serving]:
    """Serve an emulated speech model, with one worker, that hears so many seconds of sound in a second."""
    _pack_with_settings(
        directory,
        "emulated_speech",
        {"minWorkers": 1, "maxWorkers": 1, "handler": {"model": "emulated", "speed": speed}},
        [
            *("model_handler.py", "model_settings.py", "request_batch.py", "device_batches.py"),
            *("speech_requests.py", "speech_chunks.py", "sound_file.py", "speech_settings.py"),
        ],
    )
    with serve(directory, "emulated_speech", config) as serving:
        yield serving


def _pack_with_settings(directory: Path, name: str, settings: dict[str, Any], handler_files: list[str]) -> None:
    """An archive in `directory`/store, with its YAML and the files of `handlers` that it imports."""
    directory.mkdir(parents=True, exist_ok=True)
    yaml_file = directory / "model-config.yaml"
    yaml_file.write_text(yaml.safe_dump(settings))
    files = ",".join(str(ROOT / "handlers" / file) for file in handler_files)
    _pack(directory / "store", name, "--extra-files", files, "--config-file", str(yaml_file))


def _pack(store: Path, name: str, *options: str) -> None:
    """An archive of a handler of this folder."""
    store.mkdir(parents=True)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", "1.0"]
    command += ["--handler", str(ROOT / "bench" / f"{name}_handler.py"), "--export-path", str(store), *options]
    subprocess.run(command, check=True, capture_output=True)
