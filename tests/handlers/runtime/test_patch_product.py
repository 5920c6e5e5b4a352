"""A model whose first layer would make something else of levels than of its own pixel values does not load."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from captions.captioner import Captioner, CaptionSettings
from clips.describer import ClipSettings, Describer
from reelscribe.errors import StartupError
from runtime.patch_product import PatchProduct

CPU = torch.device("cpu")

WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "brighter by two levels": lambda values: values + 2,
    "not centred": lambda values: values + 128,
    "more contrast": lambda values: values * 1.05,
    "blue, green and red": lambda values: values.unflatten(1, (-1, 3)).flip(2).flatten(1),
    "a pixel to the side": lambda values: values.roll(3, 1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_wrong_product_is_refused(demo_model, clip_model, monkeypatch, change):
    right = PatchProduct.forward
    monkeypatch.setattr(PatchProduct, "forward", lambda self, values: right(self, change(values.float())))
    with pytest.raises(StartupError, match="its first layer makes of levels"):
        Captioner(CaptionSettings(demo_model), CPU)
    with pytest.raises(StartupError, match="its first layer makes of levels"):
        Describer(ClipSettings(clip_model), CPU)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_right_one_is_accepted_in_every_precision(demo_model, clip_model, dtype):
    assert Captioner(CaptionSettings(demo_model, dtype=dtype), CPU).dtype == getattr(torch, dtype)
    assert Describer(ClipSettings(clip_model, dtype=dtype), CPU).dtype == getattr(torch, dtype)
