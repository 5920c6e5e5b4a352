"""Pixel values, tokens and settings of clip models, compared with those of transformers' own processors.

tests/data/clip_processors/make_golden.py made the golden values, as these processors need torchvision.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clips.describer import ClipSettings, Describer
from clips.families import FAMILIES, ProcessorSettings
from reelscribe.contract.clips import Clip

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "clip_processors" / "golden.npz")
CPU = torch.device("cpu")


def settings_of(family: str, clip_model: str) -> ProcessorSettings:
    if family == "qwen2_5_vl":
        return ProcessorSettings({}, {"min_pixels": 3136, "max_pixels": 12_845_056})
    files = ("video_preprocessor_config.json", "preprocessor_config.json")
    return ProcessorSettings(*(json.loads((Path(clip_model) / name).read_text()) for name in files))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [3, 4])
def test_pixel_values_are_those_of_the_models_own_processor(clip_model, family, count):
    name = f"{family}-{count}"
    frames, expected = GOLDEN[f"{name}-frames"], GOLDEN[f"{name}-levels"]
    ours = FAMILIES[family](settings_of(family, clip_model))
    values = ours.patching(frames, CPU, torch.float32).numpy()
    mean, std = (np.repeat(each, values.shape[1] // 3) for each in (ours.patching.mean, ours.patching.std))
    assert values.shape == expected.shape
    assert np.abs((values * std + mean) * 255 - expected).max() <= 1
    assert ours.grid(Clip(frames, [0.0] * count)) == tuple(GOLDEN[f"{name}-grid"])


def test_prompts_have_the_tokens_of_the_models_own_processor(clip_model):
    """Except for one pair: transformers since 5.12 puts a whole video between another start and end.

    The processor by the model's authors, in transformers before 5.12, does not, and neither does vLLM.
    """
    describer = Describer(ClipSettings(clip_model, prompt="Describe this clip."), CPU)
    clip = Clip(GOLDEN["qwen3_vl-4-frames"], GOLDEN["qwen3_vl-times"].tolist())
    inputs = describer.encode([clip])
    start, end = describer.model.config.vision_start_token_id, describer.model.config.vision_end_token_id
    expected = GOLDEN["qwen3_vl-input_ids"].tolist()
    expected.remove(start)
    expected.pop(len(expected) - 1 - expected[::-1].index(end))
    assert inputs["input_ids"][0].tolist() == expected


def test_marks_are_presentation_times_whatever_the_frame_rate(clip_model):
    family = FAMILIES["qwen3_vl"](settings_of("qwen3_vl", clip_model))
    frames = np.zeros((4, 64, 64, 3), np.uint8)
    text = family.video_text(Clip(frames, [3600.04, 3600.5, 3602.0, 3609.8]))
    assert [mark.partition(" seconds>")[0] for mark in text.split("<") if "seconds" in mark] == ["3600.3", "3605.9"]


def test_qwen2_5_is_told_the_time_between_its_patches():
    family = FAMILIES["qwen2_5_vl"](ProcessorSettings({}, {}))
    frames = np.zeros((4, 28, 28, 3), np.uint8)
    inputs = family.video_inputs([Clip(frames, [1.0, 1.5, 2.0, 2.5]), Clip(frames, [0.0, 1.0, 2.0, 6.0])])
    assert inputs["second_per_grid_ts"].tolist() == [1.0, 4.0]
