"""Start, restart and stop as far as they need no TorchServe; with one they are tested in e2e/."""

import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from reelscribe.errors import StartupError, UsageError
from reelscribe.server import launcher
from reelscribe.server.config_properties import free_ports
from reelscribe.server.instance import INSTANCE_VARIABLE, Instance, locked
from reelscribe.server.launcher import check, restart, server_environment, start, stop
from reelscribe.server.start_options import StartOptions
from reelscribe.server.state import state_of

CONFIG = Path(__file__).parents[2] / "config.properties"
FREE = {f"{name}_address": "http://127.0.0.1:1" for name in ("inference", "management", "metrics")}
FREE |= {"grpc_inference_port": "1", "grpc_management_port": "1"}


@pytest.fixture
def instance(tmp_path) -> Instance:
    return Instance(tmp_path / "server")


@pytest.fixture
def store(tmp_path) -> Path:
    """A model store with an archive that looks whole."""
    store = tmp_path / "store"
    store.mkdir()
    with zipfile.ZipFile(store / "x.mar", "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {}}))
    return store


def options(store: Path, config: Path = CONFIG, *, insecure: bool = False, **overrides: str) -> StartOptions:
    return StartOptions(config, store, insecure=insecure, overrides={**FREE, **overrides})


@pytest.mark.parametrize("name", ["inference_address", "metrics_address", "grpc_inference_port"])
def test_a_port_that_is_taken_is_named(instance, store, name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        overrides = {name: f"http://127.0.0.1:{port}" if "address" in name else str(port)}
        with pytest.raises(StartupError, match=f"port {port} of 127.0.0.1 is taken"):
            start(instance, options(store, **overrides))
    assert not instance.directory.exists()


@pytest.mark.parametrize("begin", [start, check])
def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path, store, begin):
    with pytest.raises(StartupError, match=r"a folder whose path has at most 89 bytes.* --directory"):
        begin(Instance(tmp_path / ("x" * 89)), options(store))


def test_a_check_refuses_the_same_without_archives_and_leaves_nothing(instance, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} of 127.0.0.1 is taken"):
            check(instance, options(tmp_path / "no_store", grpc_inference_port=str(port)))
    check(instance, StartOptions(CONFIG, tmp_path / "no_store", overrides=free_ports()))
    assert not instance.directory.exists()


def test_settings_without_an_address_are_refused(instance, store, tmp_path):
    config = tmp_path / "config.properties"
    config.write_text("inference_address=http://127.0.0.1:1\n")
    with pytest.raises(StartupError, match="management_address: expected an address like"):
        start(instance, StartOptions(config, store))


def test_a_folder_with_other_things_is_not_emptied(tmp_path, store):
    (tmp_path / "logs").mkdir()
    with pytest.raises(StartupError, match="expected an empty folder or a server's"):
        start(Instance(tmp_path), options(store))
    assert (tmp_path / "logs").exists()


OPEN = {"inference_address": "http://0.0.0.0:1", "grpc_inference_address": "0.0.0.0"}


def test_an_address_that_strangers_can_reach_is_refused(instance, store):
    with pytest.raises(StartupError, match=r"reachable from other machines: inference_address .*; grpc_inference"):
        start(instance, options(store, **OPEN))
    assert not instance.directory.exists()


def test_insecure_allows_open_addresses_and_warns_of_each(instance, tmp_path, caplog):
    with pytest.raises(StartupError, match="no archive to serve"):
        start(instance, options(tmp_path, insecure=True, **OPEN))
    warnings = [record.getMessage().split()[0] for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["inference_address", "grpc_inference_address"]


def test_stopping_without_a_server_deletes_nothing(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "key_file.json").touch()
    assert stop(Instance(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_restart_that_cannot_work_stops_nothing(instance, tmp_path):
    instance.directory.mkdir()
    instance.marker.touch()
    instance.key_file.touch()
    with pytest.raises(StartupError, match="no archive to serve"):
        restart(instance, options(tmp_path))
    assert instance.key_file.exists()


def test_two_commands_do_not_start_in_one_directory_at_once(instance, store):
    with locked(instance):
        instance.key_file.write_text("of the first")
        for command in (start, restart):
            with pytest.raises(StartupError, match="another command starts or stops a server there"):
                command(instance, options(store))
        assert instance.key_file.read_text() == "of the first"


def test_a_start_ends_the_workers_of_a_server_that_was_killed(instance, store, monkeypatch):
    command = [sys.executable, "-c", "import signal; signal.pause()", "model_service_worker.py"]
    environment = {**os.environ, INSTANCE_VARIABLE: str(instance.directory.resolve())}
    monkeypatch.setattr(launcher, "_start", lambda *_: None)  # which would begin with these workers gone
    with subprocess.Popen(command, env=environment) as worker:
        assert state_of(instance).state == "stopped"
        start(instance, options(store))
        assert worker.wait() == -signal.SIGKILL


def test_a_stop_waits_until_a_start_under_way_has_given_up(instance, monkeypatch):
    with ExitStack() as start_under_way:
        start_under_way.enter_context(locked(instance))
        instance.key_file.touch()
        instance.logs.mkdir()

        def give_up(_: float) -> None:
            assert instance.key_file.exists()
            assert (instance.logs / "stop-requested").exists()
            start_under_way.close()

        monkeypatch.setattr(launcher.time, "sleep", give_up)
        assert stop(instance) == []
    assert not instance.key_file.exists()


def test_a_stop_also_ends_what_a_start_under_way_launches_meanwhile(instance, monkeypatch):
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    environment = {**os.environ, INSTANCE_VARIABLE: str(instance.directory.resolve())}
    find, launched = Instance.processes, []

    def find_late(found: Instance) -> list[psutil.Process]:
        if len(launched) < 2:  # the first looks find nothing, and then the start has launched a process
            launched.append(None)
            return []
        if len(launched) == 2:
            launched.append(subprocess.Popen(command, env=environment))
            start_under_way.close()
        return find(found)

    monkeypatch.setattr(Instance, "processes", find_late)
    with ExitStack() as start_under_way:
        start_under_way.enter_context(locked(instance))
        instance.logs.mkdir()
        assert stop(instance) == [launched[2].pid]
    assert launched[2].wait() == -signal.SIGKILL


SECRETS = {
    "HF_TOKEN": "1",
    "HF_HUB_TOKEN": "2",
    "AWS_SECRET_ACCESS_KEY": "3",
    "SSH_AUTH_SOCK": "4",
    "LANG": "de_DE.ISO-8859-1",
}
USEFUL = {"PATH": "/bin", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", "HF_HOME": "/hf"}


def test_secrets_stay_outside_and_what_computing_needs_goes_in():
    assert server_environment({**SECRETS, **USEFUL, "TS_CONFIG_FILE": "x"}) == USEFUL


LOCALE = {"LC_ALL": "C.UTF-8"}
PROXIES = {"https_proxy": "http://me:secret@proxy:3128", "HTTP_PROXY": "me:secret@proxy:3128"}
ENDPOINT = {"HF_ENDPOINT": "https://me:secret@mirror/"}
HARMLESS = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost", "PYTHONPATH": "/srv/a@2:/srv/b"}


def test_an_address_with_a_password_in_it_stays_outside_unless_it_is_named():
    assert server_environment({**PROXIES, **ENDPOINT, **HARMLESS}) == LOCALE | HARMLESS
    assert server_environment({**PROXIES, **HARMLESS}, PROXIES) == LOCALE | PROXIES | HARMLESS


def test_a_secret_that_is_named_goes_in():
    assert server_environment({**SECRETS, **USEFUL}, ["HF_TOKEN"]) == {**USEFUL, "HF_TOKEN": "1"}


@pytest.mark.parametrize(("name", "reason"), [("NOT_THERE", "not in the env"), ("TS_X", "in its config.properties")])
def test_a_variable_that_cannot_be_passed_is_named(name, reason):
    with pytest.raises(UsageError, match=f"--pass-env: {name}.*{reason}"):
        server_environment({"TS_X": "1"}, [name])
