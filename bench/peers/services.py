"""Servers of the ways that are compared, each with one worker on one thread, on free ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from servers.torchserve import LOAD_SECONDS, Serving


@dataclass(frozen=True)
class Service:
    """A running server."""

    options: tuple[str, ...]
    """Options of its client."""
    processes: tuple[psutil.Process, ...]
    """Its processes."""

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Let a suspended server run for the length of the block."""
        self.resume()
        try:
            yield self
        finally:
            self.suspend()

    def suspend(self) -> None:
        """Stop the processes where they are, as some servers compute even while they wait for requests."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Let a suspended server go on."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @classmethod
    def of(cls, serving: Serving, *options: str) -> Self:
        """A TorchServe, whose clients have these options."""
        return cls(options, tuple(serving.instance.processes()))

    @classmethod
    def ours(cls, serving: Serving) -> Self:
        """A TorchServe with one of our handlers, for clients that need its key."""
        return cls.of(serving, "--url", serving.url, "--key-file", str(serving.instance.key_file))


@contextmanager
def serve_module(
    module: str, directory: Path, options: Sequence[str], *, python: str = sys.executable
) -> Iterator[Service]:
    """Run a server that is a Python program.

    Args:
        module: Name of the program, which has an option `--port`.
        directory: A folder for its log, which must not exist.
        options: Its other options.
        python: The Python that runs it.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    directory.mkdir()
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [python, "-m", module, *options, "--port", str(port)], env=environment(), stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, url, directory / "log")
        parent = psutil.Process(process.pid)
        yield Service(("--url", url), (parent, *parent.children(recursive=True)))
    finally:
        _end(process)


def environment() -> dict[str, str]:
    """Environment of the programs of this folder; scripts/bench has set PYTHONPATH."""
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310 - on this machine
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{url}: the server is not ready; its log ends with {log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a server with its children, which might go on without it."""
    with suppress(psutil.NoSuchProcess):
        for member in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.kill()
    process.wait()
