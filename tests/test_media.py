import pytest

from reelscribe.errors import ServerError
from reelscribe.media import FrameSize, ModelDescription

DESCRIPTION = ModelDescription(
    name="a/b",
    revision="123",
    prompt="",
    generation={"max_new_tokens": 30},
    frame=FrameSize(224, 224),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    dtype="float32",
    device_batch=32,
    max_frames=512,
    max_side=8192,
)


def test_a_description_survives_json():
    assert ModelDescription.from_json(DESCRIPTION.to_json()) == DESCRIPTION


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {},
        {**DESCRIPTION.to_json(), "more": 1},
        {**DESCRIPTION.to_json(), "frame": {"width": 1}},
        {**DESCRIPTION.to_json(), "frame": {"width": 1, "height": 1, "resample": "magic"}},
    ],
)
def test_anything_else_is_no_description(value):
    with pytest.raises(ServerError, match="expected the description of a caption handler"):
        ModelDescription.from_json(value)


def test_frames_are_stretched_or_cut_from_the_centre():
    assert FrameSize(224, 224).scaled(640, 360) == (224, 224)
    cut = FrameSize(200, 224, shortest_edge=224)
    assert cut.scaled(640, 360) == (398, 224)
    assert cut.scaled(360, 640) == (224, 398)
    assert cut.cut(398, 224) == (99, 0)
