"""The options that runs share: their defaults, and the server that is used without any."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app, runs
from reelscribe.cli._options import AudioOptions, FrameOptions, RunOptions, ServerOptions
from reelscribe.errors import UsageError
from reelscribe.run.options import CaptionOptions, SpeechOptions

RUN = RunOptions(sources=["a.mp4"], out=Path("out"))


def test_defaults_of_the_commands_are_those_of_the_library():
    assert FrameOptions().caption_options(RUN) == CaptionOptions()
    assert AudioOptions().speech_options(RUN) == SpeechOptions()


def test_options_of_the_command_line_and_the_environment_reach_the_run(monkeypatch):
    started = {}
    monkeypatch.setattr(runs, "run_command", lambda run, cues, **models: started.update(run=run, cues=cues, **models))
    monkeypatch.setenv("REELSCRIBE_DECODE_WORKERS", "3")
    words = ["annotate", "a.mp4", "b.mp4", "--out", "x", "--format", "vtt", "--format", "csv", "--cues", "captions"]
    words += [
        "--server",
        "http://127.0.0.1:1",
        "--fps",
        "0.5",
        "--no-stream",
        "--language",
        "en",
        "--stall-seconds",
        "5",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    run, (captioner, captions), (speech_model, speech) = started["run"], started["captions"], started["speech"]
    assert (run.sources, run.out, run.formats) == (["a.mp4", "b.mp4"], Path("x"), ["vtt", "csv"])
    assert started["cues"] == "captions"
    assert (captioner.name, speech_model.name, captioner.servers) == ("captioner", "speech", speech_model.servers)
    assert (captions.sampling.fps, captions.stream, captions.decode_workers) == (0.5, False, 3)
    assert (captions.stall_seconds, speech.stall_seconds) == (5, 5)


@pytest.fixture
def local_server(tmp_path, monkeypatch) -> Path:
    """The directory of a server that runs on ports of its own, below the working directory."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / ".server"
    directory.mkdir()
    addresses = "inference_address=http://0.0.0.0:9080\nmanagement_address=http://127.0.0.1:9081\n"
    (directory / "config.properties").write_text(addresses)
    key_file = directory / "key_file.json"
    key_file.write_text(json.dumps({"inference": {"key": "secret"}}))
    key_file.chmod(0o600)
    return directory


def test_by_default_the_server_in_the_working_directory_is_used_with_its_key(local_server):
    (server,) = ServerOptions().find()
    assert (server.url, server.credentials.token) == ("http://127.0.0.1:9080", "secret")


def test_its_key_is_sent_to_no_other_server(local_server):
    (server,) = ServerOptions(servers=["http://127.0.0.1:8080"]).find()
    assert server.credentials is None


def test_a_stopped_server_is_not_used(local_server):
    (local_server / "key_file.json").unlink()
    (server,) = ServerOptions().find()
    assert (server.url, server.credentials) == ("http://127.0.0.1:8080", None)


def test_keys_and_servers_must_fit_together(local_server):
    key_file = local_server / "key_file.json"
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    one, two = ServerOptions(servers=urls, key_files=[key_file]), ServerOptions(servers=urls, key_files=[key_file] * 2)
    assert [server.credentials.token for server in one.find()] == ["secret"] * 3
    with pytest.raises(UsageError, match="expected one for all, or one for each --server, got 2"):
        two.find()
    with pytest.raises(UsageError, match="expected a single --server"):
        ServerOptions(servers=urls, management="http://127.0.0.1:9081").find()
