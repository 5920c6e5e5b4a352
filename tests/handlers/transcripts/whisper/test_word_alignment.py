import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transcripts.whisper.word_alignment import dynamic_time_warping


def cheapest(costs: np.ndarray) -> float:
    """By the recurrence itself, cell by cell."""
    totals = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    totals[0, 0] = 0
    for i, j in np.ndindex(costs.shape):
        totals[i + 1, j + 1] = costs[i, j] + min(totals[i, j], totals[i, j + 1], totals[i + 1, j])
    return totals[-1, -1]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_a_warping_path_is_whole_and_the_cheapest(height, width, seed):
    costs = np.random.default_rng(seed).standard_normal((height, width))
    rows, columns = dynamic_time_warping(costs)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, height - 1, width - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert costs[rows, columns].sum() == pytest.approx(cheapest(costs))
