"""The network computes what plain layers compute, written down one by one as its authors describe them."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from shots.transnetv2 import TransNetV2
from support.shot_models import RATES, transnetv2_weights


def plain_cell(seen: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
    """Of (B, C, T, H, W): a convolution of space and one of time at each rate, side by side, and normalized."""
    of_rates = []
    for rate in RATES:
        of_space = F.conv3d(seen, weights[f"{prefix}Conv3D_{rate}.layers.0.weight"], padding=(0, 1, 1))
        time = weights[f"{prefix}Conv3D_{rate}.layers.1.weight"]
        of_rates.append(F.conv3d(of_space, time, padding=(rate, 0, 0), dilation=(rate, 1, 1)))
    norm = [weights[f"{prefix}bn.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    return F.batch_norm(torch.cat(of_rates, 1), *norm, eps=1e-3)


def plain_similarity(features: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Of (B, T, values): a layer of the cosines of each frame with the 50 before it, itself and the 50 after it."""
    batch, frames, _ = features.shape
    near = torch.zeros(batch, frames, 101)
    for one in range(frames):
        for other in range(max(0, one - 50), min(frames, one + 51)):
            cosine = F.cosine_similarity(features[:, one], features[:, other], eps=1e-12)
            near[:, one, other - one + 50] = cosine
    return F.relu(F.linear(near, weights[f"{name}.weight"], weights[f"{name}.bias"]))


def plain_network(windows: Tensor, weights: dict[str, Tensor]) -> Tensor:
    seen = windows.permute(0, 4, 1, 2, 3).float() / 255
    means = []
    for block in range(3):
        first = F.relu(plain_cell(seen, weights, f"SDDCNN.{block}.DDCNN.0."))
        second = F.relu(plain_cell(first, weights, f"SDDCNN.{block}.DDCNN.1."))
        seen = F.avg_pool3d(first + second, (1, 2, 2))
        means.append(seen.mean((3, 4)).transpose(1, 2))

    def layer(name: str, values: Tensor) -> Tensor:
        return F.linear(values, weights[f"{name}.weight"], weights[f"{name}.bias"])

    bins = (windows.long() >> 5) @ torch.tensor([64, 8, 1])
    colours = torch.stack([(bins == colour).sum((2, 3)) for colour in range(512)], 2).float()
    features = [
        plain_similarity(colours, weights, "color_hist_layer.fc"),
        plain_similarity(layer("frame_sim_layer.projection", torch.cat(means, 2)), weights, "frame_sim_layer.fc"),
        seen.permute(0, 2, 3, 4, 1).flatten(2),
    ]
    hidden = F.relu(layer("fc1", torch.cat(features, 2)))
    return torch.cat([layer("cls_layer1", hidden), layer("cls_layer2", hidden)], 2).sigmoid()


@pytest.mark.parametrize("frames", [1, 7, 60])
def test_the_network_computes_what_plain_layers_compute(frames):
    weights = transnetv2_weights()
    windows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, frames, 27, 48, 3), np.uint8))
    with torch.inference_mode():
        got, expected = TransNetV2(weights)(windows), plain_network(windows, weights)
    assert got.shape == (2, frames, 2)
    assert expected.std() > 1e-3  # the network is lively enough for a difference to show
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lost", ["SDDCNN.1.DDCNN.0.Conv3D_4.layers.1.weight", "fc1.bias", "cls_layer2.weight"])
def test_missing_weights_are_an_error(lost):
    weights = transnetv2_weights()
    del weights[lost]
    with pytest.raises(KeyError, match=lost):
        TransNetV2(weights)
