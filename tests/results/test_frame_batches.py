"""Parts of a video's chosen frames, and what came of each frame."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.annotations import Caption, Failure
from reelscribe.results.batches import UNDECODABLE, SavedFrameBatch, unfold

PARTS = [
    SavedFrameBatch(
        0, 4, 2, captions=[(0, 0.0, "a star"), (2, 0.2, "a moon")], reused=[(1, 0.1, 0)], failures=[(3, 0.3, "x")]
    ),
    SavedFrameBatch(4, 6, 2, reused=[(4, 0.4, 2), (5, 0.5, 2)]),
    SavedFrameBatch(6, 7, 6, captions=[(6, 0.6, "a sun")]),
]


def test_frames_come_in_order_and_some_with_the_caption_of_another():
    assert list(unfold(PARTS)) == [
        Caption(0, 0.0, "a star"),
        Caption(1, 0.1, "a star", reused_from=0),
        Caption(2, 0.2, "a moon"),
        Failure(3, 0.3, "x"),
        Caption(4, 0.4, "a moon", reused_from=2),
        Caption(5, 0.5, "a moon", reused_from=2),
        Caption(6, 0.6, "a sun"),
    ]


def test_a_frame_that_is_like_a_failed_one_has_no_caption_either():
    part = SavedFrameBatch(0, 3, 1, captions=[(0, 0.0, "a star")], failures=[(1, 0.1, "refused")], reused=[(2, 0.2, 1)])
    assert list(unfold([part])) == [
        Caption(0, 0.0, "a star"),
        Failure(1, 0.1, "refused"),
        Failure(2, 0.2, "nearly equal to frame 1, which has no caption"),
    ]


def test_a_frame_that_is_like_one_of_a_missing_part_has_no_caption():
    assert [type(frame) for frame in unfold(PARTS[1:])] == [Failure, Failure, Caption]


def test_no_parts_are_no_frames():
    assert list(unfold([])) == []


def test_a_part_is_the_same_after_it_was_json():
    odd = SavedFrameBatch(7, 9, None, captions=[(7, 1 / 3, "«étoile»\n\x00 \ud83d")], failures=[(8, 0.1, UNDECODABLE)])
    for part in [*PARTS, odd]:
        again = SavedFrameBatch.from_json(part.first, part.stop, part.anchor, part.results_to_json())
        assert list(unfold([again])) == list(unfold([part]))


def test_the_json_of_any_text_can_be_stored_as_utf_8():
    text = "half a pair: \ud83d"
    stored = SavedFrameBatch(0, 1, 0, captions=[(0, 0.0, text)]).results_to_json().encode()
    (caption,) = unfold([SavedFrameBatch.from_json(0, 1, 0, stored.decode())])
    assert caption.text == text


@dataclass(frozen=True)
class Frame:
    """What comes of a frame: a caption of its own, that of the last one sent, none, or it is never sent."""

    kind: str
    cut: bool
    """Whether a part ends behind it."""


FRAMES = st.lists(st.builds(Frame, st.sampled_from(["caption", "reused", "refused", "undecodable"]), st.booleans()))


def to_parts(frames: list[Frame], *, cut: bool) -> list[SavedFrameBatch]:
    """The frames as parts; as a single one if they are not to be cut."""
    parts, anchor, first = [], None, 0
    captions, reused, failures = [], [], []
    for index, frame in enumerate(frames):
        if frame.kind == "reused" and anchor is not None:
            reused.append((index, index / 10, anchor))
        elif frame.kind == "undecodable":
            failures.append((index, index / 10, UNDECODABLE))
        else:
            anchor = index
            rows = failures if frame.kind == "refused" else captions
            rows.append((index, index / 10, f"text {index}"))
        if (cut and frame.cut) or index == len(frames) - 1:
            parts.append(SavedFrameBatch(first, index + 1, anchor, captions, reused, failures))
            captions, reused, failures, first = [], [], [], index + 1
    return parts


@given(FRAMES)
def test_it_makes_no_difference_where_parts_are_cut(frames):
    whole = list(unfold(to_parts(frames, cut=False)))
    assert list(unfold(to_parts(frames, cut=True))) == whole
    assert [frame.frame_index for frame in whole] == list(range(len(frames)))
