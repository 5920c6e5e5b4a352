from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transcripts.whisper.tokens import TokenSegment
from transcripts.whisper.word_alignment import monotonic_alignment, state_ranges


@given(st.integers(1, 4), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_columns_are_divided_among_the_rows_with_the_largest_sum(height, more, seed):
    weights = np.random.default_rng(seed).standard_normal((height, height + more))
    starts = monotonic_alignment(weights)
    columns = range(1, height + more)
    every = [[0, *rest] for rest in combinations(columns, height - 1)]

    def total(firsts) -> float:
        return sum(row[a:b].sum() for row, a, b in zip(weights, firsts, [*firsts[1:], height + more], strict=True))

    assert starts.tolist() in every
    assert total(starts.tolist()) == pytest.approx(max(map(total, every)))


SEGMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5)


@given(SEGMENTS, st.integers(1, 250))
def test_every_token_of_every_segment_has_a_state_of_its_own(described, length):
    segments, end = [], 0
    for pause, states, tokens in described:
        start, end = end + pause, end + pause + states
        segments.append(TokenSegment(min(start, length) / 50, min(end, length) / 50, [0] * tokens))
    ranges = state_ranges(segments, length)
    if sum(len(segment.tokens) for segment in segments) > length:
        assert ranges is None
        return
    after = 0
    for (first, stop), segment in zip(ranges, segments, strict=True):
        assert after <= first <= stop - len(segment.tokens)
        after = stop
    assert after <= length


def test_tokens_are_searched_in_their_segment_and_a_little_beside_it_but_in_no_other_one():
    segments = [TokenSegment(1.0, 2.0, [1, 2]), TokenSegment(2.04, 3.0, [3]), TokenSegment(3.0, 4.0, [4])]
    assert state_ranges(segments, 500) == [(45, 101), (101, 150), (150, 205)]
