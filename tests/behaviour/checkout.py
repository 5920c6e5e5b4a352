"""Runs commands and a TorchServe of one of the two trees."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

PROBE = Path(__file__).with_name("probe.py")
REELSCRIBE = ("-c", "from reelscribe.cli import app; app(prog_name='reelscribe')")
"""Arguments of Python that run `reelscribe` from PYTHONPATH. The installed command would always run the same tree."""

SOURCES = "demo/media"

VARIANTS: dict[str, list[str]] = {
    "every": ["annotate", "--every", "7", "--reuse", "--resize", "exact"],
    "fps": ["annotate", "--fps", "2", "--start", "1", "--end", "5"],
    "frames": ["annotate", "--frames", "8", "--resize", "planes"],
    "keyframes": ["annotate", "--keyframes"],
    "words": ["annotate", "--word-times", "--vad"],
    "language": ["annotate", "--language", "fr", "--task", "translate", "--frames-per-request", "5"],
    "caption": ["caption"],
    "transcribe": ["transcribe"],
}
"""Commands and options of the runs to compare, besides a run with the defaults."""


@dataclass
class Checkout:
    """One of the two trees. Its commands run in a folder of inputs that both trees share."""

    root: Path
    inputs: Path
    """Contains demo/media, demo/models and library. Models are named by their paths, so both trees need equal paths."""
    reference: Path
    """Outputs of the other commit; some of them are inputs of this tree."""
    scratch: Path
    """Folder for temporary files."""
    stack: ExitStack
    """Stops the server when it is closed."""

    def process(
        self, *words: str | Path, cwd: Path | None = None, python_path: tuple[Path, ...] = ()
    ) -> dict[str, Any]:
        """Return arguments for `subprocess` that run Python with the packages of this tree."""
        folders = [self.root / "clients", *python_path]
        environment = {**os.environ, "PYTHONPATH": ":".join(map(str, folders)), "HF_HUB_OFFLINE": "1"}
        return {"args": [sys.executable, *map(str, words)], "cwd": cwd or self.inputs, "env": environment}

    def run(self, *words: str | Path, statuses: tuple[int, ...] = (0,), **options: Any) -> str:
        """Run Python and return its output. Raises RuntimeError for an unexpected exit status."""
        done = subprocess.run(**self.process(*words, **options), capture_output=True, text=True)
        if done.returncode not in statuses:
            raise RuntimeError(f"{self.root}: {words}: exit status {done.returncode}: {done.stderr or done.stdout}")
        return str(done.stdout)

    def probe(self, *words: str | Path, **options: Any) -> str:
        """Run a function of probe.py."""
        return self.run(PROBE, *words, **options)

    def reelscribe(self, *words: str | Path, **options: Any) -> str:
        """Run a `reelscribe` command."""
        return self.run(*REELSCRIBE, *words, **options)

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start a `reelscribe` command in the background; its standard error is a pipe."""
        arguments = self.process(*REELSCRIBE, *words, **options)
        return subprocess.Popen(**arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def annotate(self, name: str, *words: str | Path, **options: Any) -> Path:
        """Run the command in `words`, such as `annotate`, with a scratch folder as output, and return the folder."""
        out = self.scratch / name
        self.reelscribe(*words, "--out", out, *self.access(), **options)
        return out

    @cached_property
    def quiet(self) -> Path:
        """Output folder of an uninterrupted run with the default options."""
        return self.annotate("quiet", "annotate", SOURCES)

    @cached_property
    def runs(self) -> dict[str, Path]:
        """Output folders of the quiet run and of a run for each of VARIANTS, by name."""
        variants = {name: self.annotate(name, *words, SOURCES) for name, words in VARIANTS.items()}
        return {"quiet": self.quiet, **variants}

    @cached_property
    def store(self) -> Path:
        """A model store with the archives of both demo models."""
        store = self.scratch / "store"
        for name, kind in (("captioner", "caption"), ("speech", "speech")):
            weights = self.inputs / "demo" / "models" / name
            words = ("archive", name, "--handler", kind, "--weights", weights, "--model-store", store)
            self.reelscribe(*words, cwd=self.root)
        return store

    @cached_property
    def server(self) -> Path:
        """Directory of a TorchServe that runs until `stack` is closed."""
        lines = (self.root / "config.properties").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if line[:1].isalpha())
        for name, value in settings.items():
            if name.endswith("_port"):
                settings[name] = str(free_port())
            elif value.startswith("http://"):
                settings[name] = f"http://127.0.0.1:{free_port()}"
        if "metrics_config" in settings:
            settings["metrics_config"] = str(self.root / settings["metrics_config"])
        config, directory = self.scratch / "config.properties", self.scratch / "server"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.stack.callback(self.reelscribe, "server", "stop", "--directory", directory, cwd=self.scratch)
        options = ("--directory", directory, "--config", config, "--model-store", self.store)
        self.reelscribe("server", "start", *options)
        return directory

    def address(self, api: str) -> str:
        """Return the address of an API of the server: inference, management or metrics."""
        settings = (self.server / "config.properties").read_text()
        found = re.search(rf"^{api}_address=(.*)$", settings, re.MULTILINE)
        assert found, f"{api}_address is in no line of {settings}"
        return found[1]

    def access(self, url: str | None = None) -> list[str]:
        """Return the options for clients of the server, or of a proxy in front of it."""
        return ["--server", url or self.address("inference"), "--key-file", f"{self.server}/key_file.json"]


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
