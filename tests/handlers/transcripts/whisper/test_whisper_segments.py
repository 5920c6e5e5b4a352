import pytest

from transcripts.whisper.tokens import split_segments

FIRST = 100
"""The timestamp of 0 s; text tokens are below."""


def at(seconds: float) -> int:
    return FIRST + round(seconds * 50)


@pytest.mark.parametrize(
    ("tokens", "segments", "stopped"),
    [
        ([], [], None),
        ([at(0.5), 1, 2, at(2.9)], [(0.5, 2.9, [1, 2])], None),
        ([at(0), 1, at(1), at(1.5), 2, 3, at(4)], [(0, 1, [1]), (1.5, 4, [2, 3])], None),
        # A segment without an end is dropped, and decoded again.
        ([at(0), 1, at(1), at(1.5)], [(0, 1, [1])], 1.5),
        ([at(0), 1, at(1), at(1.5), 2], [(0, 1, [1])], 1.5),
        # What follows the last segment is decoded, too, unless it is short.
        ([at(0), 1, at(1.9)], [(0, 1.9, [1])], 1.9),
        ([at(0), 1, at(2)], [(0, 2, [1])], None),
        # Without any end, it lasts as long as the audio.
        ([at(0.5), 1, 2], [(0.5, 5, [1, 2])], None),
        ([1, 2], [(0, 5, [1, 2])], None),
        ([at(0.5)], [], None),
        # No time exceeds the audio, even if the window is longer.
        ([at(4), 1, at(8)], [(4, 5, [1])], None),
    ],
)
def test_text_between_timestamps_is_a_segment(tokens, segments, stopped):
    assert split_segments(tokens, FIRST, duration=5, audible=5) == (segments, stopped)


def test_silence_at_the_end_is_not_decoded_again():
    tokens = [at(0), 1, at(1)]
    assert split_segments(tokens, FIRST, duration=5, audible=4.5) == ([(0, 1, [1])], 1)
    assert split_segments(tokens, FIRST, duration=5, audible=3.5) == ([(0, 1, [1])], None)
