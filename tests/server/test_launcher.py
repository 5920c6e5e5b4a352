"""What needs no running TorchServe; that is in e2e/."""

import json
import socket
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.archive.model_store import stored_models
from reelscribe.cli import app
from reelscribe.errors import StartupError
from reelscribe.server.instance import Instance, claimed
from reelscribe.server.launcher import launcher as server
from reelscribe.server.launcher import restart, start, stop
from reelscribe.server.options import StartOptions

FREE = {f"{name}_address": "http://127.0.0.1:1" for name in ("inference", "management", "metrics")}
FREE |= {"grpc_inference_port": "1", "grpc_management_port": "1"}
CONFIG = Path(__file__).parents[2] / "config.properties"


def archive(store: Path, file: str = "x.mar", **model: str) -> None:
    with zipfile.ZipFile(store / file, "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))


def begin(store: Path, directory: Path | None = None, config: Path = CONFIG, overrides=FREE) -> None:
    instance = Instance(directory or store / "server")
    start(instance, StartOptions(config, store, load_seconds=1, overrides=overrides), say=print)


def test_no_archive_no_server(tmp_path):
    with pytest.raises(StartupError, match="no archive to serve; build one"):
        begin(tmp_path)


@pytest.mark.parametrize("name", ["inference_address", "metrics_address", "grpc_inference_port"])
def test_a_port_that_is_taken_is_named(tmp_path, name):
    archive(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        overrides = {**FREE, name: f"http://127.0.0.1:{port}" if "address" in name else str(port)}
        with pytest.raises(StartupError, match=f"port {port} of 127.0.0.1 is taken"):
            begin(tmp_path, overrides=overrides)
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_archive_is_named(tmp_path, content):
    (tmp_path / "bad.mar").write_bytes(content)
    with pytest.raises(StartupError, match=r"bad\.mar: not a model archive"):
        begin(tmp_path)


def test_stopping_what_does_not_run_is_no_error_and_deletes_nothing(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "key_file.json").touch()
    assert stop(Instance(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_with_other_things_is_not_emptied(tmp_path):
    archive(tmp_path)
    (tmp_path / "logs").mkdir()
    with pytest.raises(StartupError, match="expected an empty folder or a server's"):
        begin(tmp_path, directory=tmp_path)
    assert (tmp_path / "logs").exists()


def test_settings_without_an_address_are_refused(tmp_path):
    archive(tmp_path)
    config = tmp_path / "config.properties"
    config.write_text("inference_address=http://127.0.0.1:1\n")
    with pytest.raises(StartupError, match="management_address: expected an address like"):
        begin(tmp_path, config=config, overrides={})


def test_versions_are_those_of_the_archives_and_the_newest_comes_first(tmp_path):
    archive(tmp_path, "a.mar", modelName="captioner", modelVersion="9.0")
    archive(tmp_path, "b.mar", modelName="captioner", modelVersion="10.0")
    archive(tmp_path, "old name.mar")
    found = [(str(model), model.path.name) for model in stored_models(tmp_path, "all")]
    assert found == [("captioner 10.0", "b.mar"), ("captioner 9.0", "a.mar"), ("old_name 1.0", "old name.mar")]
    assert [str(model) for model in stored_models(tmp_path, "a.mar")] == ["captioner 9.0"]


def test_two_archives_of_one_version_are_refused(tmp_path):
    for file in ("a.mar", "b.mar"):
        archive(tmp_path, file, modelName="captioner", modelVersion="1.0")
    with pytest.raises(StartupError, match=r"a\.mar and .*b\.mar are both captioner 1\.0"):
        begin(tmp_path)


def test_an_address_for_others_is_refused_before_anything_is_done(tmp_path):
    archive(tmp_path)
    overrides = {**FREE, "inference_address": "http://0.0.0.0:1", "grpc_inference_address": "0.0.0.0"}
    with pytest.raises(StartupError, match=r"reachable from other machines: inference_address .*; grpc_inference"):
        begin(tmp_path, overrides=overrides)
    assert not (tmp_path / "server").exists()


def test_told_so_it_would_start_with_open_addresses_but_says_what_is_open(tmp_path):
    said: list[str] = []
    overrides = {**FREE, "inference_address": "http://0.0.0.0:1", "metrics_address": "http://0.0.0.0:1"}
    options = StartOptions(CONFIG, tmp_path, insecure=True, overrides=overrides)
    with pytest.raises(StartupError, match="no archive to serve"):
        start(Instance(tmp_path / "server"), options, say=said.append)
    assert [line.split()[:2] for line in said] == [["WARNING:", "inference_address"], ["WARNING:", "metrics_address"]]


def test_a_restart_that_cannot_work_stops_nothing(tmp_path):
    instance = Instance(tmp_path / "server")
    instance.directory.mkdir()
    instance.marker.touch()
    instance.key_file.touch()
    with pytest.raises(StartupError, match="no archive to serve"):
        restart(instance, StartOptions(CONFIG, tmp_path, overrides=FREE), say=print)
    assert instance.key_file.exists()


def test_where_no_server_was_ever_started_none_is_restarted(tmp_path):
    result = CliRunner().invoke(app, ["server", "restart", "--directory", str(tmp_path / "new")])
    assert (result.exit_code, "no server was ever started there; use `reelscribe server start`" in result.output) == (
        2,
        True,
    )
    assert not (tmp_path / "new").exists()


def test_a_restart_keeps_the_certificate_of_the_last_start_unless_told_otherwise(tmp_path):
    instance = Instance(tmp_path)
    (tmp_path / "store").mkdir()
    options = StartOptions(
        CONFIG, tmp_path / "store", certificate=Path("cert"), private_key=Path("key"), overrides=FREE
    )
    options.save(instance.options)
    command = ["server", "restart", "--directory", str(tmp_path)]
    assert "restart` keeps that of the last start unless told --no-tls" in CliRunner().invoke(app, command).output
    assert "no archive to serve" in CliRunner().invoke(app, [*command, "--no-tls"]).output


def test_help_shows_what_is_taken_where_nothing_is_given():
    shown = CliRunner().invoke(app, ["server", "start", "--help"], env={"COLUMNS": "200"}).output
    for default in (".server", "(config.properties)", "(model_store)", "(900)"):
        assert f"[default: {default}]" in shown


def test_two_commands_do_not_start_in_one_directory_at_once(tmp_path):
    archive(tmp_path)
    instance = Instance(tmp_path / "server")
    with claimed(instance):
        instance.key_file.write_text("of the first")
        with pytest.raises(StartupError, match="another command starts or stops a server there"):
            begin(tmp_path)
        with pytest.raises(StartupError, match="another command starts or stops a server there"):
            restart(instance, StartOptions(CONFIG, tmp_path, overrides=FREE), say=print)
        assert instance.key_file.read_text() == "of the first"


def test_stopping_waits_until_a_start_elsewhere_has_given_up(tmp_path, monkeypatch):
    instance = Instance(tmp_path / "server")
    with ExitStack() as elsewhere:
        elsewhere.enter_context(claimed(instance))
        instance.key_file.touch()

        instance.logs.mkdir()

        def give_up(_: float) -> None:
            assert instance.key_file.exists()
            assert (instance.logs / "stop-requested").exists()
            elsewhere.close()

        monkeypatch.setattr(server.time, "sleep", give_up)
        assert stop(instance) == []
    assert not instance.key_file.exists()


def test_a_server_that_does_not_run_has_the_status_of_service_managers(tmp_path):
    result = CliRunner().invoke(app, ["server", "status", "--directory", str(tmp_path)])
    assert (result.exit_code, result.output) == (3, "server: stopped\n")
    result = CliRunner().invoke(app, ["server", "status", "--json", "--directory", str(tmp_path)])
    assert json.loads(result.output) == {"state": "stopped", "models": [], "error": None}


def test_the_end_of_a_log_is_shown(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "access_log.log").write_text("1\n2\n3\n")
    command = ["server", "logs", "--directory", str(tmp_path), "--which"]
    assert CliRunner().invoke(app, [*command, "access", "--lines", "2"]).output == "2\n3\n"
    assert CliRunner().invoke(app, [*command, "model"]).exit_code == 2
    assert "expected one of model, server, access" in CliRunner().invoke(app, [*command, "else"]).output
