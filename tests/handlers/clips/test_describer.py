"""The tokens of descriptions, compared with those of transformers with its own options."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from clips.describer import ClipSettings, Describer
from reelscribe.contract.clips import Clip
from runtime.generation import generate
from support.tiny_models import save_qwen2_5_vl
from synthetic.event_clips import random_event_clip

CPU = torch.device("cpu")
SHAPES = [(8, 3, 5), (8, 3, 5), (5, 4, 3), (1, 3, 5), (2, 2, 2)]
"""Frames of each clip, and its rows and columns of groups of patches; a single frame is a still."""


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def describer(request, clip_model, tmp_path_factory) -> Describer:
    ours = request.param == "qwen3_vl"
    return Describer(
        ClipSettings(clip_model if ours else save_qwen2_5_vl(tmp_path_factory.mktemp("q"), clip_model)), CPU
    )


@pytest.fixture(scope="module")
def original(describer):
    return AutoModelForImageTextToText.from_pretrained(describer.settings.model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def inputs(describer) -> dict[str, Tensor]:
    rng, clips = random.Random(1), []
    for count, rows, columns in SHAPES:
        event, size = random_event_clip(rng), (columns * describer.budget.factor, rows * describer.budget.factor)
        frames = [np.asarray(event.draw((k + 0.5) / count, 640, 360).resize(size)) for k in range(count)]
        clips.append(Clip(np.stack(frames), [0.5 * k for k in range(count)]))
    return describer.encode(clips)


CASES = [{}, {"max_new_tokens": 1}, {"min_new_tokens": 15}, {"eos_token_id": [446, 300]}]
CASES += [{"repetition_penalty": 1.3}]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_tokens_are_those_of_transformers(describer, original, inputs, options):
    options = {"max_new_tokens": 24, "do_sample": False, **options}
    generated = generate(describer.model, options, inputs)
    with torch.inference_mode():
        expected = original.generate(**inputs, **options)
    assert generated["tokens"] == expected.tolist()
    assert len(set(map(tuple, generated["tokens"]))) > 1
    assert max(generated["avg_logprobs"]) <= 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_loads_in_half_precision(clip_model, dtype):
    assert Describer(ClipSettings(clip_model, dtype=dtype), CPU).dtype == getattr(torch, dtype)
