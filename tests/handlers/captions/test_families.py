"""The tokens of a BLIP-2's captions, in two stages, compared with those of transformers' whole model."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from captions.captioner import Captioner, CaptionSettings
from captions.families import Blip2
from reelscribe.contract.frames import InputSize
from reelscribe.decode.sampling import Sampling
from support.videos import read

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def captioner(demo_model) -> Captioner:
    return Captioner(CaptionSettings(demo_model), CPU)


@pytest.fixture(scope="module")
def frames(media) -> np.ndarray:
    """Frames whose captions have different lengths."""
    return np.stack([frame for _, _, frame in read(media / "spoken.mp4", InputSize(224, 224), Sampling(every=60))])


@pytest.fixture(scope="module")
def original(demo_model):
    return AutoModelForImageTextToText.from_pretrained(demo_model, dtype=torch.float32).eval()


CHANGING = [{"num_beams": 3}, {"no_repeat_ngram_size": 2}]
"""Options for which captions are not found by greedy search."""

CASES = [(options, "") for options in ({}, {"max_new_tokens": 5}, {"min_new_tokens": 20}, {"eos_token_id": [2, 300]})]
CASES += [({"repetition_penalty": 1.5}, ""), ({"repetition_penalty": 0.9}, "a large")]
CASES += [({"eos_token_id": 361}, ""), ({}, "a large")]  # 361 is the token of the image, so no caption ends
CASES += [(options, "") for options in ({"max_new_tokens": 200}, *CHANGING)]  # 200 are more than the model's positions
CASES += [(CHANGING[0], "a large")]


@pytest.mark.parametrize(("options", "prompt"), CASES, ids=str)
def test_tokens_are_those_of_transformers(captioner, original, frames, options, prompt):
    options = {"max_new_tokens": 24, **options}
    prompts = {}
    if prompt:
        text = captioner.processor(images=list(frames), text=[prompt] * len(frames), return_tensors="pt")
        prompts = {name: text[name] for name in ("input_ids", "attention_mask")}
    written = Blip2().generate(captioner.model, options, {**captioner.encode([frames]), **prompts})
    with torch.inference_mode():
        expected = original.generate(pixel_values=captioner.transform(frames), **prompts, **options)
    assert written["tokens"] == expected.tolist()
    assert len(set(map(tuple, written["tokens"]))) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_loads_in_half_precision(demo_model, dtype):
    assert Captioner(CaptionSettings(demo_model, dtype=dtype), CPU).dtype == getattr(torch, dtype)
