"""TransNetV2 with its published weights: the probabilities are those of its authors' package, on its own film."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import shot_handler
from shots.detector import load_weights, weights_file
from shots.transnetv2 import TransNetV2
from support.fake_context import FakeContext, parsed
from support.shot_models import film, windows_of

GOLDEN = Path(__file__).parents[1] / "data" / "transnetv2" / "golden.npz"
STEP = 5
"""Of the film's 107 windows, each fifth one is compared: they take half a minute."""


@pytest.fixture(scope="module")
def weights(part) -> Path:
    """The folder of the published weights."""
    return part("transnetv2")


@pytest.fixture(scope="module")
def path(part) -> Path:
    """The film in the package's tests."""
    return part("footage") / "test.mp4"


def test_probabilities_are_those_of_the_package(weights, path):
    golden, frames = np.load(GOLDEN), film(path)
    if hashlib.sha256(frames.tobytes()).hexdigest() != str(golden["frames_sha256"]):
        pytest.skip("this FFmpeg scales frames otherwise than that with which golden.npz was made")
    network, windows = TransNetV2(load_weights(weights_file(weights))), windows_of(frames)
    assert len(golden["probabilities"]) == len(frames) == 5301
    for number in range(0, len(windows), STEP):
        with torch.inference_mode():
            (got,) = network(torch.from_numpy(windows[number : number + 1])).numpy()
        expected = golden["probabilities"][50 * number : 50 * number + 50]
        np.testing.assert_allclose(got[25 : 25 + len(expected)], expected, rtol=0, atol=1e-5)


async def test_a_run_finds_the_shots_that_follow_from_these_probabilities(weights, path, tmp_path):
    context = FakeContext({"model": str(weights)})
    shot_handler.handle(None, context)
    context.headers = [{"describe": "True"}]
    (description,) = parsed(shot_handler.handle([{"body": b""}], context))
    context.headers = []
    del description["machine"]
