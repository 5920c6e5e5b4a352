"""The life of servers: how they start, report their state, survive failures and stop, and what they refuse to load."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner, Result

from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.server import launcher as server
from reelscribe.server.config_properties import free_ports
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import StartOptions
from reelscribe.server.state import State, state_of
from servers.emulated import HANDLER, Emulated
from servers.torchserve import CONFIG, HANDLERS, handler_modules, pack_handler
from support.archives import SETTINGS, replace_file
from support.certificates import pem_of, self_signed
from support.patience import PATIENCE
from support.servers import RunningServer, quick_java, settings_file, wait_until

SLOW_HANDLER = """
import pathlib, time

def handle(data, context):
    pathlib.Path(context.model_yaml_config["weights"]).read_text()
    time.sleep(1.5)
"""
"""Loads for longer than it may take to answer, and needs a file."""


def reelscribe(command: str, directory: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["server", command, "--directory", str(directory), *map(str, arguments)])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """cert.pem and key.pem in a folder."""
    folder = tmp_path_factory.mktemp("certificate")
    key = rsa.generate_private_key(65537, 2048)
    (folder / "cert.pem").write_bytes(self_signed(key))
    (folder / "key.pem").write_bytes(pem_of(key))
    (folder / "key.pem").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory, certificate):
    """A server of an emulated captioner, started from the command line, in a folder whose name is not ASCII."""
    folder = tmp_path_factory.mktemp("verschl\u00fcsselt")
    settings = Emulated(frames_per_second=1000).settings()
    pack_handler(HANDLER, "emulated", folder / "store", settings=settings, modules=handler_modules())
    https = {name: port.replace("http:", "https:") for name, port in free_ports().items()}
    options = ["--config", settings_file(folder, https), "--model-store", folder / "store", "--pass-env", "NAMED"]
    options += ["--certificate", certificate / "cert.pem", "--private-key", certificate / "key.pem"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAMED", "passed")
        patch.setenv("HF_TOKEN", "a-secret")
        patch.setenv("CLOUD_PASSWORD", "a-secret")
        result = reelscribe("start", folder / "instance", *options)
        assert result.exit_code == 0, result.output
        instance = Instance(folder / "instance")
        yield RunningServer(instance, "emulated")
        server.stop(instance)
    assert instance.processes() == []


DESCRIBE = """
import asyncio, sys
from reelscribe import CaptionClient, Server

async def main(url, token):
    async with CaptionClient([Server(url, token)], "emulated") as client:
        print((await client.describe()).input_size.width)

