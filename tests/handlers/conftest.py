"""Handlers are tested as if each call had other kernels."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

ULPS = 16
"""Largest error of a product, in units of the last place, and some times that of real kernels."""


@pytest.fixture(autouse=True)
def other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round products of matrices in another way for each size of a batch, and for each place in it.

    Which kernels a processor chooses by these is nobody's promise. So a test that compares numbers of several batches
    for equality, or texts that hang on the last digit, fails on every machine, and not only on some.
    """
    monkeypatch.setattr(F, "linear", _rounded_otherwise(F.linear))


def _rounded_otherwise(linear: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def other(*arguments: Tensor | None, **named: Tensor | None) -> Tensor:
        product = linear(*arguments, **named)
        *batch, size = product.shape
        generator = torch.Generator().manual_seed(product.numel())
        places = torch.empty(*batch, 1).uniform_(-1, 1, generator=generator)
        errors = places * torch.empty(size).uniform_(-ULPS, ULPS, generator=generator)
        return product * (1 + errors * torch.finfo(torch.float32).eps).to(product.dtype)

    return other
