"""The servers of all ways to caption, each with one worker on one thread, on free ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from demo_server import CAPTIONER, CONFIG, LOAD_SECONDS, Serving, pack_handler, serve, serve_demo

PEERS = Path(__file__).parent


@dataclass(frozen=True)
class Service:
    """A running server."""

    options: tuple[str, ...]
    """Options of its client."""
    pids: tuple[int, ...]
    """Ids of its processes."""


@contextmanager
def serve_ours(directory: Path) -> Iterator[Service]:
    """Serve our handler with our settings."""
    with serve_demo(directory, CONFIG) as serving:
        yield _service(serving, "--url", serving.url, "--key-file", str(serving.instance.key_file))


@contextmanager
def serve_blog(directory: Path, *, batch_size: int, batch_delay_ms: int) -> Iterator[Service]:
    """Serve the blog's handler with the blog's settings."""
    pack_handler(
        PEERS / "blog_handler.py",
        "blip2",
        directory / "store",
        settings={"handler": {"weights": str(CAPTIONER)}},
        modules={"peers/plain_model.py": PEERS / "plain_model.py"},
    )
    version = {"defaultVersion": True, "marName": "blip2.mar", "minWorkers": 1, "maxWorkers": 1}
    version |= {"batchSize": batch_size, "maxBatchDelay": batch_delay_ms, "responseTimeout": 120}
    models = json.dumps({"blip2": {"1.0": version}})
    with serve(directory, "blip2", PEERS / "blog.properties", models=models) as serving:
        yield _service(serving, "--url", serving.predictions)


@contextmanager
def serve_module(module: str, directory: Path) -> Iterator[Service]:
    """Run a server that is a Python program of this folder."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    directory.mkdir()
    command = [sys.executable, "-m", module, "--weights", str(CAPTIONER), "--port", str(port)]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, url, directory / "log")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        yield Service(("--url", url), tuple(member.pid for member in family))
    finally:
        _end(process)


SERVICES: dict[str, Callable[[Path], AbstractContextManager[Service]]] = {
    "ours": serve_ours,
    "blog": lambda directory: serve_blog(directory, batch_size=1, batch_delay_ms=0),
    "blog, joining": lambda directory: serve_blog(directory, batch_size=128, batch_delay_ms=100),
    "flask": lambda directory: serve_module("peers.flask_server", directory),
    "litserve": lambda directory: serve_module("peers.litserve_server", directory),
}
"""Servers by name; each needs a directory of its own."""


def environment() -> dict[str, str]:
    """Environment of the programs of this folder; scripts/bench has set PYTHONPATH."""
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def _service(serving: Serving, *options: str) -> Service:
    return Service(options, tuple(process.pid for process in serving.instance.processes()))


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
    family = psutil.Process(process.pid).children(recursive=True)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.kill()
    process.wait()
