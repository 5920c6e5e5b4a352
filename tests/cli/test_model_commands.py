"""`reelscribe models`, without a TorchServe; with one it is tested in e2e/."""

import asyncio
import json
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.management.management_client import ManagementClient
from reelscribe.management.model_version import ModelVersion
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import StartOptions
from support.commands import reelscribe
from support.fake_management import FakeManagement, FakeVersion
from support.fake_openai import serving


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--directory", "new"], "no server was started there"),
        (["--management", "localhost"], "expected an address like http://127.0.0.1:8081"),
    ],
)
def test_a_command_without_a_usable_server_says_what_it_expects(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["models", "list", *options])
    assert result.exit_code == 2
    assert message in result.output


async def test_the_models_of_a_server_with_openais_api_are_listed():
    async with serving() as server:
        process = await asyncio.create_subprocess_exec(
            *reelscribe("models", "list", "--server", server.url), stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert output.decode() == "m: a/Qwen3-VL-2B, family qwen3-vl\n"


@pytest.mark.parametrize("words", [["http://127.0.0.1:9"], ["openai+http://127.0.0.1:9/v1", "--directory", "x"]])
def test_models_of_a_torchserve_are_listed_by_its_folder_or_management_address(words):
    result = CliRunner().invoke(app, ["models", "list", "--server", *words])
    assert result.exit_code == 2
    assert "--server: expected a server with OpenAI's API" in result.output


def test_unregistering_the_only_version_warns_that_the_model_is_gone(monkeypatch):
    async def unregister(*_: object, **__: object) -> ModelVersion:
        return ModelVersion.from_json(FakeVersion("captioner.mar").to_json("captioner", "1.0"), "1.0")

    monkeypatch.setattr(ManagementClient, "unregister", unregister)
    result = CliRunner().invoke(app, ["models", "unregister", "captioner", "--management", "http://127.0.0.1:9"])
    assert result.output == "unregistered captioner 1.0; it was the only version, and requests for captioner fail now\n"


@pytest.mark.parametrize(
    ("devices", "gpus", "where"),
    [(["cpu"], None, ", on the CPU"), (["cuda:0"], [2, 3, 2, 3], ", on GPUs 2, 3")],
)
async def test_registering_says_where_the_workers_run(devices, gpus, where):
    """Without GPUs, TorchServe runs the workers of an archive for GPUs on the CPU, and says nothing about it."""
    async with FakeManagement() as server:
        server.archives["c.mar"] = ("captioner", "1.0", FakeVersion("c.mar", 4, 4, [True] * 4, gpus=gpus))
        server.description = {"name": "a/b", "devices": devices}
        command = ["models", "register", "c.mar", "--management", server.url]
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reelscribe.cli", *command, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await run.communicate()
    assert output.decode() == f"registered captioner 1.0 (default) from c.mar: 4 of 4 workers ready{where}\n"


async def of_local_server(folder: Path, server: FakeManagement, *words: str, config: str = "") -> str:
    """What `reelscribe models` prints for a server with four GPUs that was started in a folder, with this config."""
    instance = Instance(folder / "server")
    instance.directory.mkdir()
    running = {"management_address": server.url, "disable_token_authorization": "true", "number_of_gpu": "4"}
    instance.config.write_text("".join(f"{name}={value}\n" for name, value in running.items()))
    (folder / "own.properties").write_text(config)
    StartOptions(folder / "own.properties", folder).save(instance.options)
    command = reelscribe("models", words[0], "--directory", str(instance.directory), *words[1:])
    run = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    return (await run.communicate())[0].decode()


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("describe", "captioner"),
        ("scale", "captioner", "2", "--no-wait", "--load-seconds", "0"),  # which has no time to spread them
    ],
)
async def test_workers_that_are_not_spread_over_all_gpus_of_the_machine_are_said(tmp_path, words):
    async with FakeManagement() as server:
        server.add("captioner", "1.0", FakeVersion("c.mar", 2, 2, [True, True], gpus=[0, 0], devices=()))
        output = await of_local_server(tmp_path, server, *words)
    assert "its workers are on GPUs 0, 0; `reelscribe models scale captioner 2` spreads them evenly" in output


@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ("", (4, 16)),
        ("default_workers_per_model=3", (3, 16)),
        ('models={"captioner": {"1.0": {"batchSize": 128, "maxWorkers": 2}}}', (2, 128)),
    ],
)
async def test_a_version_is_registered_with_the_sizes_that_a_start_would_choose(tmp_path, config, chosen):
    with zipfile.ZipFile(tmp_path / "c.mar", "w") as mar:
        model = {"modelName": "captioner", "modelVersion": "2.0", "configFile": "model-config.yaml"}
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        mar.writestr("model-config.yaml", "handler: {max_frames: 512}")
    async with FakeManagement() as server:
        server.archives["c.mar"] = ("captioner", "2.0", FakeVersion("c.mar", 1, 1))
        await of_local_server(tmp_path, server, "register", "c.mar", "--no-wait", config=config)
    workers, joined = chosen
    (request,) = [line for line in server.requests if line.startswith("POST /models?")]
    assert f"&initial_workers={workers}&" in request
    assert f"&batch_size={joined}&" in request
