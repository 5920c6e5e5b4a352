"""What needs no running TorchServe; that is in e2e/."""

import socket
import zipfile
from pathlib import Path

import pytest

from reelscribe.errors import StartupError
from reelscribe.instance import Instance
from reelscribe.server import start, stop
from reelscribe.server_settings import read_properties

FREE = {f"{name}_address": "http://127.0.0.1:1" for name in ("inference", "management", "metrics")}
FREE |= {"grpc_inference_port": "1", "grpc_management_port": "1"}
CONFIG = Path(__file__).parents[1] / "config.properties"


def archive(store: Path) -> None:
    with zipfile.ZipFile(store / "x.mar", "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", "{}")


def test_properties_are_names_and_values():
    assert read_properties("# comment\n a = b \n\nurl=http://x:1/?a=b\nempty=\n") == {
        "a": "b",
        "url": "http://x:1/?a=b",
        "empty": "",
    }


def test_the_settings_are_for_loopback_with_tokens():
    settings = read_properties(CONFIG.read_text())
    addresses = [value for name, value in settings.items() if name.endswith("_address")]
    assert len(addresses) == 5
    assert all(address.removeprefix("http://").startswith("127.0.0.1") for address in addresses)
    assert settings["disable_token_authorization"] == "false"
    assert settings["enable_model_api"] == "false"


def test_no_archive_no_server(tmp_path):
    with pytest.raises(StartupError, match="no archive to serve; build one"):
        start(Instance(tmp_path / "server"), CONFIG, tmp_path, load_seconds=1, say=print)


@pytest.mark.parametrize("name", ["inference_address", "metrics_address", "grpc_inference_port"])
def test_a_port_that_is_taken_is_named(tmp_path, name):
    archive(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        overrides = {**FREE, name: f"http://127.0.0.1:{port}" if "address" in name else str(port)}
        with pytest.raises(StartupError, match=f"port {port} of 127.0.0.1 is taken"):
            start(Instance(tmp_path / "server"), CONFIG, tmp_path, load_seconds=1, say=print, overrides=overrides)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_archive_is_named(tmp_path, content):
    (tmp_path / "bad.mar").write_bytes(content)
    with pytest.raises(StartupError, match=r"bad\.mar: not a model archive"):
        start(Instance(tmp_path / "server"), CONFIG, tmp_path, load_seconds=1, say=print, overrides=FREE)


def test_stopping_what_does_not_run_is_no_error_and_deletes_nothing(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "key_file.json").touch()
    assert stop(Instance(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_with_other_things_is_not_emptied(tmp_path):
    archive(tmp_path)
    (tmp_path / "logs").mkdir()
    with pytest.raises(StartupError, match="expected an empty folder or a server's"):
        start(Instance(tmp_path), CONFIG, tmp_path, load_seconds=1, say=print, overrides=FREE)
    assert (tmp_path / "logs").exists()


def test_settings_without_an_address_are_refused(tmp_path):
    archive(tmp_path)
    config = tmp_path / "config.properties"
    config.write_text("inference_address=http://127.0.0.1:1\n")
    with pytest.raises(StartupError, match="management_address: expected an address like"):
        start(Instance(tmp_path / "server"), config, tmp_path, load_seconds=1, say=print)
