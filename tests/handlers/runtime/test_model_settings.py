"""Where weights are loaded from, and what their revision is."""

import importlib.util
import math
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import AutoModelForImageTextToText

from reelscribe.errors import StartupError
from runtime import model_settings
from runtime.model_settings import ModelSettings, revision_of
from runtime.pretrained import load_pretrained
from support.fake_hub import COMMIT
from transcripts.speech_model import SpeechSettings


def loaded(commit: str | None = None) -> SimpleNamespace:
    """A model as transformers has loaded it: from the hub if there is a commit, otherwise from a directory."""
    return SimpleNamespace(config=SimpleNamespace(_commit_hash=commit))


@pytest.fixture
def unpacked(tmp_path, demo_model, monkeypatch) -> ModuleType:
    """runtime/model_settings.py as an archive with bundled weights has it."""
    shutil.copytree(demo_model, tmp_path / "weights")
    (tmp_path / "runtime").mkdir()
    path = shutil.copy(model_settings.__file__, tmp_path / "runtime")
    spec = importlib.util.spec_from_file_location("unpacked_settings", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_weights_are_loaded_from_their_source_unless_the_archive_bundles_them(unpacked, tmp_path):
    assert ModelSettings("some/model").pretrained == "some/model"
    assert unpacked.ModelSettings("some/model", weights="weights").pretrained == str(tmp_path / "weights")


def test_bundled_weights_have_the_revision_of_their_source(unpacked, demo_model):
    from_hub = unpacked.ModelSettings("some/model", revision=COMMIT, weights="weights")
    assert revision_of(from_hub, loaded()) == COMMIT
    from_directory = unpacked.ModelSettings("/gone", weights="weights")
    assert revision_of(from_directory, loaded()) == revision_of(ModelSettings(demo_model), loaded())


def test_weights_of_the_hub_have_the_commit_that_was_loaded():
    assert revision_of(ModelSettings("some/model", revision="main"), loaded(COMMIT)) == COMMIT


def test_changed_weights_of_a_directory_have_another_revision(tmp_path, demo_model):
    directory = shutil.copytree(demo_model, tmp_path / "model")
    settings = ModelSettings(str(directory), revision="ignored")
    before = revision_of(settings, loaded())
    weights = Path(directory, "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    assert before.startswith("sha256:")
    assert revision_of(settings, loaded()).startswith("sha256:")
    assert revision_of(settings, loaded()) != before


@pytest.mark.parametrize("kind", [ModelSettings, SpeechSettings])
@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("device_batch", [0, "8", 1.5], "null, 1 or more"),
        ("cpu_threads", [0, None, True], "a whole number of 1 or more"),
        ("read_threads", [-1, "2", True, 1.5], "null, 0 or more"),
        ("in_flight", [0, None, 2.0], "a whole number of 1 or more"),
        ("stages", [0, 3, None, True, "2"], "1 or 2"),
        ("stage_seconds", [0, -1, None, "30", True, math.inf, math.nan], "a finite number over 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, name, values, expected):
    for value in values:
        with pytest.raises(StartupError, match=f"YAML, handler, {name}: expected {expected}, got {value!r}"):
            kind("model", **{name: value})


@pytest.mark.parametrize(
    ("device", "options", "items"),
    [
        ("cpu", {}, 16),
        ("cuda:0", {}, 64),
        ("cuda:0", {"stages": 2}, 16),
        ("cuda:0", {"device_batch": 3}, 3),
        ("cpu", {"device_batch": 3}, 3),
    ],
)
def test_a_gpu_takes_more_items_at_once_unless_the_yaml_says_how_many(device, options, items):
    assert SpeechSettings("model", **options).items_at_once(torch.device(device)) == items


def test_the_capability_of_the_assigned_gpu_decides_between_bfloat16_and_float16(tmp_path, monkeypatch):
    capabilities = {0: (9, 0), 1: (8, 0), 2: (7, 5), 3: (7, 0)}  # H100, A100, T4, V100
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)  # as for all of them, by emulation
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
    settings = ModelSettings(str(tmp_path))
    chosen = [settings.torch_dtype(torch.device("cuda", k)) for k in capabilities]
    assert chosen == [torch.bfloat16, torch.bfloat16, torch.float16, torch.float16]
    assert settings.torch_dtype(torch.device("cpu")) == torch.float32
    assert ModelSettings(str(tmp_path), dtype="bfloat16").torch_dtype(torch.device("cuda", 3)) == torch.bfloat16


def test_weights_in_a_format_that_can_hold_programs_are_refused(tmp_path, demo_model):
    folder = shutil.copytree(demo_model, tmp_path / "weights")
    settings, cpu = ModelSettings(str(folder)), torch.device("cpu")
    weights = load_pretrained(AutoModelForImageTextToText, settings, cpu).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load_pretrained(AutoModelForImageTextToText, settings, cpu)
