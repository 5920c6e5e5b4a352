"""Budgets of clips: how many frames are taken, at which size, and in how many bytes; and descriptions as JSON."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as resize_frame
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as resize_clip

from reelscribe.contract.clips import MAX_ASPECT, Clip, ClipBudget, ClipDescription
from reelscribe.contract.descriptions import CaptionerDescription, ClipModelDescription
from reelscribe.contract.frames import InputSize
from reelscribe.errors import ServerError
from support.fake_torchserve import CLIPS, SPEECH

QWEN3_VL = ClipBudget(32, min_pixels=128 * 32**2, max_pixels=768 * 32**2, total_pixels=13_333_333, whole_clip=True)
QWEN2_5_VL = ClipBudget(28, min_pixels=128 * 28**2, max_pixels=768 * 28**2, total_pixels=90_316_800)


def random_clips():
    """Numbers of frames, widths and heights: 1000 each, of a shape that the models take."""
    rng = random.Random(0)
    while True:
        width, height = rng.randint(16, 4000), rng.randint(16, 3000)
        if max(width, height) <= 190 * min(width, height):
            yield rng, rng.choice([2, 3, 4, 6, 8, 9, 20, 64, 200, 768]), width, height


def test_frames_of_qwen3_vl_have_the_size_that_its_own_processor_gives_them():
    for _, (rng, count, width, height) in zip(range(1000), random_clips(), strict=False):
        least, most = rng.choice([4096, 131_072]), rng.choice([122_880, 786_432, 25_165_824])
        budget = ClipBudget(32, least, total_pixels=most, whole_clip=True)
        size = budget.frame_size(count, width, height)
        assert (size.height, size.width) == resize_clip(count, height, width, 2, 32, least, most)


def test_with_a_limit_for_each_frame_they_have_the_size_that_its_reference_implementation_gives_them():
    for _, (rng, count, width, height) in zip(range(1000), random_clips(), strict=False):
        least, most, tokens = rng.choice([4096, 131_072]), rng.choice([122_880, 25_165_824]), rng.choice([17, 147, 768])
        limit = count * max(min(tokens * 32**2, most // count), int(1.05 * least))
        size = ClipBudget(32, least, tokens * 32**2, most, whole_clip=True).frame_size(count, width, height)
        assert (size.height, size.width) == resize_clip(count, height, width, 2, 32, least, limit)


def test_frames_of_qwen2_5_vl_have_the_size_that_its_own_processor_gives_them():
    for _, (rng, count, width, height) in zip(range(1000), random_clips(), strict=False):
        least, most, total = 128 * 28**2, rng.choice([147, 768]) * 28**2, rng.choice([None, 5_000_000, 90_316_800])
        limit = most if total is None else max(min(most, 2 * total // count), int(1.05 * least))
        size = ClipBudget(28, least, most, total).frame_size(count, width, height)
        assert (size.height, size.width) == resize_frame(height, width, 28, least, limit)


budgets = st.builds(
    lambda factor, least, most, total, whole: ClipBudget(
        factor, least * factor**2, most and most * factor**2, total * factor**2, whole_clip=whole
    ),
    factor=st.integers(2, 64),
    least=st.integers(1, 300),
    most=st.none() | st.integers(1, 1000),
    total=st.integers(1, 30_000),
    whole=st.booleans(),
)
seconds = st.floats(0, 1000)


@given(budgets, seconds, st.integers(1, 60_000), st.floats(0, 1), st.integers(1, 20_000), st.integers(1, 20_000))
@example(ClipBudget(28, 128 * 28**2, 128 * 28**2), 30.0, 900, 1.0, 1270, 10)  # both sides are rounded up
def test_no_clip_of_a_length_has_more_bytes_than_are_reserved_for_it(budget, longest, available, part, width, height):
    count = budget.frame_count(available, part * longest)
    assert count * budget.frame_size(count, width, height).nbytes <= budget.most_bytes(longest)


@pytest.mark.parametrize("budget", [QWEN3_VL, QWEN2_5_VL])
def test_little_more_is_reserved_than_a_clip_of_full_size_has(budget):
    size = budget.frame_size(60, 1920, 1080)
    assert 0.8 * budget.most_bytes(30) < 60 * size.nbytes <= budget.most_bytes(30)


@given(budgets, st.integers(1, 800), st.integers(1, 20_000), st.integers(1, 20_000))
def test_sides_are_multiples_of_the_factor(budget, count, width, height):
    size = budget.frame_size(count, width, height)
    assert size.width % budget.factor == size.height % budget.factor == 0
    assert min(size.width, size.height) > 0


@pytest.mark.parametrize(("width", "height"), [(100_000, 20), (20, 100_000), (30_000, 1), (1, 1)])
@pytest.mark.parametrize("budget", [QWEN3_VL, QWEN2_5_VL])
def test_a_frame_that_is_too_long_and_narrow_is_stretched_to_the_narrowest_that_is_taken(budget, width, height):
    narrowest = MAX_ASPECT * min(width, height)
    size = budget.frame_size(8, width, height)
    assert size == budget.frame_size(8, min(width, narrowest), min(height, narrowest))
    assert size.width * size.height <= 768 * budget.factor**2


def test_the_frame_of_a_clip_of_one_frame_keeps_its_size_within_the_limits():
    for budget in (QWEN3_VL, QWEN2_5_VL):
        assert budget.frame_count(1, 0.04) == 1
    assert QWEN3_VL.frame_size(1, 640, 360) == InputSize(640, 352)
    assert QWEN3_VL.frame_size(1, 3840, 2160) == QWEN3_VL.frame_size(2, 3840, 2160) == InputSize(1152, 640)
    assert QWEN3_VL.frame_size(1, 64, 64) == InputSize(384, 384)
    assert QWEN2_5_VL.frame_size(1, 640, 360) == InputSize(644, 364)


def test_a_size_that_is_asked_for_is_rounded_and_overrides_the_limits():
    fixed = replace(QWEN3_VL, resized_width=1000, resized_height=5, resample="bilinear")
    assert {fixed.frame_size(count, 640, 360) for count in (1, 2, 60)} == {InputSize(992, 32, "bilinear")}
    assert fixed.most_bytes(30) == 60 * 992 * 32 * 3


def frames_of_the_reference(total: int, video_fps: float, fps: float, least: int, most: int) -> int:
    """The number of frames as the reference implementation has it, for a clip of at least two frames.

    Both limits are rounded to even numbers, and the upper one never exceeds the frames that there are. The number that
    the rate asks for is put between them, and then rounded down to an even one.
    """
    least, most = 2 * math.ceil(least / 2), 2 * math.floor(min(most, total) / 2)
    wanted = total / video_fps * fps
    return 2 * math.floor(min(max(wanted, least), most, total) / 2)


@given(
    st.integers(2, 50_000),
    st.sampled_from([10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 50.0, 59.94, 60.0]),
    st.sampled_from([0.5, 1.0, 2.0, 4.0, 30.0]),
    st.integers(1, 10),
    st.integers(10, 1000),
)
def test_as_many_frames_are_taken_as_by_the_reference_implementation(total, video_fps, fps, least, most):
    budget = replace(QWEN3_VL, fps=fps, min_frames=least, max_frames=most)
    assert budget.frame_count(total, total / video_fps) == frames_of_the_reference(total, video_fps, fps, least, most)


@pytest.mark.parametrize(
    ("available", "duration", "count"),
    [
        (250, 10.0, 20),  # two a second
        (250, 10.9, 20),  # rounded down to an even number
        (25, 1.0, 4),  # no fewer than four
        (3, 1.0, 2),  # as many as there are
        (1, 0.04, 1),
        (100_000, 4000.0, 768),
    ],
)
def test_a_clip_has_two_frames_a_second_within_limits(available, duration, count):
    assert QWEN3_VL.frame_count(available, duration) == count


@given(budgets, st.integers(1, 10**6), seconds)
def test_no_more_frames_are_taken_than_a_clip_has(budget, available, duration):
    count = budget.frame_count(available, duration)
    assert 1 <= count <= min(available, budget.max_frames)
    assert count % budget.frame_factor == 0 or count == available < budget.frame_factor


@given(budgets, st.sampled_from(["bilinear", "bicubic"]))
def test_a_budget_is_the_same_after_it_was_sent(budget, resample):
    budget = replace(budget, resample=resample, resized_width=64, resized_height=96)
    assert ClipBudget.from_json(json.loads(json.dumps(budget.to_json()))) == budget


@pytest.mark.parametrize("change", [{"more": 1}, {"resample": "magic"}])
def test_any_other_budget_is_refused(change):
    with pytest.raises((TypeError, ValueError)):
        ClipBudget.from_json({**QWEN3_VL.to_json(), **change})
    with pytest.raises(TypeError):
        ClipBudget.from_json({"factor": 28})


def test_a_clip_without_a_prompt_sends_none():
    frames, times = [[[[1, 2, 3]]]], (0.5,)
    assert Clip(frames, times).to_wire() == {"frames": frames, "pts_seconds": [0.5]}
    assert Clip(frames, times, "Why?").to_wire() == {"frames": frames, "pts_seconds": [0.5], "prompt": "Why?"}


DESCRIPTION = ClipDescription("A «dog» runs.", "complete", 5, -0.25)
DESCRIPTION_JSON = DESCRIPTION.to_json()


@pytest.mark.parametrize("description", [DESCRIPTION, ClipDescription("", "truncated", 0)])
def test_a_description_is_the_same_after_it_was_sent(description):
    assert ClipDescription.from_json(json.loads(json.dumps(description.to_json()))) == description


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "text", 5, {}, {"text": "a"}),
        *({name: value for name, value in DESCRIPTION_JSON.items() if name != missing} for missing in DESCRIPTION_JSON),
        *({**DESCRIPTION_JSON, "text": wrong} for wrong in (None, 5, ["a"])),
        *({**DESCRIPTION_JSON, "status": wrong} for wrong in (None, "done", True)),
        *({**DESCRIPTION_JSON, "tokens": wrong} for wrong in (-1, 2.0, True, "2")),
        *({**DESCRIPTION_JSON, "avg_logprob": wrong} for wrong in (0.5, math.nan, -math.inf, True, "-0.5")),
    ],
    ids=str,
)
def test_any_other_description_is_refused(value):
    with pytest.raises((TypeError, KeyError)):
        ClipDescription.from_json(value)


MODEL_JSON = CLIPS.to_json()


def test_the_description_of_a_model_is_the_same_after_it_was_sent():
    assert ClipModelDescription.from_json(json.loads(json.dumps(MODEL_JSON))) == CLIPS


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "text", {}, {"max_clips": 1}),
        {**MODEL_JSON, "more": 1},
        {**MODEL_JSON, "budget": None},
        {**MODEL_JSON, "budget": {"factor": 28}},
        {**MODEL_JSON, "budget": {**MODEL_JSON["budget"], "resample": "magic"}},
    ],
    ids=str,
)
def test_any_other_description_of_a_model_is_refused(value):
    with pytest.raises(ServerError, match=r"expected the description of a clip handler, got .*; is the model"):
        ClipModelDescription.from_json(value)


@pytest.mark.parametrize(
    ("expected", "other", "message"),
    [
        (CaptionerDescription, MODEL_JSON, "expected a caption model, got the clip model a/qwen; give the name"),
        (
            ClipModelDescription,
            SPEECH.to_json(),
            "expected a clip model, got the speech model a/whisper; give the name",
        ),
    ],
)
def test_a_model_of_another_kind_is_named(expected, other, message):
    with pytest.raises(ServerError, match=message):
        expected.from_json(other)


def test_the_identity_of_a_model_depends_on_its_budget_and_prompts_and_not_on_its_limits():
    same = replace(CLIPS, max_clips=1, max_side=9, workers=4, device_batch=1)
    others = [
        {"budget": replace(CLIPS.budget, fps=1.0)},
        {"prompt": "a"},
        {"still_prompt": "a"},
        {"system_prompt": "a"},
    ]
    assert same.identity == CLIPS.identity
    assert CLIPS.identity not in {replace(CLIPS, **change).identity for change in others}
