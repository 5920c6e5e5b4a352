"""Both models in two stages, under the real TorchServe."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from e2e.conftest import CONFIG, ROOT, Running, change_settings, wait_until
from reelscribe import archive
from reelscribe.cli import app
from reelscribe.errors import StartupError
from serving import serve


def store(directory: Path, kind: str, weights: str, **handler: object) -> None:
    """An archive of a model in two stages."""
    name = {"caption": "captioner"}.get(kind, kind)
    mar = archive.build(name, kind, weights, directory / "store", stages=2, handlers=ROOT / "handlers")
    settings = yaml.safe_load((ROOT / "handlers" / f"{kind}.yaml").read_text())["handler"]
    change_settings(mar, handler={**settings, "model": weights, "stages": 2, **handler})


@pytest.fixture(scope="module")
def staged(tmp_path_factory, demo_model, demo_speech) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("staged")
    store(directory, "caption", demo_model, stage_seconds=2)
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


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_stage_that_is_lost_costs_a_run_nothing(staged, media, quiet, tmp_path, sig):
    partial = tmp_path / "annotations.jsonl.partial"
    command = staged.command(media, "--out", tmp_path, name="annotate")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as run:
        wait_until(lambda: partial.exists() and partial.stat().st_size, run)
        lost = second_stage(staged)
        lost.send_signal(sig)
        _, complaints = run.communicate(timeout=120)
    assert run.returncode == 0, complaints
    assert (tmp_path / "annotations.jsonl").read_bytes() == quiet
    assert not lost.is_running()


def test_stages_and_devices_are_described(staged):
    directory = ["--directory", str(staged.instance.directory)]
    described = CliRunner().invoke(app, ["models", "describe", "captioner", *directory], catch_exceptions=False).output
    assert "stages: 2 processes a worker" in described
    assert 'devices: ["cpu", "cpu"]' in described


def test_weights_that_are_gone_are_the_reason_that_is_given(tmp_path, demo_model):
    weights = shutil.copytree(demo_model, tmp_path / "weights")
    store(tmp_path, "caption", str(weights))
    (weights / "model.safetensors").unlink()
    with (
        pytest.raises(StartupError, match=r"captioner 1\.0 cannot be loaded: OSError: .*model\.safetensors"),
        serve(tmp_path, "captioner", CONFIG),
    ):
        pass
