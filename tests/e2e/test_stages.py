"""Captioners and speech models in two stages, under the real TorchServe; tests/handlers/pipeline has those of clips."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from typer.testing import CliRunner

from reelscribe import wire
from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.errors import StartupError
from servers.torchserve import HANDLERS
from support.alike import assert_alike
from support.archives import change_settings
from support.patience import PATIENCE
from support.scraping import Figures, growth, scrape_server
from support.servers import RunningServer, assert_same_records, record_of, serve, wait_until


def store(directory: Path, kind: str, weights: str, **handler: object) -> None:
    """An archive of a model in two stages."""
    name = {"caption": "captioner"}.get(kind, kind)
    mar = archive.build(name, kind, weights, directory / "store", stages=2, handlers=HANDLERS)
    settings = yaml.safe_load((HANDLERS / f"{kind}.yaml").read_text())["handler"]
    change_settings(mar, handler={**settings, "model": weights, "stages": 2, **handler})


@pytest.fixture(scope="module")
def staged(tmp_path_factory, demo_model, demo_speech) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("staged")
    store(directory, "caption", demo_model, stage_seconds=10)
    store(directory, "speech", demo_speech)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.defpath)  # a server must start without an activated virtual environment
        with serve(directory, "captioner") as running:
            yield running
    assert running.instance.processes() == []


def second_stage(running: RunningServer) -> psutil.Process:
    """The captioner's process that generates text, when those of earlier workers have ended."""
    deadline = time.monotonic() + PATIENCE
    while len(found := [process for process in running.instance.processes() if is_second_stage(process)]) != 1:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found[0]


def is_second_stage(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        variables = process.environ()
        return variables.get("RANK") == "1" and variables["TORCHELASTIC_RUN_ID"].startswith("captioner")
    return False


def test_two_stages_annotate_all_demo_media_like_one_process(staged, media, annotated, tmp_path):
    result = staged.run("annotate", media, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert_same_records(tmp_path, annotated)


def test_no_process_of_two_stages_listens_beyond_loopback(staged):
    processes = staged.instance.processes()
    assert any("torchrun" in word for process in processes for word in process.cmdline())
    sockets = [connection for process in processes for connection in process.net_connections("inet")]
    listening = {connection.laddr.ip for connection in sockets if connection.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def caption_is_awaited(running: RunningServer, before: Figures) -> bool:
    """Whether more requests have come since `before` than the captioner has answered."""
    grown = scrape_server(running) - before
    return grown["ts_inference_requests_total", "captioner"] > grown["reelscribe_requests_total", "captioner"]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_stage_that_is_lost_costs_a_run_nothing(staged, media, annotated, tmp_path, sig):
    before = scrape_server(staged)
    lost = second_stage(staged)
    lost.suspend()  # so that it answers no request, however fast the machine is
    command = staged.command(media / "spoken.mp4", "--out", tmp_path, "--frames-per-request", "2", name="annotate")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        wait_until(lambda: caption_is_awaited(staged, before), run)
        lost.send_signal(sig)
        _, errors = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, errors
    assert_alike(record_of(tmp_path, "spoken.mp4"), record_of(annotated, "spoken.mp4"))
    assert second_stage(staged).pid != lost.pid  # a new pair of processes answered


def test_stages_and_devices_are_described(staged):
    directory = ["--directory", str(staged.instance.directory)]
    described = CliRunner().invoke(app, ["models", "describe", "captioner", *directory], catch_exceptions=False).output
    assert "stages: 2 processes for each worker" in described
    assert 'devices: ["cpu", "cpu"]' in described


async def test_requests_are_joined_to_calls_of_several_device_batches(staged):
    before = scrape_server(staged)
    body = b"".join(wire.pack({"frames": np.zeros((20, 224, 224, 3), np.uint8)}))
    answers = await asyncio.gather(*(staged.post(body) for _ in range(8)))
    assert {status for status, _ in answers} == {200}
    grown = await growth(staged, before, ("reelscribe_device_items_total", "captioner"), count=8 * 20)
    # Batches hold up to 32 frames. Alone, each request would have been a batch of 20.
    assert grown["reelscribe_device_batches_total", "captioner"] < 8


def test_weights_that_are_gone_are_given_as_the_reason(tmp_path, demo_model):
    weights = shutil.copytree(demo_model, tmp_path / "weights")
    store(tmp_path, "caption", str(weights))
    (weights / "model.safetensors").unlink()
    with (
        pytest.raises(StartupError, match=r"captioner 1\.0 cannot be loaded: OSError: .*model\.safetensors"),
        serve(tmp_path, "captioner"),
    ):
        pass