asyncio.run(main(*sys.argv[1:]))
"""


def test_only_a_client_that_trusts_the_certificate_gets_an_answer(encrypted, certificate):
    command = [sys.executable, "-c", DESCRIBE, encrypted.url.replace("127.0.0.1", "localhost"), encrypted.token]
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate / "cert.pem")}
    trusting = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert trusting.stdout == "224\n"
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "certificate verify failed" in other.stderr
    assert "have SSL_CERT_FILE name the certificate" in other.stderr
    plain = [*command[:3], command[3].replace("https:", "http:"), command[4]]
    unencrypted = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert "only accepts HTTPS requests" in unencrypted.stderr
    assert unencrypted.stderr.endswith("; write https://\n")
    management = encrypted.instance.address("management_address").replace("https:", "http:")
    listed = CliRunner().invoke(app, ["models", "list", "--management", management])
    assert listed.output.endswith("; write https://\n")


def test_secrets_in_the_environment_of_the_command_reach_no_process(encrypted):
    processes = encrypted.instance.processes()
    assert len(processes) == 2
    for environment in (process.environ() for process in processes):
        assert environment["NAMED"] == "passed"
        assert "a-secret" not in environment.values()


def test_tokens_and_passwords_are_in_no_log_and_on_no_command_line(encrypted):
    instance = encrypted.instance
    secrets = [key["key"] for key in json.loads(instance.key_file.read_text()).values()]
    secrets.append(instance.settings()["keystore_pass"])
    texts = [path.read_text(errors="replace") for path in instance.logs.rglob("*") if path.is_file()]
    texts += [" ".join(process.cmdline()) for process in instance.processes()]
    assert any("emulated" in text for text in texts)
    assert not [text for text in texts for secret in secrets if secret in text]


def test_files_with_secrets_are_for_the_owner_alone(encrypted):
    instance = encrypted.instance
    assert stat.S_IMODE(instance.directory.stat().st_mode) == 0o700
    for path in (instance.config, instance.keystore, instance.key_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_status_is_a_line_for_the_server_and_one_for_each_version(encrypted):
    result = reelscribe("status", encrypted.instance.directory)
    assert (result.exit_code, result.output) == (0, "server: ready\nemulated 1.0: ready, 1 of 1 workers ready\n")


def slow_archive(folder: Path, version: str) -> None:
    model = {"modelName": "slow", "modelVersion": version, "handler": "slow_handler.py", "configFile": "c.yaml"}
    settings = {"minWorkers": 1, "maxWorkers": 1, "responseTimeout": 1, "startupTimeout": int(PATIENCE)}
    with zipfile.ZipFile(folder / f"slow-{version}.mar", "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"runtime": "python", "model": model}))
        mar.writestr("slow_handler.py", SLOW_HANDLER)
        mar.writestr("c.yaml", json.dumps({**settings, "weights": str(folder / "weights")}))


@pytest.fixture
def beside(encrypted, tmp_path):
    """A second server, of two versions of a model that is slow to load."""
    for version in ("1.0", "2.0"):
        slow_archive(tmp_path, version)
    (tmp_path / "weights").touch()
    before = encrypted.processes()
    other = Instance(tmp_path / "instance")
    options = StartOptions(
        CONFIG, tmp_path, load_seconds=PATIENCE, model_api=True, overrides={**quick_java(), **free_ports()}
    )
    server.start(other, options)
    yield RunningServer(other, "slow")
    left = {process.pid for process in other.processes()}
    assert len(left) == 3
    assert left <= set(server.stop(other))
    assert state_of(other).state == "stopped"
    assert encrypted.processes() == before
    assert state_of(encrypted.instance).state == "ready"


def test_a_server_that_fails_and_is_restarted_and_stopped_does_not_disturb_another(beside, tmp_path):
    url, versions = beside.url, [(model.version, model.state) for model in state_of(beside.instance).models]
    assert versions == [("1.0", "ready"), ("2.0", "ready")]

    (tmp_path / "weights").rename(tmp_path / "away")
    os.kill(beside.processes()["workers"][0], signal.SIGKILL)
    states: list[State] = []
    deadline = time.monotonic() + PATIENCE
    reason = f"failing, 0 of 1 workers ready: FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}"
    result = None
    while not (result and reason in result.output):  # a worker has ended before the log has its reason
        assert time.monotonic() < deadline, result and result.output
        states.append(state_of(beside.instance).state)
        assert states[-1] in ("ready", "degraded", "failing")
        result = reelscribe("status", beside.instance.directory)
    assert "degraded" in states
    assert result.exit_code == 1

    (tmp_path / "away").rename(tmp_path / "weights")
    os.kill(beside.processes()["java"][0], signal.SIGKILL)
    result = reelscribe("restart", beside.instance.directory)
    assert result.exit_code == 0, result.output
    assert (state_of(beside.instance).state, beside.url) == ("ready", url)
    assert "FileNotFoundError" in reelscribe("logs", beside.instance.directory, "--previous", "--lines", "1000").output
    listed = CliRunner().invoke(app, ["models", "list", "--directory", str(beside.instance.directory)]).output
    assert "slow 2.0 (default) from slow-2.0.mar" in listed


def test_a_start_that_is_stopped_by_another_command_says_so(tmp_path):
    slow_archive(tmp_path, "1.0")
    (tmp_path / "weights").touch()
    instance = Instance(tmp_path / "instance")
    command = [sys.executable, "-m", "reelscribe.cli", "server", "start", "--directory", str(instance.directory)]
    command += ["--config", str(settings_file(tmp_path, free_ports())), "--model-store", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as starting:
        assert "starting TorchServe" in starting.stdout.readline()
        server.stop(instance)
        _, errors = starting.communicate(timeout=PATIENCE)
    assert (starting.returncode, errors) == (
        1,
        "reelscribe: slow 1.0: not ready, as the server was stopped by another command\n",
    )
    assert instance.processes() == []


def test_a_start_that_is_interrupted_leaves_nothing(tmp_path):
    slow_archive(tmp_path, "1.0")
    (tmp_path / "weights").touch()
    instance = Instance(tmp_path / "instance")
    command = [sys.executable, "-m", "reelscribe.cli", "server", "start", "--directory", str(instance.directory)]
    command += ["--config", str(settings_file(tmp_path, free_ports())), "--model-store", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as start:
        wait_until(instance.processes, start)
        left = instance.processes()
        start.terminate()
        output, _ = start.communicate(timeout=PATIENCE)
    assert start.returncode == 130, output
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []
    assert instance.processes() == []


@pytest.mark.parametrize(
    ("settings", "beside_another", "reason"),
    [
        ("{minWorkers: 1, maxWorkers: 1, handler: {model: SPEECH}}", True, "WhisperConfig"),  # the worker gives up
        (
            "minWorkers: [1",
            False,
            "Failed to parse model config file model-config.yaml: .*while parsing a flow sequence",
        ),
    ],
)
def test_a_start_with_a_model_that_cannot_load_gives_the_reason_on_one_line_and_leaves_nothing(
    tmp_path, demo_model, demo_speech, settings, beside_another, reason
):
    mar = archive.build("broken", "caption", demo_model, tmp_path / "store", handlers=HANDLERS)
    replace_file(mar, SETTINGS, settings.replace("SPEECH", demo_speech))
    if beside_another:
        slow_archive(mar.parent, "1.0")
        (mar.parent / "weights").touch()
    instance = Instance(tmp_path / "instance")
    options = ["--config", settings_file(tmp_path, free_ports()), "--model-store", tmp_path / "store"]
    result = reelscribe("start", instance.directory, *options, "--load-seconds", str(PATIENCE))
    assert result.exit_code == 1
    assert re.fullmatch(rf"reelscribe: broken 1\.0 cannot be loaded: .*{reason}.*\n", result.stderr)
    assert instance.processes() == []
    assert not instance.key_file.exists()
