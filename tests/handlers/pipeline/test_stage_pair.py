"""How the two processes of a model find each other, and what becomes of them when one does not come or load."""

import os
import tempfile
import threading
from multiprocessing.connection import Connection

import pytest
import torch

from pipeline.stage_pair import join_pair, stage_device
from reelscribe.errors import StartupError
from runtime.model_settings import ModelSettings
from support.fake_context import FakeContext
from support.patience import PATIENCE
from support.stage_processes import running
from worker.handler import ModelHandler


def end_before_joining(pipe: Connection, *_: object) -> None:
    pipe.close()


def join_in(pipe: Connection, folder: str, load_seconds: float) -> None:
    tempfile.tempdir = folder
    try:
        join_pair(None, stage_seconds=PATIENCE, load_seconds=load_seconds)
    except StartupError as error:
        pipe.send(str(error))
    else:
        pipe.send("joined")
    pipe.recv()


def test_a_stage_reports_that_the_other_one_never_connects(tmp_path):
    with running(join_in, end_before_joining, str(tmp_path), 1.0) as stages:
        assert stages.receive(0).startswith("stage 2 of 2 did not come within 1 s (")


def test_stages_meet_in_a_folder_of_their_own_and_leave_nothing_there(tmp_path):
    place = tmp_path / f".stages-{os.getuid()}"
    with running(join_in, join_in, str(tmp_path), PATIENCE) as stages:
        assert [stages.receive(rank) for rank in (0, 1)] == ["joined", "joined"]
    assert (place.stat().st_mode & 0o777, list(place.iterdir())) == (0o700, [])
    place.chmod(0o755)
    with running(join_in, end_before_joining, str(tmp_path), PATIENCE) as stages:
        assert f"{place}: expected a folder that is this user's alone" in stages.receive(0)


class OneThatFails(ModelHandler[ModelSettings]):
    """A model of which one of two stages cannot be loaded."""

    settings_class = ModelSettings

    def __init__(self, failing: int) -> None:
        self._failing = failing

    def load_model(self, *_: object) -> None:
        self._load(0)

    def load_second_stage(self, *_: object) -> None:
        self._load(1)

    def _load(self, rank: int) -> None:
        if rank == self._failing:
            raise ValueError("no\nweights")
        threading.Event().wait()


def load_one_that_fails(_: Connection, failing: int) -> None:
    OneThatFails(failing).handle(None, FakeContext({"model": "m", "stages": 2}))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_stage_that_cannot_be_loaded_reports_why_and_ends_both(failing):
    with running(load_one_that_fails, load_one_that_fails, failing) as stages:
        assert [stages.exit_code(rank) for rank in (0, 1)] == [1, 1]
        log = stages.log.read_text()
    assert "cannot load: ValueError: no weights" in log
    assert f"stage {failing + 1} of 2 ends: its model cannot be loaded" in log  # at once, with all its threads


@pytest.mark.parametrize(
    ("visible", "count", "names"),
    [
        (None, 2, ["cuda:0", "cuda:1"]),
        ("", 2, ["cuda:0", "cuda:1"]),
        ("4,5", 2, ["cuda:4", "cuda:5"]),
        ("7", 1, ["cuda:7", "cuda:7"]),
        (None, 1, ["cuda:0", "cuda:0"]),
    ],
)
def test_gpus_have_the_numbers_that_torchserve_knows_them_by(monkeypatch, visible, count, names):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert [stage_device(0, rank) for rank in (0, 1)] == [
        (torch.device("cuda", rank % count), name) for rank, name in enumerate(names)
    ]
    assert stage_device(None, 1) == (torch.device("cpu"), "cpu")
