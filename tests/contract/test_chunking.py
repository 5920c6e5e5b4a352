"""Where long audio is cut, that no sample is lost, and what counts as silence."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.chunking import Chunker, Cutting, window_energies
from reelscribe.errors import UsageError

RATE = 16_000
LIMIT = 10 * RATE


def noise(seconds, level=3000, seed=0):
    return np.random.default_rng(seed).normal(0, level, round(seconds * RATE)).astype(np.int16)


def chunks_of(samples, limit=LIMIT, cutting=None, push_ends=()):
    chunker = Chunker(limit, RATE, cutting or Cutting())
    pushes = np.split(samples, sorted({min(end, len(samples)) for end in push_ends}))
    return [*(chunk for pushed in pushes for chunk in chunker.push(pushed)), *chunker.flush()]


def cuts_of(samples, **options):
    return np.cumsum([len(chunk) for chunk in chunks_of(samples, **options)])[:-1].tolist()


def test_a_chunk_ends_in_the_middle_of_a_pause():
    samples = noise(14)
    samples[round(8.2 * RATE) : round(8.6 * RATE)] = 0
    assert cuts_of(samples) == pytest.approx([8.4 * RATE], abs=RATE / 50)


def test_a_pause_before_the_searched_end_of_a_chunk_is_ignored():
    samples = noise(14)
    samples[round(6.2 * RATE) : round(6.6 * RATE)] = 0
    (cut,) = cuts_of(samples, cutting=Cutting(search_seconds=3))
    assert cut > 7 * RATE
    assert cuts_of(samples, cutting=Cutting(search_seconds=5)) == pytest.approx([6.4 * RATE], abs=RATE / 50)


def test_the_last_of_several_equally_quiet_pauses_is_chosen():
    samples = noise(14)
    for start in (7.5, 8.5):
        samples[round(start * RATE) : round((start + 0.3) * RATE)] = 0
    assert cuts_of(samples) == pytest.approx([8.65 * RATE], abs=RATE / 50)


def test_the_quietest_pause_is_chosen_even_if_none_is_silent():
    samples = noise(14)
    for start, level in ((7.5, 30), (8.5, 60)):
        samples[round(start * RATE) : round((start + 0.3) * RATE)] = noise(0.3, level)
    (cut,) = cuts_of(samples)
    assert 7.5 * RATE < cut < 7.8 * RATE


def test_without_a_search_chunks_have_the_maximum_length():
    assert cuts_of(noise(35), cutting=Cutting(search_seconds=0)) == [LIMIT, 2 * LIMIT, 3 * LIMIT]


def test_audio_that_fits_into_one_chunk_is_not_cut():
    assert [len(chunk) for chunk in chunks_of(noise(10))] == [LIMIT]
    assert [len(chunk) for chunk in chunks_of(noise(0.01))] == [RATE // 100]
    assert chunks_of(noise(0)) == []


@pytest.mark.parametrize("search_seconds", [0, 3])
@pytest.mark.parametrize("beyond", [1, RATE // 5, RATE])
def test_the_last_chunk_is_at_least_a_second_long(beyond, search_seconds):
    lengths = [len(chunk) for chunk in chunks_of(noise(30)[: LIMIT + beyond], cutting=Cutting(search_seconds))]
    assert len(lengths) == 2
    assert RATE <= min(lengths) <= max(lengths) <= LIMIT


@given(st.data())
def test_no_sample_is_lost_and_the_size_of_pushes_makes_no_difference(data):
    length = data.draw(st.integers(0, 9 * RATE))
    limit = data.draw(st.integers(RATE * 3 // 2, 3 * RATE))
    level = data.draw(st.sampled_from([0, 1, 3000]))  # silence and faint noise are full of ties
    push_ends = data.draw(st.lists(st.integers(0, 9 * RATE), max_size=8))
    samples, cutting = noise(9, level)[:length], Cutting(0.4, 0.1)
    chunks = chunks_of(samples, limit, cutting, push_ends)
    assert np.array_equal(np.concatenate([samples[:0], *chunks]), samples)
    assert all(0 < len(chunk) <= limit for chunk in chunks)
    assert [len(chunk) for chunk in chunks] == [len(chunk) for chunk in chunks_of(samples, limit, cutting)]


def test_a_chunker_holds_little_more_than_a_chunk():
    chunker, pushed, returned = Chunker(LIMIT, RATE), 0, 0
    for samples in np.split(noise(60), 600):
        returned += sum(map(len, chunker.push(samples)))
        pushed += len(samples)
        assert pushed - returned <= LIMIT + RATE + len(samples)


def test_a_flushed_chunker_starts_another_stream():
    chunker = Chunker(LIMIT, RATE)
    first = [*chunker.push(noise(23)), *chunker.flush()]
    second = [*chunker.push(noise(23)), *chunker.flush()]
    assert [len(chunk) for chunk in first] == [len(chunk) for chunk in second]


def test_the_loudest_samples_do_not_overflow():
    samples = np.full(14 * RATE, -32768, np.int16)
    samples[round(7.2 * RATE) : round(7.6 * RATE)] = 100
    assert cuts_of(samples) == pytest.approx([7.4 * RATE], abs=RATE / 50)


@pytest.mark.parametrize(("window", "hop"), [(4800, 160), (320, 160), (3307, 110), (160, 441)])
def test_the_energy_of_a_window_is_the_exact_sum_of_its_squares(window, hop):
    samples = noise(1, level=20_000)[: RATE - 1]
    sums = [int((samples[at : at + window].astype(int) ** 2).sum()) for at in range(0, len(samples) - window + 1, hop)]
    assert window_energies(samples, window, hop).tolist() == sums


@pytest.mark.parametrize(
    ("cutting", "message"),
    [
        ({"search_seconds": -1}, "search_seconds: expected 0, or from window_seconds, 0.3, to 600 seconds, got -1"),
        ({"search_seconds": 0.05}, "search_seconds: expected 0, or from window_seconds, 0.3"),
        ({"search_seconds": float("nan")}, "search_seconds: expected 0"),
        ({"window_seconds": 0}, "window_seconds: expected 0.01 to 10 seconds, got 0"),
    ],
)
def test_values_out_of_range_are_refused(cutting, message):
    with pytest.raises(UsageError, match=message):
        Cutting(**cutting)


def test_chunks_that_leave_no_room_for_the_search_are_refused():
    with pytest.raises(UsageError, match=r"expected more than 6.0 seconds .* got 6.0; search less"):
        Chunker(6 * RATE, RATE, Cutting(search_seconds=5))


def test_without_a_choice_half_of_a_chunk_is_searched_or_what_there_is_room_for():
    samples = np.concatenate([noise(5.05), noise(0.4, 30), noise(8)])
    samples[round(4.5 * RATE) : round(4.95 * RATE)] = 0  # quieter, but in the first half
    assert cuts_of(samples) == pytest.approx([5.25 * RATE], abs=RATE / 50)
    assert len(chunks_of(noise(3), limit=2 * RATE)) > 1


def test_cutting_survives_conversion_to_plain_values():
    cutting = Cutting(2.0, 0.2)
    assert Cutting(**asdict(cutting)) == cutting
