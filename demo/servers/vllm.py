"""Starts a vLLM for one test or benchmark on a loopback port. `scripts/peers vllm FOLDER` installs it for CPUs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from servers.torchserve import LOAD_SECONDS

CAPTIONER_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Chat template for BLIP-2, which has none: a caption continues the prompt, which mostly is empty."""


@dataclass
class ServedVLLM:
    """A vLLM that can be killed, and started again at the same address."""

    folder: Path
    """Folder of scripts/peers."""
    model: Path
    """Folder of the weights."""
    name: str
    """Name of the model."""
    log: Path
    options: Sequence[str] = ()
    port: int = 0
    """Port of the server; 0 for a free one."""
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]

    @property
    def address(self) -> str:
        """Address for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Address for `--server`."""
        return f"openai+{self.address}/v1"

    def start(self) -> None:
        """Start it, and wait until it is healthy. Raises RuntimeError if it ends before."""
        command = [str(self.folder / "bin" / "vllm"), "serve", str(self.model), "--served-model-name", self.name]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.options],
                env={**os.environ, **settings, "VLLM_NO_USAGE_STATS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.address}/health") as answer:  # noqa: S310 - on this machine
                if answer.status == 200:
                    return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"{self.address}: vLLM is not ready; its log ends with {self.log.read_text()[-2000:]}")

    def processes(self) -> list[psutil.Process]:
        """Return its processes."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def kill(self) -> None:
        """Kill all its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def serve_vllm(folder: Path, model: Path, name: str, directory: Path, *options: str) -> Iterator[ServedVLLM]:
    """Serve a model until the end of the block.

    Args:
        folder: Folder of scripts/peers.
        model: Folder of the weights.
        name: Name of the model.
        directory: Existing folder for the log.
        options: Further options of `vllm serve`.
    """
    server = ServedVLLM(folder, model, name, directory / f"{name}-vllm.log", options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def captioner_template(directory: Path) -> tuple[str, str]:
    """Write the chat template of captioners into a folder, and return the options that name it."""
    path = directory / "captioner.jinja"
    path.write_text(CAPTIONER_TEMPLATE)
    return "--chat-template", str(path)


CLIPS_OPTIONS = ("--trust-request-mm-kwargs", "--max-model-len", "4096", "--max-num-seqs", "32")
"""Options for the demo clip model. The first one lets clients give the times of frames."""

OUR_CLIPS = ("--family", "qwen3-vl", "--clip-frame-pixels", "17408")
"""Options of `reelscribe caption --clips` for the demo clip model, which was trained with small frames."""
