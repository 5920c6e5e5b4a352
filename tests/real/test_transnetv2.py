"""TransNetV2 with its published weights: the probabilities are those of its authors' package, on its own film."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import shot_handler
from reelscribe import wire
from runtime.state_dict import load_weights, weights_file
from shots.transnetv2 import TransNetV2
from support.fake_context import FakeContext, parsed
from support.shot_models import film, middles, windows_of

GOLDEN = Path(__file__).parents[1] / "data" / "transnetv2" / "golden.npz"


@pytest.fixture(scope="module")
def weights(part) -> Path:
    """The folder of the published weights."""
    return part("transnetv2")


@pytest.fixture(scope="module")
def golden() -> np.ndarray:
    """The two probabilities of each of the first frames of the film, (N, 2), as the package computes them."""
    return np.load(GOLDEN)["probabilities"]


@pytest.fixture(scope="module")
def windows(part, golden) -> np.ndarray:
    """The windows of these frames."""
    frames = film(part("footage") / "film.mp4")[: len(golden)]
    if hashlib.sha256(frames.tobytes()).hexdigest() != str(np.load(GOLDEN)["frames_sha256"]):
        pytest.skip("this FFmpeg scales frames otherwise than that with which golden.npz was made")
    return windows_of(frames)


def test_the_network_computes_the_probabilities_of_the_package(weights, windows, golden):
    network = TransNetV2(load_weights(weights_file(weights)))
    with torch.inference_mode():
        got = np.concatenate([network(torch.from_numpy(window[None])).numpy() for window in windows])
    assert (golden[:, 0] > 0.5).sum() > 10
    np.testing.assert_allclose(middles(got, len(golden)), golden, rtol=0, atol=1e-5)


def test_the_handler_answers_with_these_probabilities(weights, windows, golden):
    context = FakeContext({"model": str(weights)})
    shot_handler.handle(None, context)
    body = b"".join(wire.pack({"windows": windows[-3:]}))
    (answers,) = parsed(shot_handler.handle([{"body": body}], context))
    got = np.stack([np.stack([each["cut"], each["transition"]], 1) for each in answers])
    first = 50 * (len(windows) - 3)
    np.testing.assert_allclose(middles(got, len(golden) - first), golden[first:], rtol=0, atol=6e-5)  # four decimals
