"""Models are registered, scaled, replaced and unregistered on a real server, also while a bulk run uses them."""

import asyncio
import json
import os
import pickle
import re
import shutil
import subprocess
import zipfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from reelscribe import (
    CaptionClient,
    CaptionOptions,
    CaptionTrack,
    Credentials,
    ManagementClient,
    Run,
    Sampling,
    ServerAddresses,
)
from reelscribe.cli import app
from reelscribe.errors import AccessRefused, ModelConflict, ServerError, UnknownModel
from servers.emulated import Emulated, serve_emulated
from servers.torchserve import CONFIG
from support.archives import SETTINGS, change_settings, replace_file
from support.odd_library import write
from support.patience import PATIENCE
from support.servers import RunningServer, quick_java

MANIFEST = "MAR-INF/MANIFEST.json"


@pytest.fixture(scope="module")
def managed(tmp_path_factory):
    """A server of four emulated GPUs on which models can be registered.

    It starts with version 1.0 of the emulated model, which loads fast. `nvidia-smi` notes what it is asked in `asked`.
    """
    directory = tmp_path_factory.mktemp("models") / "server"
    (nvidia_smi := directory / "bin" / "nvidia-smi").parent.mkdir(parents=True)
    nvidia_smi.write_text(f'#!/bin/sh\necho "$*" >>{directory}/asked\n')
    nvidia_smi.chmod(0o700)
    settings = {**quick_java(), "enable_model_api": "true", "number_of_gpu": "4"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        patch.setenv("PATH", f"{nvidia_smi.parent}:{os.environ['PATH']}")
        with serve_emulated(directory, CONFIG, frames_per_second=300, **settings) as serving:
            yield RunningServer(serving.instance, serving.model)


@pytest.fixture
def build(managed):
    """Writes an archive of another version of the emulated model, or of another name, into the model store."""
    store = managed.instance.directory.parent / "store"

    def build(version: str, model: str = "emulated", **settings: object) -> str:
        mar = Path(shutil.copy(store / "emulated.mar", store / f"{model}-{version}.mar"))
        with zipfile.ZipFile(mar) as archive:
            manifest = archive.read(MANIFEST).decode()
        manifest = manifest.replace('"1.0"', f'"{version}"').replace('"emulated"', f'"{model}"')
        replace_file(mar, MANIFEST, manifest)
        change_settings(mar, **settings)
        return mar.name

    return build


def management_client(server: RunningServer) -> ManagementClient:
    names = ("management_address", "inference_address", "metrics_address")
    addresses = ServerAddresses(*map(server.instance.address, names))
    keys = Credentials(server.instance.key_file, addresses.management, api="management")
    return ManagementClient(addresses, keys, inference_credentials=Credentials(server.instance.key_file))


@pytest_asyncio.fixture
async def management(managed) -> AsyncIterator[ManagementClient]:
    async with management_client(managed) as management:
        yield management


def run_models(server: RunningServer, *words: str) -> Result:
    """Run `reelscribe models` with these words."""
    directory = ["--directory", str(server.instance.directory)]
    return CliRunner().invoke(app, ["models", *words, *directory], catch_exceptions=False)


def output_of(server: RunningServer, *words: str) -> str:
    """Run `reelscribe models`, which must succeed, and return its output."""
    result = run_models(server, *words)
    assert result.exit_code == 0, result.output
    return result.output


EVERY_FRAME = CaptionOptions(sampling=Sampling(every=1))


class Runs:
    """The same bulk run again and again, each into a folder of its own."""

    def __init__(self, client: CaptionClient, clips: Path, folder: Path) -> None:
        self._client, self._clips, self._folder = client, clips, folder
        self._count = 0
        self.under_way = asyncio.Event()
        """Set while a run has finished some of its sources, but not all."""

    async def once(self) -> bytes:
        """Run to the end, and return what was written."""
        self._count += 1
        out = self._folder / f"run-{self._count}"
        run = Run([CaptionTrack(self._client, EVERY_FRAME)], out, on_record=lambda _: self.under_way.set())
        summary = await run.run([str(self._clips)])
        self.under_way.clear()
        assert summary.failed == 0
        return (out / "annotations.jsonl").read_bytes()

    async def during(self, operation: Awaitable[None]) -> set[bytes]:
        """Run again and again until an operation is done, and return everything that was written."""
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


async def test_a_rolling_update_costs_a_run_nothing(managed, management, build, clips, tmp_path):
    await management.register(build("1.0", "rolling"))
    async with managed.with_model("rolling").client() as client:
        runs = Runs(client, clips, tmp_path)
        undisturbed = await runs.once()

        async def update() -> None:
            await management.register(build("2.0", "rolling"))
            await runs.under_way.wait()
            await management.set_default("rolling", "2.0")
            await management.unregister("rolling", "1.0")

        assert await runs.during(update()) == {undisturbed}
    assert [model.version for model in await management.versions("rolling")] == ["2.0"]
    await management.unregister("rolling")


async def test_scaling_up_and_down_costs_a_run_nothing(managed, management, clips, tmp_path):
    async with managed.client() as client:
        runs = Runs(client, clips, tmp_path)
        undisturbed = await runs.once()

        async def scale() -> None:
            await runs.under_way.wait()
            assert len((await management.scale("emulated", 2)).workers) == 2
            await runs.under_way.wait()
            assert len((await management.scale("emulated", 1)).workers) == 1

        assert await runs.during(scale()) == {undisturbed}
    assert len(managed.workers()) == 1


@pytest.mark.parametrize("device_ids", [{"deviceIds": [3, 1, 0]}, {}])
def test_workers_that_are_scaled_down_and_up_are_on_all_gpus(managed, build, device_ids):
    name, gpus = ("named", 3) if device_ids else ("unnamed", 4)
    register = ["register", build("1.0", name, **device_ids), "--workers", str(gpus)]
    output_of(managed, *register)
    for number in (gpus - 1, gpus):
        assert "spreads" not in output_of(managed, "scale", name, str(number))
        workers = json.loads(output_of(managed, "describe", name, "--json"))["workers"]
        assert len({worker["gpu"] for worker in workers}) == len(workers) == number
    output_of(managed, "unregister", name, "--now")


async def test_a_full_queue_leaves_no_worker_when_workers_and_a_version_are_removed(managed, management, build):
    before = len(managed.processes()["workers"])
    settings = Emulated(frames_per_second=300, call_seconds=0.2).settings()
    await management.register(build("1.0", "flooded", **settings), workers=4)
    flooded, frame = managed.with_model("flooded"), pickle.dumps(np.zeros((1, 224, 224, 3), np.uint8))

    async def flood() -> None:
        while True:
            await flooded.post(frame)

    floods = [asyncio.ensure_future(flood()) for _ in range(20)]  # four for the workers, and as many as the queue takes
    while (await management.describe("flooded")).queue_pending < 10:
        assert not any(map(asyncio.Task.done, floods))
    for number in (2, 0, 4):
        assert len((await management.scale("flooded", number)).workers) == number
        assert len(managed.processes()["workers"]) == before + number
    await management.unregister("flooded", drain_seconds=0)
    assert len(managed.processes()["workers"]) == before
    assert await management.ping()
    for each in floods:
        each.cancel()
    await asyncio.gather(*floods, return_exceptions=True)


async def test_requests_of_a_version_are_answered_before_it_is_unregistered(managed, management, build):
    await management.register(build("3.0", responseTimeout=10), workers=2)
    version, frames = managed.with_model("emulated/3.0"), pickle.dumps(np.zeros((32, 224, 224, 3), np.uint8))
    requests = [asyncio.ensure_future(version.post(frames)) for _ in range(12)]
    # The two workers may compute two requests. All others are in the queue or answered, or have not arrived yet.
    while (await management.describe("emulated", "3.0")).queue_pending + sum(map(asyncio.Task.done, requests)) < 10:
        assert not all(request.done() for request in requests)
    await management.unregister("emulated", "3.0")
    answers = await asyncio.wait_for(asyncio.gather(*requests), PATIENCE)
    assert [status for status, _ in answers] == [200] * 12


def test_a_model_is_operated_from_the_command_line(managed, build):
    assert output_of(managed, "register", build("4.0"), "--workers", "2") == (
        "registered emulated 4.0 from emulated-4.0.mar: 2 of 2 workers ready\n"
    )
    assert output_of(managed, "wait", "emulated", "4.0").endswith(": 2 of 2 workers ready\n")
    assert output_of(managed, "scale", "emulated", "1", "--version", "4.0").endswith(": 1 of 1 workers ready\n")
    assert output_of(managed, "set-default", "emulated", "4.0") == "emulated 4.0 is the default\n"
    described = output_of(managed, "describe", "emulated")
    assert described.startswith("emulated 4.0 (default) from emulated-4.0.mar\nworkers: 1 of 1 workers ready\n")
    assert "\nrevision: 1\n" in described
    assert json.loads(output_of(managed, "describe", "emulated", "--json"))["handler"]["max_frames"] == 512
    refused = run_models(managed, "unregister", "emulated", "4.0")
    assert (refused.exit_code, "make another version the default" in refused.output) == (1, True)
    output_of(managed, "set-default", "emulated", "1.0")
    assert output_of(managed, "unregister", "emulated", "4.0") == "unregistered emulated 4.0\n"
    assert [model["version"] for model in json.loads(output_of(managed, "list", "--json"))] == ["1.0"]


def test_the_usage_of_gpus_is_not_looked_up_to_describe_models(managed):
    """It would take 0.3 s and more for each worker, during which nobody else gets an answer."""
    result = CliRunner().invoke(app, ["server", "status", "--directory", str(managed.instance.directory)])
    assert result.exit_code == 0, result.output
    (worker,) = json.loads(output_of(managed, "describe", "emulated", "--json"))["workers"]
    assert worker["gpu"] in range(4)
    asked = managed.instance.directory.parent / "asked"
    assert not asked.exists()
    (java,) = managed.processes()["java"]
    environment = psutil.Process(java).environ()
    subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv"], env=environment, check=True)
    assert asked.read_text() == "--query-gpu=index --format=csv\n"  # all else is asked of the real one


def test_a_server_is_managed_by_its_address_and_key_file(managed):
    access = ["--management", managed.instance.address("management_address")]
    access += ["--key-file", str(managed.instance.key_file)]
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
def test_an_archive_that_cannot_load_says_why_and_leaves_nothing(managed, build, settings, reason):
    before = output_of(managed, "list")
    result = run_models(managed, "register", build("5.0", **settings))
    assert result.exit_code == 1
    assert re.fullmatch(rf"reelscribe: emulated 5\.0 cannot be loaded: {reason}\n", result.output)
    assert output_of(managed, "list") == before


def test_an_archive_that_is_cut_short_or_has_no_yaml_says_so(managed, build):
    store, before = managed.instance.directory.parent / "store", output_of(managed, "list")
    mar = store / build("6.0")
    replace_file(mar, SETTINGS, "minWorkers: [1")
    assert "6.0 cannot be loaded: Failed to parse model config file" in run_models(managed, "register", mar.name).output
    mar.write_bytes(mar.read_bytes()[:2000])
    assert f"{mar.name}: not a model archive, or a damaged one" in run_models(managed, "register", mar.name).output
    assert output_of(managed, "list") == before


def test_a_model_without_workers_is_not_ready(managed):
    status = ["server", "status", "--directory", str(managed.instance.directory)]
    output_of(managed, "scale", "emulated", "0")
    result = CliRunner().invoke(app, status)
    output_of(managed, "scale", "emulated", "1")
    assert (result.exit_code, "degraded, 0 of 0 workers ready: it has no workers" in result.output) == (1, True)
    assert CliRunner().invoke(app, status).exit_code == 0


async def test_refusals_of_torchserve_raise_errors_of_their_own(managed, management):
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


async def test_ping_and_metrics(management):
    assert await management.ping()
    assert "ts_inference_requests_total" in await management.metrics()


def test_a_management_key_that_has_expired_is_renewed(managed):
    keys = json.loads(managed.instance.key_file.read_text())
    old = keys["management"]["key"]
    keys["management"]["expiration time"] = "2020-01-01T00:00:00.123456789Z"
    managed.instance.key_file.write_text(json.dumps(keys))
    assert "emulated" in output_of(managed, "list")
    assert managed.instance.key("management") != old


async def test_the_key_of_the_other_api_is_refused(managed):
    async with ManagementClient(managed.instance.address("management_address"), managed.token) as management:
        with pytest.raises(AccessRefused):
            await management.models()
