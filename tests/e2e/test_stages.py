"""Both models in two stages, under the real TorchServe."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from typer.testing import CliRunner

from demo_server import serve
from e2e.conftest import CONFIG, ROOT, Running, change_settings, post, wait_until
from e2e.scraping import Figures, growth, scrape
from reelscribe import wire
from reelscribe.archive import build as archive
from reelscribe.cli import app
from reelscribe.errors import StartupError


def store(directory: Path, kind: str, weights: str, **handler: object) -> None:
    """An archive of a model in two stages."""
    name = {"caption": "captioner"}.get(kind, kind)
    mar = archive.build(name, kind, weights, directory / "store", stages=2, handlers=ROOT / "handlers")
    settings = yaml.safe_load((ROOT / "handlers" / f"{kind}.yaml").read_text())["handler"]
    change_settings(mar, handler={**settings, "model": weights, "stages": 2, **handler})


@pytest.fixture(scope="module")
def staged(tmp_path_factory, demo_model, demo_speech) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("staged")
    store(directory, "caption", demo_model, stage_seconds=5)
    store(directory, "speech", demo_speech)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.defpath)  # whoever starts a server need not have activated its environment
        with serve(directory, "captioner", CONFIG) as running:
            yield Running(running.instance, running.model)
    assert running.instance.processes() == []


@pytest.fixture(scope="module")
def quiet(both, media, tmp_path_factory) -> bytes:
    """What one process for each model makes of all demo media."""
    out = tmp_path_factory.mktemp("quiet")
    result = both.run("annotate", media, "--out", out)
    assert result.exit_code == 0, result.output
    return (out / "annotations.jsonl").read_bytes()


def second_stage(running: Running) -> psutil.Process:
    """Of the captioner."""
    (process,) = (
        process
        for process in running.instance.processes()
        if (variables := process.environ()).get("RANK") == "1"
        and variables["TORCHELASTIC_RUN_ID"].startswith("captioner")
    )
    return process


def test_two_stages_say_of_all_demo_media_what_one_process_says(staged, media, quiet, tmp_path):
    result = staged.run("annotate", media, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "annotations.jsonl").read_bytes() == quiet


def caption_is_awaited(running: Running, before: Figures) -> bool:
    """Whether more requests have come since `before` than the captioner has answered."""
    grown = scrape(running.instance.address("metrics_address")) - before
    return grown["ts_inference_requests_total", "captioner"] > grown["reelscribe_requests_total", "captioner"]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_stage_that_is_lost_costs_a_run_nothing(staged, media, quiet, tmp_path, sig):
    partial = tmp_path / "annotations.jsonl.partial"
    before = scrape(staged.instance.address("metrics_address"))
    command = staged.command(media, "--out", tmp_path, name="annotate")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        wait_until(lambda: partial.exists() and partial.stat().st_size, run)
        lost = second_stage(staged)
        lost.suspend()  # nothing is answered any more
        wait_until(lambda: caption_is_awaited(staged, before), run)
        lost.send_signal(sig)
        _, complaints = run.communicate(timeout=120)
    assert run.returncode == 0, complaints
    assert (tmp_path / "annotations.jsonl").read_bytes() == quiet
    assert second_stage(staged).pid != lost.pid  # the pair that has answered


def test_stages_and_devices_are_described(staged):
    directory = ["--directory", str(staged.instance.directory)]
    described = CliRunner().invoke(app, ["models", "describe", "captioner", *directory], catch_exceptions=False).output
    assert "stages: 2 processes a worker" in described
    assert 'devices: ["cpu", "cpu"]' in described


async def test_requests_are_joined_to_calls_of_several_device_batches(staged):
    before = scrape(staged.instance.address("metrics_address"))
    body = b"".join(wire.pack({"frames": np.zeros((20, 224, 224, 3), np.uint8)}))
    answers = await asyncio.gather(*(post(staged, body) for _ in range(8)))
    assert {status for status, _ in answers} == {200}
    grown = await growth(staged, before, ("reelscribe_device_items_total", "captioner"), count=8 * 20)
    # Of up to 32 frames; each request alone would have been one of 20.
    assert grown["reelscribe_device_batches_total", "captioner"] < 8


def test_weights_that_are_gone_are_the_reason_that_is_given(tmp_path, demo_model):
    weights = shutil.copytree(demo_model, tmp_path / "weights")
    store(tmp_path, "caption", str(weights))
    (weights / "model.safetensors").unlink()
    with (
        pytest.raises(StartupError, match=r"captioner 1\.0 cannot be loaded: OSError: .*model\.safetensors"),
        serve(tmp_path, "captioner", CONFIG),
    ):
        pass
