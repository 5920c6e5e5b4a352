"""Servers and their keys are found where a user would expect it."""

import json
from pathlib import Path

import pytest

from reelscribe.client.endpoint import Server
from reelscribe.errors import UsageError
from reelscribe.server.server_discovery import find_managed_server, find_servers

ELSEWHERE = "http://gpu-machine:8080"


def write_keys(path: Path, key: str) -> Path:
    path.write_text(json.dumps({"inference": {"key": key}, "management": {"key": f"{key} of management"}}))
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder, without servers or keys, in an environment that names none."""
    monkeypatch.chdir(tmp_path)
    for variable in ("REELSCRIBE_SERVER", "REELSCRIBE_KEY_FILE"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def start(directory: Path, *, port: int = 9080, tokens: bool = True) -> Path:
    """Make what a server has in its folder while it runs."""
    (directory / "tmp").mkdir(parents=True)
    addresses = f"inference_address=http://0.0.0.0:{port}\nmanagement_address=http://127.0.0.1:{port + 1}\n"
    (directory / "config.properties").write_text(addresses + f"disable_token_authorization={str(not tokens).lower()}\n")
    if tokens:
        write_keys(directory / "key_file.json", f"key of {port}")
    return directory


@pytest.fixture
def local(folder) -> Path:
    """The folder of a server that runs on ports of its own, below the working folder."""
    return start(folder / ".server")


def found(*arguments, **options) -> list[tuple[str, str | None]]:
    """Address and key of each server that is found."""
    servers = [each.server for each in find_servers(*arguments, **options)]
    return [(server.url, server.credentials.token if server.credentials else None) for server in servers]


def test_by_default_it_is_the_server_of_this_folder_with_its_key(local):
    assert found() == [("http://127.0.0.1:9080", "key of 9080")]
    (server,) = find_servers()
    assert (server.managed.address, server.managed.credentials.token) == (
        "http://127.0.0.1:9081",
        "key of 9080 of management",
    )


def test_a_server_of_this_folder_is_found_again_at_another_address_unless_one_was_named(local):
    (server,) = (each.server for each in find_servers())
    (named,) = (each.server for each in find_servers(["http://127.0.0.1:9080"]))
    assert named.find_again is None
    (local / "tmp").rmdir()
    assert server.find_again() is None
    start(local, port=7080)
    again = server.find_again()
    assert (again.url, again.credentials.token) == ("http://127.0.0.1:7080", "key of 7080")
    (local / "key_file.json").unlink()  # a server that is just starting
    assert again.find_again() is None


def test_a_server_without_tokens_is_found_too(folder):
    start(folder / ".server", tokens=False)
    write_keys(folder / "key_file.json", "of another server")
    assert found() == [("http://127.0.0.1:9080", None)]


def test_a_server_that_was_stopped_is_not_used(local):
    (local / "tmp").rmdir()
    assert found() == [("http://127.0.0.1:8080", None)]


def test_the_server_of_any_folder_of_this_machine_can_be_named(folder):
    second = start(folder / "elsewhere" / "second", port=7080)
    assert found(directory=second) == [("http://127.0.0.1:7080", "key of 7080")]
    with pytest.raises(UsageError, match="nothing: no server runs there"):
        found(directory=folder / "nothing")
    assert found([ELSEWHERE], directory=folder / "nothing") == [(ELSEWHERE, None)]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9080", "http://localhost:9080", "http://127.0.0.1:9080/"])
def test_the_key_of_this_folder_is_sent_to_its_server_and_to_no_other(local, url):
    assert found([url]) == [(url, "key of 9080")]
    assert found([ELSEWHERE]) == [(ELSEWHERE, None)]


def test_a_key_file_in_the_working_folder_is_that_of_the_one_server(folder):
    write_keys(folder / "key_file.json", "copied")
    assert found() == [("http://127.0.0.1:8080", "copied")]
    assert found([ELSEWHERE]) == [(ELSEWHERE, "copied")]
    assert found([ELSEWHERE, "http://other:8080"]) == [(ELSEWHERE, None), ("http://other:8080", None)]


def test_the_environment_names_servers_and_keys(folder, local, monkeypatch):
    monkeypatch.setenv("REELSCRIBE_SERVER", f"{ELSEWHERE} http://other:8080")
    keys = [write_keys(folder / f"{name}.json", name) for name in ("one", "two")]
    monkeypatch.setenv("REELSCRIBE_KEY_FILE", ":".join(map(str, keys)))
    assert found() == [(ELSEWHERE, "one"), ("http://other:8080", "two")]
    assert found(["http://third:8080"]) == [("http://third:8080", None)]  # the keys are those of other servers
    assert found(directory=local) == [("http://127.0.0.1:9080", "key of 9080")]


def test_keys_and_servers_must_fit_together(local):
    key_file = local / "key_file.json"
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    assert found(urls, [key_file]) == [(url, "key of 9080") for url in urls]
    with pytest.raises(UsageError, match="expected one for all, or one for each --server, got 2"):
        found(urls, [key_file] * 2)
    with pytest.raises(UsageError, match="expected a single --server"):
        found(urls, management="http://127.0.0.1:9081")


def test_a_server_to_manage_is_that_of_a_folder_or_of_an_address_with_the_key_beside_it(folder, local):
    write_keys(folder / "key_file.json", "copied")
    for managed in (find_managed_server(), find_managed_server("http://127.0.0.1:9081")):
        assert (managed.address, managed.credentials.token) == ("http://127.0.0.1:9081", "key of 9080 of management")
        assert managed.instance is not None
    elsewhere = find_managed_server("http://gpu-machine:8081")
    assert (elsewhere.credentials.token, elsewhere.instance) == ("copied of management", None)
    with pytest.raises(UsageError, match=f"{folder}/nothing: no server was started there; give its --directory, or"):
        find_managed_server(directory=Path("nothing"))


def test_in_python_each_server_with_openais_api_that_is_named_as_text_gets_the_key(monkeypatch):
    one, two = "openai+https://api.example/v1", "openai+http://gpu-machine:8000/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "ours")
    for address in (one, two):
        (each,) = find_servers([address])
        assert (each.server.url, each.server.credentials) == (address, "ours")
    assert Server(one).credentials is None
