"""Models are registered, scaled, replaced and taken away on a real server, also while a bulk run uses them."""

import asyncio
import json
import pickle
import re
import zipfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from e2e.conftest import CONFIG, ROOT, Running, change_settings, post, put
from emulated_server import serve_emulated
from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.client.credentials import Credentials
from reelscribe.client.models import CaptionClient
from reelscribe.errors import AccessRefused, ModelApiOff, ModelConflict, ServerError, UnknownModel
from reelscribe.management.client import ManagementClient, ServerAddresses
from reelscribe.run.bulk import BulkRun
from reelscribe.run.captioning import CaptionTrack
from support.odd_library import write


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that lets models be registered; it begins with version 1.0 of the emulated one, which loads at once."""
    directory = tmp_path_factory.mktemp("models") / "server"
    with serve_emulated(directory, CONFIG, frames_per_second=300, enable_model_api="true") as running:
        yield Running(running.instance, running.model)


@pytest.fixture
def build(server):
    """Puts another version of the emulated model into the model store."""
    store = server.instance.directory.parent / "store"

    def build(version: str, **settings: object) -> str:
        mar = store / f"emulated-{version}.mar"
        with zipfile.ZipFile(store / "emulated.mar") as old, zipfile.ZipFile(mar, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                new.writestr(name, data.replace(b'"1.0"', f'"{version}"'.encode()) if "MANIFEST" in name else data)
        change_settings(mar, **settings)
        return mar.name

    return build


def managing(running: Running) -> ManagementClient:
    names = ("management_address", "inference_address", "metrics_address")
    addresses = ServerAddresses(*map(running.instance.address, names))
    keys = Credentials(running.instance.key_file, addresses.management, api="management")
    return ManagementClient(addresses, keys, inference_credentials=Credentials(running.instance.key_file))


@pytest_asyncio.fixture
async def management(server) -> AsyncIterator[ManagementClient]:
    async with managing(server) as management:
        yield management


def models(server: Running, *words: str) -> Result:
    """`reelscribe models` with these words."""
    directory = ["--directory", str(server.instance.directory)]
    return CliRunner().invoke(app, ["models", *words, *directory], catch_exceptions=False)


def said(server: Running, *words: str) -> str:
    result = models(server, *words)
    assert result.exit_code == 0, result.output
    return result.output


class Runs:
    """The same bulk run again and again, each into a folder of its own."""

    def __init__(self, client: CaptionClient, clips: Path, folder: Path) -> None:
        self._client, self._clips, self._folder = client, clips, folder
        self._count = 0
        self.under_way = asyncio.Event()
        """Set as long as a run has done some of its sources and others not."""

    async def once(self) -> bytes:
        """What it writes."""
        self._count += 1
        out = self._folder / f"run-{self._count}"
        run = BulkRun([CaptionTrack(self._client)], out, on_record=lambda _: self.under_way.set())
        summary = await run.run([str(self._clips)])
        self.under_way.clear()
        assert summary.failed == 0
        return (out / "annotations.jsonl").read_bytes()

    async def during(self, operation: Awaitable[None]) -> set[bytes]:
        """Everything that runs write until an operation is done."""
        task, outputs = asyncio.ensure_future(operation), set()
        while not task.done():
            outputs.add(await self.once())
        await task
        return outputs


@pytest.fixture
def clips(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for k in range(4):
        write(folder / f"{k}.mp4", frames=90, size=(64, 48))
    return folder


async def test_a_rolling_update_costs_a_run_nothing(server, management, clips, tmp_path, demo_model):
    store = server.instance.directory.parent / "store"
    for version in ("1.0", "2.0"):
        archive.build("captioner", "caption", demo_model, store, version=version, handlers=ROOT / "handlers")
    await management.register("captioner-1.0.mar")
    async with Running(server.instance, "captioner").client() as client:
        runs = Runs(client, clips, tmp_path)
        quiet = await runs.once()

        async def update() -> None:
            await management.register("captioner-2.0.mar")
            await runs.under_way.wait()
            await management.set_default("captioner", "2.0")
            await management.unregister("captioner", "1.0")

        assert await runs.during(update()) == {quiet}
    assert [model.version for model in await management.versions("captioner")] == ["2.0"]
    await management.unregister("captioner")


async def test_scaling_up_and_down_costs_a_run_nothing(server, management, clips, tmp_path):
    async with server.client() as client:
        runs = Runs(client, clips, tmp_path)
        quiet = await runs.once()

        async def scale() -> None:
            await runs.under_way.wait()
            assert len((await management.scale("emulated", 2)).workers) == 2
            await runs.under_way.wait()
            assert len((await management.scale("emulated", 1)).workers) == 1

        assert await runs.during(scale()) == {quiet}
    assert len(server.workers()) == 1


async def test_what_a_version_was_asked_is_answered_before_it_is_unregistered(server, management, build):
    await management.register(build("3.0", responseTimeout=3), workers=2)
    asked, frames = Running(server.instance, "emulated/3.0"), pickle.dumps(np.zeros((32, 224, 224, 3), np.uint8))
    requests = [asyncio.ensure_future(post(asked, frames)) for _ in range(12)]
    # Two may be at work; what is neither there nor in the queue nor answered is still on its way.
    while (await management.describe("emulated", "3.0")).queue_pending + sum(map(asyncio.Task.done, requests)) < 10:
        assert not all(request.done() for request in requests)
    await management.unregister("emulated", "3.0")
    answers = await asyncio.wait_for(asyncio.gather(*requests), 60)
    assert [status for status, _ in answers] == [200] * 12


def test_a_model_is_operated_from_the_command_line(server, build):
    assert said(server, "register", build("4.0"), "--workers", "2") == (
        "registered emulated 4.0 from emulated-4.0.mar: 2 of 2 workers ready\n"
    )
    assert said(server, "wait", "emulated", "4.0").endswith(": 2 of 2 workers ready\n")
    assert said(server, "scale", "emulated", "1", "--version", "4.0").endswith(": 1 of 1 workers ready\n")
    assert said(server, "set-default", "emulated", "4.0") == "emulated 4.0 is the default\n"
    described = said(server, "describe", "emulated")
    assert described.startswith("emulated 4.0 (default) from emulated-4.0.mar\nworkers: 1 of 1 workers ready\n")
    assert "\nrevision: 1\n" in described
    assert json.loads(said(server, "describe", "emulated", "--json"))["handler"]["max_frames"] == 512
    refused = models(server, "unregister", "emulated", "4.0")
    assert (refused.exit_code, "make another version the default" in refused.output) == (1, True)
    said(server, "set-default", "emulated", "1.0")
    assert said(server, "unregister", "emulated", "4.0") == "unregistered emulated 4.0\n"
    assert [model["version"] for model in json.loads(said(server, "list", "--json"))] == ["1.0"]


def test_a_server_elsewhere_is_reached_with_a_copy_of_its_key_file(server):
    access = ["--management", server.instance.address("management_address")]
    access += ["--key-file", str(server.instance.key_file)]
    result = CliRunner().invoke(app, ["models", "wait", "emulated", *access], catch_exceptions=False)
    assert result.output == "emulated 1.0 (default) from emulated.mar: 1 of 1 workers ready\n"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"handler": {}}, r"KeyError: 'frame'"),
        ({"minWorkers": "many"}, r"Invalid minWorkers: many, should be integer"),
        ({"deviceIds": [99]}, r"the archive of emulated 5\.0 asks for GPU 99, .*"),
    ],
)
def test_an_archive_that_cannot_load_says_why_and_leaves_nothing(server, build, settings, reason):
    before = said(server, "list")
    result = models(server, "register", build("5.0", **settings))
    assert result.exit_code == 1
    assert re.fullmatch(rf"reelscribe: emulated 5\.0 cannot be loaded: {reason}\n", result.output)
    assert said(server, "list") == before


def test_an_archive_that_is_cut_short_or_has_no_yaml_says_so(server, build):
    store, before = server.instance.directory.parent / "store", said(server, "list")
    mar = store / build("6.0")
    put(mar, "model-config.yaml", "minWorkers: [1")
    assert "6.0 cannot be loaded: Failed to parse model config file" in models(server, "register", mar.name).output
    mar.write_bytes(mar.read_bytes()[:2000])
    assert f"{mar.name}: not a model archive, or a damaged one" in models(server, "register", mar.name).output
    assert said(server, "list") == before


def test_a_model_without_workers_is_not_ready(server):
    status = ["server", "status", "--directory", str(server.instance.directory)]
    said(server, "scale", "emulated", "0")
    result = CliRunner().invoke(app, status)
    said(server, "scale", "emulated", "1")
    assert (result.exit_code, "degraded, 0 of 0 workers ready: it has no workers" in result.output) == (1, True)
    assert CliRunner().invoke(app, status).exit_code == 0


async def test_what_torchserve_refuses_is_said_by_name(server, management):
    (there,) = await management.models()
    for refused, error in [
        (management.describe("nobody"), UnknownModel),
        (management.describe("emulated", "0.1"), UnknownModel),
        (management.set_default("emulated", "0.1"), UnknownModel),
        (management.register("nothing.mar"), UnknownModel),
        (management.register("http://127.0.0.1:9/a.mar"), ServerError),
        (management.register(there.archive), ModelConflict),
    ]:
        with pytest.raises(error):
            await refused
    assert await management.models() == [there]


async def test_a_server_that_was_not_started_for_it_registers_nothing(running):
    async with managing(running) as management:
        with pytest.raises(ModelApiOff, match="--model-api"):
            await management.register("captioner.mar")
        with pytest.raises(ModelApiOff, match="--model-api"):
            await management.unregister("captioner")


async def test_a_server_says_how_it_is_and_what_it_counts(management):
    assert await management.ping()
    assert "ts_inference_requests_total" in await management.metrics()


def test_a_management_key_that_has_expired_is_renewed(server):
    keys = json.loads(server.instance.key_file.read_text())
    old = keys["management"]["key"]
    keys["management"]["expiration time"] = "2020-01-01T00:00:00.123456789Z"
    server.instance.key_file.write_text(json.dumps(keys))
    assert "emulated" in said(server, "list")
    assert server.instance.key("management") != old


async def test_the_key_of_the_other_api_is_refused(server):
    async with ManagementClient(server.instance.address("management_address"), server.token) as management:
        with pytest.raises(AccessRefused):
            await management.models()
