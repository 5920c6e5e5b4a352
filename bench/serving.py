"""A TorchServe of its own for a benchmark or a test, on ports that nobody uses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reelscribe import archive, server

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Serving:
    """A server that runs one model."""

    instance: server.Instance
    model: str

    @property
    def settings(self) -> dict[str, str]:
        """What it runs with."""
        return server.read_properties(self.instance.config.read_text())

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
    instance = server.Instance(directory / "instance")
    settings = {**server.free_ports(), **overrides}
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
    store = directory / "store"
    store.mkdir()
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", "noop", "--version", "1.0"]
    command += ["--handler", str(ROOT / "bench" / "noop_handler.py"), "--export-path", str(store)]
    subprocess.run(command, check=True, capture_output=True)
    with serve(directory, "noop", config, default_workers_per_model="1", **overrides) as serving:
        yield serving
