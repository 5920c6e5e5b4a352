"""One real TorchServe with the real handler and the demo model, for all tests here."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from typer.testing import CliRunner, Result

from demo_server import Serving, serve
from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.server.settings import read_properties

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config.properties"
CONFIG_SINGLE = ROOT / "config-single.properties"


class Running(Serving):
    """A server that runs, and how to reach it."""

    def client(self) -> CaptionClient:
        return CaptionClient([Server(self.url, self.token)], self.model)

    def workers(self) -> list[int]:
        return self.processes()["workers"]

    def caption(self, *arguments: str | Path) -> Result:
        """`reelscribe caption` with these arguments, against this server unless they name another."""
        return self.run("caption", *arguments)

    def run(self, command: str, *arguments: str | Path) -> Result:
        """Another command of `reelscribe` in the same way."""
        words = list(map(str, arguments))
        server = [] if "--server" in words else ["--server", self.url]
        key_file = [] if "--key-file" in words else ["--key-file", str(self.instance.key_file)]
        return CliRunner().invoke(app, [command, *server, *key_file, *words], catch_exceptions=False)

    def command(self, *arguments: str | Path, name: str = "caption") -> list[str]:
        """The same as a command line, for a process of its own."""
        access = ["--server", self.url, "--key-file", str(self.instance.key_file), "--model", self.model]
        return [sys.executable, "-m", "reelscribe.cli", name, *access, *map(str, arguments)]


@contextmanager
def serving(
    directory: Path, weights: str, *, model: str = "captioner", config: Path = CONFIG, **settings: object
) -> Iterator[Running]:
    """A server of the demo model under some name, with some settings of caption.yaml changed."""
    mar = archive.build(model, "caption", weights, directory / "store", handlers=ROOT / "handlers")
    change_settings(mar, **settings)
    with serve(directory, model, config) as running:
        yield Running(running.instance, running.model)
    assert running.instance.processes() == []


@contextmanager
def serving_both(directory: Path, weights: str, speech_weights: str) -> Iterator[Running]:
    """A server of both demo models."""
    archive.build("speech", "speech", speech_weights, directory / "store", handlers=ROOT / "handlers")
    with serving(directory, weights) as running:
        yield running


def settings_file(folder: Path, changes: dict[str, str]) -> Path:
    """Our settings with some of them changed, for the command line."""
    (folder / "handlers").symlink_to(ROOT / "handlers")  # where they look for what is measured
    settings = {**read_properties(CONFIG.read_text()), **changes}
    path = folder / "config.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def put(mar: Path, name: str, content: str) -> None:
    """Replace a file of an archive."""
    with zipfile.ZipFile(mar) as old:
        files = {each: old.read(each) for each in old.namelist()}
    with zipfile.ZipFile(mar, "w") as new:
        for each, data in {**files, name: content.encode()}.items():
            new.writestr(each, data)


def change_settings(mar: Path, **changes: object) -> None:
    """Put other settings into an archive."""
    with zipfile.ZipFile(mar) as old:
        settings = yaml.safe_load(old.read("model-config.yaml"))
    put(mar, "model-config.yaml", yaml.safe_dump({**settings, **changes}))


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, demo_model: str) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("server"), demo_model) as instance:
        yield instance


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory, demo_model: str, demo_speech: str) -> Iterator[Running]:
    """A server of the captioner and the speech model."""
    with serving_both(tmp_path_factory.mktemp("both"), demo_model, demo_speech) as instance:
        yield instance


@pytest.fixture(scope="session")
def joining(tmp_path_factory: pytest.TempPathFactory, demo_model: str) -> Iterator[Running]:
    """A server that joins single frames, under the name that the blog's clients know."""
    with serving(tmp_path_factory.mktemp("joining"), demo_model, model="blip2", config=CONFIG_SINGLE) as instance:
        yield instance


async def post(running: Running, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Send `body` in pieces; status and text of the answer."""
    headers = {**running.headers, **(headers or {})}
    async with (
        aiohttp.ClientSession() as session,
        session.post(running.predictions, data=io.BytesIO(body), headers=headers) as response,
    ):
        return response.status, await response.text()


def run_with_curl(script: str, directory: Path) -> str:
    """What a script of bash says, in the root of the project; where there is no curl, with a stand-in."""
    tools = directory / "bin"
    tools.mkdir()
    if shutil.which("curl") is None:
        (tools / "curl").symlink_to(ROOT / "tests/support/curl")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def read_records(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "annotations.jsonl").read_text().splitlines()]


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Until `condition` holds; fails if the process ends first."""
    while not condition():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)
