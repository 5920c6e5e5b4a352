"""The handler of shots with a tiny random model: what it answers, what it refuses, and which weights it takes."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shot_handler
from reelscribe import wire
from reelscribe.contract.descriptions import ShotModelDescription
from reelscribe.contract.shots import WindowAnswer, Windowing
from reelscribe.errors import StartupError
from shots.transnetv2 import TransNetV2
from support.alike import assert_alike
from support.fake_context import FakeContext, parsed
from support.shot_models import film, middles, save_transnetv2, transnetv2_weights, windows_of


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_transnetv2(tmp_path_factory.mktemp("shots") / "model")


@pytest.fixture(scope="module")
def frames(media: Path) -> np.ndarray:
    return film(media / "old.avi")


def load(model: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": model, **settings})
    assert shot_handler.handle(None, context) is None
    return context


def answer(context: FakeContext, *trees) -> list:
    """What the handler answers to requests in one call."""
    return parsed(shot_handler.handle([{"body": b"".join(wire.pack(tree))} for tree in trees], context))


def rows(answers: list[dict]) -> np.ndarray:
    """(windows, T, 2) probabilities."""
    return np.stack([np.stack([each["cut"], each["transition"]], 1) for each in answers])


def expected(windows: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return TransNetV2(transnetv2_weights())(torch.from_numpy(windows)).numpy()


def test_the_middles_of_windows_are_what_is_predicted_of_the_film(model, frames):
    context = load(model, device_batch=2)
    windowing = ShotModelDescription.from_json(described(context)).windowing
    windows = np.stack([frames[windowing.indices(at, len(frames))] for at in range(0, len(frames), windowing.step)])
    (answers,) = answer(context, {"windows": windows})
    whole = middles(expected(windows_of(frames)), len(frames))
    assert len(frames) == 90
    np.testing.assert_allclose(middles(rows(answers), len(frames)), whole, atol=5.1e-5)  # four decimals
    assert whole.std() > 1e-3


def test_windows_of_several_requests_and_lengths_share_device_batches(model, frames):
    context = load(model, device_batch=3)
    short, long = frames[:30], frames[:90]
    one, several, other = answer(context, short, {"windows": [long, short]}, np.stack([short, short[::-1]]))
    assert set(one) == {"cut", "transition"}
    assert (len(one["cut"]), len(several[0]["cut"]), len(several[1]["cut"])) == (30, 90, 30)
    for same in (several[1], other[0]):
        assert_alike(same, one)
    assert other[1] != one
    np.testing.assert_allclose(rows([several[0]]), expected(long[None]), atol=5.1e-5)


def test_pickled_arrays_are_read(model, frames):
    body = pickle.dumps(np.asfortranarray(frames[None, :40]))
    (answers,) = parsed(shot_handler.handle([{"body": bytearray(body)}], load(model)))
    np.testing.assert_allclose(rows(answers), expected(frames[None, :40]), atol=5.1e-5)


def described(context: FakeContext) -> dict:
    context.headers = [{"describe": "True"}]
    (value,) = parsed(shot_handler.handle([{"body": b""}], context))
    context.headers = []
    return value


def test_describe_returns_what_a_client_needs(model):
    description = ShotModelDescription.from_json(described(load(model, max_windows=9)))
    assert (description.name, description.dtype, description.max_windows) == (model, "float32", 9)
    assert description.windowing == Windowing(48, 27, 100, 25)
    assert description.revision.startswith("sha256:")


@pytest.mark.parametrize(
    ("tree", "status", "reason"),
    [
        (np.zeros((5, 28, 48, 3), np.uint8), 422, "expected (N, T) or (T) frames of (27, 48, 3) RGB"),
        (np.zeros((0, 27, 48, 3), np.uint8), 422, "at least one"),
        (np.zeros((27, 48, 3), np.uint8), 422, "expected (N, T)"),
        (np.zeros((5, 27, 48, 3), np.float32), 422, "expected uint8"),
        ({"windows": []}, 422, "expected an array"),
        ({"windows": [5]}, 422, "expected arrays, got int"),
        ({"frames": 5}, 422, "got a dict without windows"),
        (np.zeros((101, 27, 48, 3), np.uint8), 413, "at most 100 frames a window, got 101"),
        (np.zeros((4, 5, 27, 48, 3), np.uint8), 413, "at most 3 a request, got 4"),
    ],
)
def test_what_is_no_window_is_refused_alone(model, tree, status, reason):
    context = load(model, max_windows=3)
    good, bad = answer(context, np.zeros((2, 5, 27, 48, 3), np.uint8), tree)
    assert [WindowAnswer.from_json(each, 5) for each in good]
    assert context.statuses == {1: status}
    assert reason in bad["error"]["message"]


def test_what_does_not_fit_the_call_may_be_sent_again(model):
    context = load(model, max_windows=3)
    _, second = answer(context, *[np.zeros((2, 5, 27, 48, 3), np.uint8)] * 2)
    assert (context.statuses, second["error"]["type"]) == ({1: 503}, "CallFull")


def test_a_picture_is_refused_by_its_name(model):
    context = load(model)
    (value,) = parsed(shot_handler.handle([{"body": b"\xff\xd8\xff" + bytes(9)}], context))
    assert context.statuses == {0: 415}
    assert value["error"]["message"] == "body: expected windows of frames (pickle, .npy), got a JPEG image"


def test_weights_in_safetensors_format_are_the_same_model_of_another_revision(model, tmp_path, frames):
    save_file(transnetv2_weights(), tmp_path / "model.safetensors")
    found = []
    for folder in (model, str(tmp_path)):
        context = load(folder)
        found.append((described(context)["revision"], *answer(context, frames[:9])))
    (one_revision, one), (other_revision, other) = found
    assert one_revision != other_revision
    assert_alike(one, other)


class Touch:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        ({}, "expected the weights of a TransNetV2"),
        ({**transnetv2_weights(), "fc1.weight": torch.zeros(16, 7)}, "expected the weights of a TransNetV2"),
        ({**transnetv2_weights(), "SDDCNN.9999999999.x": torch.zeros(1)}, r"got others \('SDDCNN\.3'\)"),
        ({**transnetv2_weights(), "SDDCNN.1.DDCNN.x": torch.zeros(1)}, r"got others \('SDDCNN\.1\.DDCNN\.2'\)"),
        *(
            ({**transnetv2_weights(), f"{name}.weight": torch.zeros(shape)}, "expected the weights of a TransNetV2")
            for name in ("fc1", *(f"SDDCNN.0.DDCNN.0.Conv3D_1.layers.{k}" for k in range(2)))
            for shape in ((), (4,), (4, 4, 4, 4))
        ),
        ({**transnetv2_weights(), "fc1.bias": torch.full((16,), torch.nan)}, "expected numbers from 0 to 1, got NaN"),
        ([1, 2], "expected a state dict"),
    ],
)
def test_other_weights_are_refused(tmp_path, saved, reason):
    torch.save(saved, tmp_path / "weights.pth")
    with pytest.raises(StartupError, match=reason):
        load(str(tmp_path))


def test_weights_that_would_run_code_are_refused_without_running_it(tmp_path):
    torch.save(Touch(tmp_path / "touched"), tmp_path / "weights.pth")
    with pytest.raises(StartupError, match="cannot be read"):
        load(str(tmp_path))
    assert not (tmp_path / "touched").exists()


def test_a_folder_has_one_file_of_weights(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for missing in (str(tmp_path), "none"):
        with pytest.raises(StartupError, match="got none"):
            load(missing)
    for name in ("a.pth", "b.pth"):
        shutil.copy(Path(model, "weights.pth"), tmp_path / name)
    with pytest.raises(StartupError, match=r"got a\.pth, b\.pth"):
        load(str(tmp_path))


def test_an_answer_that_is_no_number_is_an_error(tmp_path):
    weights = transnetv2_weights()
    weights["SDDCNN.0.DDCNN.0.Conv3D_1.layers.0.weight"] *= 1e38  # too much for a frame that is not black
    torch.save(weights, tmp_path / "weights.pth")
    context = load(str(tmp_path))
    good, bad = (np.full((5, 27, 48, 3), value, np.uint8) for value in (0, 255))
    first, error, last = answer(context, good, bad, good)
    assert context.statuses == {1: 500}
    assert error["error"]["message"].startswith("FloatingPointError: ")
    assert len(first["cut"]) == len(last["cut"]) == 5


def test_two_stages_are_refused(model):
    with pytest.raises(StartupError, match="expected 1 for a shot model"):
        load(model, stages=2)
