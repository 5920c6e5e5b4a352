"""`reelscribe server`, without a TorchServe; with one it is tested in e2e/."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from reelscribe.cli import app
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import StartOptions
from support.patience import PATIENCE

CONFIG = Path(__file__).parents[2] / "config.properties"


@pytest.fixture
def log(tmp_path) -> Path:
    """The access log of a server that was started in `tmp_path`."""
    log = tmp_path / "logs" / "access_log.log"
    log.parent.mkdir()
    log.write_text("1\n2\n3\n")
    return log


def server(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["server", *map(str, words)])


def test_help_shows_the_defaults():
    shown = " ".join(CliRunner().invoke(app, ["server", "start", "--help"]).output.split())
    for default in (".server", "config.properties", "model_store", "900"):
        assert f"[default: {default}]" in shown


def test_a_stopped_server_has_the_exit_status_that_service_managers_expect(tmp_path):
    result = server("status", "--directory", tmp_path)
    assert (result.exit_code, result.output) == (3, "server: stopped\n")
    result = server("status", "--json", "--directory", tmp_path)
    assert json.loads(result.output) == {"state": "stopped", "models": [], "error": None}


@pytest.mark.parametrize("command", ["status", "logs"])
def test_a_folder_in_which_no_server_was_started_is_named(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    result = server(command)
    assert result.exit_code == 2
    assert result.output == f"reelscribe: {tmp_path}/.server: no server was started there; give its --directory\n"


def test_a_restart_needs_an_earlier_start(tmp_path):
    result = server("restart", "--directory", tmp_path / "new")
    assert result.exit_code == 2
    assert "no server was ever started there; use `reelscribe server start`" in result.output
    assert not (tmp_path / "new").exists()


def test_a_restart_keeps_the_certificate_of_the_last_start_without_no_tls(tmp_path):
    (tmp_path / "store").mkdir()
    options = StartOptions(CONFIG, tmp_path / "store", certificate=Path("cert"), private_key=Path("key"))
    options.save(Instance(tmp_path).options)
    assert "no address is https, so --certificate" in server("restart", "--directory", tmp_path).output
    assert "no archive to serve" in server("restart", "--directory", tmp_path, "--no-tls").output


def test_a_start_without_config_has_the_settings_of_the_last_start_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "config.properties").write_text(CONFIG.read_text())
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    StartOptions(Path("copy.properties"), tmp_path / "store").save(Instance(tmp_path).options)
    start = ["start", "--directory", tmp_path, "--model-store", tmp_path / "store"]
    result = server(*start)
    said = f"settings of the last start: {tmp_path}/copy.properties; --config names others\n"
    assert result.output == f"{said}reelscribe: {tmp_path}/copy.properties: no such file; expected TorchServe's " + (
        "settings, which --config names\n"
    )
    others = server(*start, "--config", "config.properties")
    assert "last start" not in others.output
    assert "no archive to serve" in others.output


def test_a_start_after_a_crash_serves_the_same_folder_and_says_which_options_it_has_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    last = StartOptions(CONFIG, tmp_path / "mine", model_api=True, pass_environment=("HF_TOKEN",))
    last.save(Instance(tmp_path).options)
    started = server("start", "--directory", tmp_path, "--load-seconds", "5")
    assert f"model store of the last start: {tmp_path}/mine; --model-store names another\n" in started.output
    assert "the last start had --model-api, --pass-env, and this one has not; `reelscribe server restart`" in (
        started.output
    )
    assert f"{tmp_path}/mine: no archive to serve" in started.output
    named = server("start", "--directory", tmp_path, "--config", CONFIG, "--model-store", tmp_path)
    assert "last start" not in named.output
    assert f"{tmp_path}: no archive to serve" in named.output


def test_warnings_are_printed_on_standard_output(tmp_path):
    config = tmp_path / "config.properties"
    config.write_text(CONFIG.read_text() + "disable_token_authorization=true\n")
    result = server("start", "--directory", tmp_path / "new", "--config", config, "--model-store", tmp_path)
    assert result.exit_code == 1
    assert result.stdout.startswith("WARNING: disable_token_authorization=true")
    assert "no archive to serve" in result.stderr


def test_the_last_lines_of_a_log_are_shown(tmp_path, log):
    command = ["logs", "--directory", tmp_path, "--which"]
    assert server(*command, "access", "--lines", "2").output == "2\n3\n"
    assert server(*command, "model").exit_code == 2
    assert "expected one of model, server, access" in server(*command, "other").output


def test_the_log_of_the_server_before_is_shown(tmp_path, log):
    log.parent.rename(Instance(tmp_path).previous_logs)
    command = ["logs", "--directory", tmp_path, "--which", "access", "--lines", "1"]
    assert server(*command).exit_code == 2
    assert server(*command, "--previous").output == "3\n"


def test_a_log_is_followed_into_the_next_one_until_an_interrupt(tmp_path, log):
    command = [sys.executable, "-m", "reelscribe.cli", "server", "logs", "--directory", str(tmp_path)]
    command += ["--which", "access", "--lines", "1", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as following:
        assert following.stdout.readline() == "3\n"
        with log.open("a") as file:
            file.write("4\n")
        assert following.stdout.readline() == "4\n"
        log.replace(tmp_path / "logs" / "access_log.1.log")
        log.write_text("in a new log\n")
        assert following.stdout.readline() == "in a new log\n"
        following.send_signal(signal.SIGINT)
        following.wait(timeout=PATIENCE)
    assert following.returncode == 0
