"""Input sizes of captioners: fixed ones, and the sizes that a pixel budget gives each video."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.frames import InputSize, PixelBudget

QWEN2_VL = PixelBudget(factor=28, min_pixels=56 * 56, max_pixels=1280 * 28 * 28)

# Width and height of a video, and the size that `smart_resize` of transformers.models.qwen2_vl gives it.
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


def test_a_frame_is_stretched_unless_there_is_a_shortest_edge():
    assert InputSize(224, 224).scaled_size(640, 360) == (224, 224)


def test_with_a_shortest_edge_a_frame_keeps_its_aspect_ratio_and_is_cropped_at_the_centre():
    size = InputSize(200, 224, shortest_edge=224)
    assert size.scaled_size(640, 360) == (398, 224)
    assert size.scaled_size(360, 640) == (224, 398)
    assert size.crop_offset(398, 224) == (99, 0)


def test_a_fixed_size_is_the_same_for_every_video():
    size = InputSize(224, 224)
    assert size.for_video(1920, 1080) == size
    assert size.nbytes == 224 * 224 * 3


@pytest.mark.parametrize(("video", "expected"), SMART_RESIZE)
def test_a_budget_gives_the_same_sizes_as_qwen2_vl(video, expected):
    assert QWEN2_VL.for_video(*video) == InputSize(*expected)


def test_frames_are_stretched_to_the_size_of_the_budget_with_its_interpolation():
    budget = replace(QWEN2_VL, resample="bilinear")
    assert budget.for_video(640, 360) == InputSize(644, 364, "bilinear")
    assert budget.for_video(640, 360).scaled_size(640, 360) == (644, 364)


sides = st.integers(1, 20_000)
budgets = st.builds(
    # Of a budget whose ends are closer together than two by two factors, no size may exist.
    lambda factor, least, room: PixelBudget(factor, least * factor**2, 4 * (least + room) * factor**2),
    factor=st.integers(1, 64),
    least=st.integers(1, 1000),
    room=st.integers(0, 20_000),
)


@given(budgets, sides, sides)
def test_sides_are_multiples_of_the_factor_and_never_exceed_the_budget(budget, width, height):
    size = budget.for_video(width, height)
    assert size.width % budget.factor == size.height % budget.factor == 0
    assert size.width > 0
    assert size.height > 0
    assert size.nbytes <= budget.nbytes


@given(budgets, st.integers(64, 8192), st.floats(1, 4))
def test_frames_of_usual_shapes_have_at_least_the_smallest_number_of_pixels_and_keep_their_shape(budget, short, aspect):
    width, height = round(short * aspect), short
    size = budget.for_video(width, height)
    assert size.width * size.height >= budget.min_pixels
    # Each side differs by less than one factor from that of the exact shape.
    scale = size.width / width
    assert abs(size.height - height * scale) < budget.factor * (1 + height / width)


@given(budgets, sides, sides)
def test_a_rotated_video_has_the_rotated_size(budget, width, height):
    size, turned = budget.for_video(width, height), budget.for_video(height, width)
    assert (size.width, size.height) == (turned.height, turned.width)
