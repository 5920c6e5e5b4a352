"""Saved batches of frames, and the result of each frame that is made from them."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.outcomes import Caption, Failure
from reelscribe.results.batches import UNDECODABLE, ReusedFrame, SavedFrameBatch, frame_results

BATCHES = [
    SavedFrameBatch(
        0,
        4,
        2,
        captions=[Caption(0, 0.0, "a star", avg_logprob=-0.125), Caption(2, 0.2, "a moon")],
        reused=[ReusedFrame(1, 0.1, 0)],
        failures=[Failure(3, 0.3, "x")],
    ),
    SavedFrameBatch(4, 6, 2, reused=[ReusedFrame(4, 0.4, 2), ReusedFrame(5, 0.5, 2)]),
    SavedFrameBatch(6, 7, 6, captions=[Caption(6, 0.6, "a sun")]),
]


def saved_and_restored(batch: SavedFrameBatch) -> SavedFrameBatch:
    """The batch, after its JSON was stored as UTF-8."""
    stored = batch.results_to_json().encode()
    return SavedFrameBatch.from_json(batch.first, batch.stop, batch.anchor, stored.decode())


def test_results_come_in_the_order_of_frames_and_reused_frames_have_the_caption_of_another():
    assert list(frame_results(BATCHES)) == [
        Caption(0, 0.0, "a star", avg_logprob=-0.125),
        Caption(1, 0.1, "a star", reused_from=0, avg_logprob=-0.125),
        Caption(2, 0.2, "a moon"),
        Failure(3, 0.3, "x"),
        Caption(4, 0.4, "a moon", reused_from=2),
        Caption(5, 0.5, "a moon", reused_from=2),
        Caption(6, 0.6, "a sun"),
    ]


def test_a_frame_that_reuses_the_caption_of_a_failed_frame_has_no_caption_either():
    batch = SavedFrameBatch(
        0,
        3,
        1,
        captions=[Caption(0, 0.0, "a star")],
        failures=[Failure(1, 0.1, "refused")],
        reused=[ReusedFrame(2, 0.2, 1)],
    )
    assert list(frame_results([batch])) == [
        Caption(0, 0.0, "a star"),
        Failure(1, 0.1, "refused"),
        Failure(2, 0.2, "nearly equal to frame 1, which has no caption"),
    ]


def test_a_frame_that_reuses_the_caption_of_a_missing_batch_has_no_caption():
    assert [type(result) for result in frame_results(BATCHES[1:])] == [Failure, Failure, Caption]


def test_no_batches_have_no_results():
    assert list(frame_results([])) == []


def test_the_json_of_a_batch_has_a_list_for_each_frame():
    lists = '[[[0,0.0,"a star",-0.125],[2,0.2,"a moon",null]],[[1,0.1,0]],[[3,0.3,"x"]]]'
    assert BATCHES[0].results_to_json() == lists


def test_a_batch_is_equal_after_it_was_saved_and_restored():
    text = "«étoile»\n\x00 half a surrogate pair: \ud83d"
    odd = SavedFrameBatch(7, 9, None, captions=[Caption(7, 1 / 3, text)], reused=[], failures=[Failure(8, 0.1, text)])
    for batch in [*BATCHES, odd]:
        assert list(frame_results([saved_and_restored(batch)])) == list(frame_results([batch]))
    assert saved_and_restored(odd) == odd


@dataclass(frozen=True)
class Frame:
    """A frame and its result: a caption of its own, the caption of another, a refusal, or it was never sent."""

    kind: str
    ends_batch: bool


FRAMES = st.lists(st.builds(Frame, st.sampled_from(["caption", "reused", "refused", "undecodable"]), st.booleans()))


def to_batches(frames: list[Frame], *, one_batch: bool) -> list[SavedFrameBatch]:
    """The results of the frames in batches that end where the frames say, or in one batch."""
    batches, anchor, first = [], None, 0
    captions, reused, failures = [], [], []
    for index, frame in enumerate(frames):
        if frame.kind == "reused" and anchor is not None:
            reused.append(ReusedFrame(index, index / 10, anchor))
        elif frame.kind == "undecodable":
            failures.append(Failure(index, index / 10, UNDECODABLE))
        elif frame.kind == "refused":
            anchor = index
            failures.append(Failure(index, index / 10, f"error {index}"))
        else:
            anchor = index
            captions.append(Caption(index, index / 10, f"text {index}"))
        if (frame.ends_batch and not one_batch) or index == len(frames) - 1:
            batches.append(SavedFrameBatch(first, index + 1, anchor, captions, reused, failures))
            captions, reused, failures, first = [], [], [], index + 1
    return batches


@given(FRAMES)
def test_results_do_not_depend_on_where_batches_end(frames):
    whole = list(frame_results(to_batches(frames, one_batch=True)))
    assert list(frame_results(map(saved_and_restored, to_batches(frames, one_batch=False)))) == whole
    assert [result.frame_index for result in whole] == list(range(len(frames)))
