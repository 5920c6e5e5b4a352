"""Starts a TorchServe for one test or benchmark, with the demo captioner or other archives, on free loopback ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reelscribe.archive import build as archive
from reelscribe.server import launcher as server
from reelscribe.server.config_properties import free_ports, read_properties
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import StartOptions

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config.properties"
HANDLERS = ROOT / "handlers"
CAPTIONER = ROOT / "demo" / "models" / "captioner"
SPEECH = ROOT / "demo" / "models" / "speech"
CLIPS = ROOT / "demo" / "models" / "clips"

LOAD_SECONDS = 600.0
"""Timeout of a start. It is long, as a busy machine is no reason to give up."""


@dataclass(frozen=True)
class Serving:
    """A running server and the name of one of its models."""

    instance: Instance
    model: str

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the server was started with."""
        return read_properties(self.instance.config.read_text())

    @property
    def url(self) -> str:
        """Address of the inference API."""
        return self.instance.address("inference_address")

    @property
    def predictions(self) -> str:
        """URL to which requests for the model are posted."""
        return f"{self.url}/predictions/{self.model}"

    @property
    def token(self) -> str:
        """Token for the inference API."""
        return self.instance.key("inference")

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that the inference API requires."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def memory_limit(self) -> int:
        """Bytes that the server's settings allow the Java process for its heap and its direct buffers."""
        sizes = re.findall(r"-(?:Xmx|XX:MaxDirectMemorySize=)(\d+)([mg])", self.settings["vmargs"])
        return sum(int(size) * 2 ** (30 if unit == "g" else 20) for size, unit in sizes)

    def processes(self) -> dict[str, list[int]]:
        """Return the process ids of the Java process, under "java", and of the workers, under "workers"."""
        commands = {process.pid: " ".join(process.cmdline()) for process in self.instance.processes()}
        return {
            "java": [pid for pid, command in commands.items() if "ModelServer" in command],
            "workers": [pid for pid, command in commands.items() if "model_service_worker" in command],
        }


@contextmanager
def serve(directory: Path, model: str, config: Path, gpus: int = 0, /, **overrides: str) -> Iterator[Serving]:
    """Run a server until the `with` block ends.

    Args:
        directory: The server's folder is made in it. Its subfolder `store` contains the archives to serve.
        model: Name of the model that the result refers to.
        config: File with TorchServe's settings. Its ports are replaced by free ones.
        gpus: Number of GPUs that TorchServe sees, whether or not there are any; 0 for those of the machine.
        overrides: Settings that replace those in `config`.
    """
    instance = Instance(directory / "instance")
    settings = {**free_ports(), **overrides}
    options = StartOptions(config, directory / "store", load_seconds=LOAD_SECONDS, overrides=settings)
    emulated = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))} if gpus else {}
    server.start(instance, options, {**os.environ, **emulated})
    try:
        yield Serving(instance, model)
    finally:
        server.stop(instance)


@contextmanager
def serve_demo(directory: Path, config: Path) -> Iterator[Serving]:
    """Serve the demo captioner with one worker, as the model `captioner`."""
    archive.build("captioner", "caption", str(CAPTIONER), directory / "store", handlers=HANDLERS)
    with serve(directory, "captioner", config) as serving:
        yield serving


def handler_modules() -> dict[str, Path]:
    """Return all Python files of `handlers/` by their path in an archive."""
    return {str(path.relative_to(HANDLERS)): path for path in sorted(HANDLERS.rglob("*.py"))}


def pack_handler(
    handler: Path, name: str, store: Path, *, settings: Mapping[str, Any], modules: Mapping[str, Path]
) -> None:
    """Write a model archive with any handler script.

    Args:
        handler: The script with TorchServe's entry point `handle`.
        name: Name of the model; the file is `name`.mar.
        store: Folder for the archive; it is made if it does not exist.
        settings: Content of the archive's YAML file.
        modules: Files that the handler imports, by their path in the archive.
    """
    store.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", "1.0"]
    with tempfile.TemporaryDirectory() as folder:
        yaml_file = Path(folder) / "model-config.yaml"
        yaml_file.write_text(yaml.safe_dump(dict(settings)))
        command += ["--handler", str(handler), "--config-file", str(yaml_file), "--export-path", str(store)]
        subprocess.run(command, check=True, capture_output=True)
    # The archiver's option --extra-files cannot keep files in folders, so they are added here.
    with zipfile.ZipFile(store / f"{name}.mar", "a") as mar:
        for place, path in modules.items():
            mar.write(path, place)
