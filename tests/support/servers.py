"""Real TorchServes for the tests of `e2e/`, and the ways in which those tests reach them."""

import io
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
from typer.testing import CliRunner, Result

from reelscribe import CaptionClient, Server
from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.server.config_properties import read_properties
from servers import torchserve
from servers.torchserve import CONFIG, HANDLERS, ROOT, Serving
from support.alike import assert_alike

WAYS_OF_CHOOSING = {"--every", "--fps", "--frames", "--keyframes", "--all-frames"}


def every_frame(command: str, words: list[str]) -> list[str]:
    """The option for all frames, so that runs have something to do, unless `words` choose or nothing is captioned."""
    return [] if command in ("transcribe", "shots") or WAYS_OF_CHOOSING & {*words} else ["--all-frames"]


class RunningServer(Serving):
    """A server that runs, one of its models, and how tests reach it."""

    def with_model(self, model: str) -> "RunningServer":
        """The same server with another of its models; "NAME/VERSION" is one version of it."""
        return replace(self, model=model)

    def client(self) -> CaptionClient:
        return CaptionClient([Server(self.url, self.token)], self.model)

    def workers(self) -> list[int]:
        """Process ids of the model's workers, as TorchServe's management API lists them."""
        address, key = self.instance.address("management_address"), self.instance.key("management")
        request = urllib.request.Request(f"{address}/models/{self.model}", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request) as response:
            (version,) = json.load(response)
        return [worker["pid"] for worker in version["workers"]]

    def caption(self, *arguments: str | Path) -> Result:
        """Run `reelscribe caption` with the model, against this server unless `arguments` name others, on every frame
        unless they choose some.
        """
        model = [] if "--model" in arguments else ["--model", self.model]
        return self.run("caption", *model, *arguments)

    def run(self, command: str, *arguments: str | Path) -> Result:
        """Run a command of `reelscribe` in the same way, with its default models."""
        words = list(map(str, arguments))
        server = [] if "--server" in words else ["--server", self.url]
        key_file = [] if "--key-file" in words else ["--key-file", str(self.instance.key_file)]
        words = [command, *server, *key_file, *every_frame(command, words), *words]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    def command(self, *arguments: str | Path, name: str = "caption") -> list[str]:
        """The same with the model as a command line, for a process of its own; without the server if nodes serve."""
        words = list(map(str, arguments))
        access = ["--server", self.url, "--key-file", str(self.instance.key_file)]
        served = [
            "--shot-model" if name == "shots" else "--model",
            self.model,
            *([] if "--serve-nodes" in words else access),
        ]
        return [sys.executable, "-m", "reelscribe.cli", name, *served, *every_frame(name, words), *words]

    async def post(self, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Send `body` in pieces to the model, and return status and text of the response."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                self.predictions, data=io.BytesIO(body), headers={**self.headers, **(headers or {})}
            ) as response,
        ):
            return response.status, await response.text()


def caption_texts(answer: str) -> str | list[str]:
    """The text of the caption in an answer of a captioner, or the texts of a list of captions."""
    value = json.loads(answer)
    return [caption["text"] for caption in value] if isinstance(value, list) else value["text"]


def quick_java(config: Path = CONFIG) -> dict[str, str]:
    """The settings with which Java starts in half the time: it compiles less, and has the simplest collector."""
    return {"vmargs": f"{read_properties(config.read_text())['vmargs']} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextmanager
def serve(directory: Path, model: str, config: Path = CONFIG) -> Iterator[RunningServer]:
    """Run a server with the archives in `directory`/store until the `with` block ends."""
    with torchserve.serve(directory, model, config, **quick_java(config)) as serving:
        yield RunningServer(serving.instance, serving.model)


@contextmanager
def serve_demo_models(directory: Path) -> Iterator[RunningServer]:
    """Serve both demo models, and whatever else is in `directory`/store; checks that nothing is left behind."""
    for name, kind in (("captioner", "caption"), ("speech", "speech")):
        weights = ROOT / "demo" / "models" / name
        archive.build(name, kind, str(weights), directory / "store", handlers=HANDLERS)
    with serve(directory, "captioner") as running:
        yield running
    assert running.instance.processes() == []


def settings_file(folder: Path, changes: dict[str, str]) -> Path:
    """Write our settings with some of them changed, for the command line."""
    settings = {**read_properties(CONFIG.read_text()), **quick_java(), **changes}
    path = folder / "config.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def run_with_curl(script: str, directory: Path) -> str:
    """Run a script of bash in the root of the project, with a stand-in if there is no curl; return its output."""
    tools = directory / "bin"
    tools.mkdir()
    if shutil.which("curl") is None:
        (tools / "curl").symlink_to(Path(__file__).with_name("curl"))
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def read_records(out: Path) -> list[dict]:
    """The records of an output folder."""
    return [json.loads(line) for line in (out / "annotations.jsonl").read_text().splitlines()]


def assert_same_records(out: Path, expected: Path) -> None:
    """Fail unless two output folders have records that are alike."""
    assert_alike(read_records(out), read_records(expected))


def record_of(out: Path, name: str) -> dict:
    """The record of the source whose path ends with `name`."""
    return next(record for record in read_records(out) if record["source"]["path"].endswith(name))


def wait_until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    """Poll until `condition` holds; fails if the process ends first."""
    while not condition():
        try:
            status = process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"the process ended with status {status} before it came to what the test waits for")


def saved_frames(out: Path) -> int:
    """How many frames of the first eight sources the ledger has captions of; 0 while the ledger is being created."""
    with suppress(OutputError), LedgerReader(out) as ledger:
        return sum(1 for job in range(1, 9) for _ in ledger.frame_results(job))
    return 0
