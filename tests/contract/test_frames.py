import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize, PixelBudget
from reelscribe.contract.model import CaptionerDescription
from reelscribe.errors import ServerError
from support.fake_torchserve import DESCRIPTION

QWEN2_VL = PixelBudget(factor=28, min_pixels=56 * 56, max_pixels=1280 * 28 * 28)

# Width and height of a video, and what `smart_resize` of transformers.models.qwen2_vl makes of them.
SMART_RESIZE = [
    ((640, 360), (644, 364)),
    ((1920, 1080), (1316, 728)),
    ((1080, 1920), (728, 1316)),
    ((3840, 2160), (1316, 728)),
    ((7680, 4320), (1316, 728)),
    ((320, 240), (308, 252)),
    ((720, 576), (728, 588)),
    ((28, 28), (56, 56)),
    ((30, 40), (56, 84)),
    ((56, 42), (56, 56)),
    ((100, 28), (112, 28)),
    ((1280, 544), (1288, 532)),
    ((4000, 30), (4004, 28)),
    ((30, 4000), (28, 4004)),
]


@pytest.mark.parametrize("frame", [DESCRIPTION.input_size, InputSize(200, 224, "bilinear", 224), QWEN2_VL])
def test_a_description_survives_json(frame):
    description = replace(DESCRIPTION, input_size=frame)
    assert CaptionerDescription.from_json(json.loads(json.dumps(description.to_json()))) == description


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {},
        {**DESCRIPTION.to_json(), "more": 1},
        {**DESCRIPTION.to_json(), "frame": {"width": 1}},
        {**DESCRIPTION.to_json(), "frame": {"width": 1, "height": 1, "resample": "magic"}},
        {**DESCRIPTION.to_json(), "frame": {"factor": 28, "width": 1, "height": 1}},
    ],
)
def test_anything_else_is_no_description(value):
    with pytest.raises(ServerError, match="expected the description of a caption handler"):
        CaptionerDescription.from_json(value)


def test_frames_are_stretched_or_cut_from_the_centre():
    assert InputSize(224, 224).scaled(640, 360) == (224, 224)
    cut = InputSize(200, 224, shortest_edge=224)
    assert cut.scaled(640, 360) == (398, 224)
    assert cut.scaled(360, 640) == (224, 398)
    assert cut.cut(398, 224) == (99, 0)


def test_a_size_is_the_same_for_every_video():
    size = InputSize(224, 224)
    assert size.for_video(1920, 1080) == size
    assert size.nbytes == 224 * 224 * 3


@pytest.mark.parametrize(("video", "expected"), SMART_RESIZE)
def test_a_budget_gives_the_sizes_of_qwen2_vl(video, expected):
    assert QWEN2_VL.for_video(*video) == InputSize(*expected)


def test_the_size_for_a_video_is_scaled_to_as_the_budget_says():
    budget = replace(QWEN2_VL, resample="bilinear")
    assert budget.for_video(640, 360) == InputSize(644, 364, "bilinear")
    assert budget.for_video(640, 360).scaled(640, 360) == (644, 364)


sides = st.integers(1, 20_000)
budgets = st.builds(
    # A budget that has no room for two by two factors between its ends may be impossible to keep.
    lambda factor, least, room: PixelBudget(factor, least * factor**2, 4 * (least + room) * factor**2),
    factor=st.integers(1, 64),
    least=st.integers(1, 1000),
    room=st.integers(0, 20_000),
)


@given(budgets, sides, sides)
def test_sides_are_multiples_of_the_factor_and_never_over_budget(budget, width, height):
    size = budget.for_video(width, height)
    assert size.width % budget.factor == size.height % budget.factor == 0
    assert size.width > 0
    assert size.height > 0
    assert size.nbytes <= budget.nbytes


@given(budgets, st.integers(64, 8192), st.floats(1, 4))
def test_frames_of_usual_shapes_use_the_least_that_is_asked_for_and_keep_their_shape(budget, short, aspect):
    width, height = round(short * aspect), short
    size = budget.for_video(width, height)
    assert size.width * size.height >= budget.min_pixels
    # Each side is off by less than one factor from what the exact shape would be.
    scale = size.width / width
    assert abs(size.height - height * scale) < budget.factor * (1 + height / width)


@given(budgets, sides, sides)
def test_a_video_on_its_side_has_its_size_on_its_side(budget, width, height):
    size, turned = budget.for_video(width, height), budget.for_video(height, width)
    assert (size.width, size.height) == (turned.height, turned.width)
