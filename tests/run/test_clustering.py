"""Embeddings become speakers: separable ones, bounds, short voices, and hours in bounded memory."""

import tracemalloc

import numpy as np

from reelscribe.contract.voices import SpeakerBounds
from reelscribe.run.tracks.clustering import speakers_of

ANY = SpeakerBounds()


def embeddings(labels: np.ndarray, spread: float = 0.6, size: int = 64) -> np.ndarray:
    """Vectors around a random direction for each label, about as alike as those of real voices."""
    rng = np.random.default_rng(0)
    directions = np.abs(rng.standard_normal((labels.max() + 1, size)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    around = rng.standard_normal((len(labels), size)) * spread / size**0.5
    return (directions[labels] + around).astype(np.float32)


def turns(*lengths: int) -> np.ndarray:
    """Labels of speakers 0, 1, 2, 0, 1, ... that speak for so many parts."""
    return np.repeat(np.arange(len(lengths)) % 3, lengths)


def speakers(labels: np.ndarray, bounds: SpeakerBounds = ANY) -> list[int]:
    return speakers_of(embeddings(labels), np.full(len(labels), 0.5), bounds)


def test_voices_that_can_be_told_apart_are():
    labels = turns(20, 15, 30, 10, 25, 5)
    assert speakers(labels) == labels.tolist()
    assert speakers(labels) == speakers(labels)
    assert speakers(turns(40)) == [0] * 40
    assert speakers(turns(1)) == [0]
    assert speakers_of(np.empty((0, 8), np.float32), np.empty(0), ANY) == []


def test_speakers_are_numbered_in_the_order_in_which_they_appear():
    labels = 2 - turns(20, 20, 20)
    assert speakers(labels) == turns(20, 20, 20).tolist()


def test_the_number_of_speakers_is_held_to_its_bounds():
    three, one = turns(20, 20, 20), turns(40)
    for least, most in ((1, 2), (2, 2), (3, 3), (4, 4), (3, 5)):
        assert least <= len(set(speakers(three, SpeakerBounds(least, most)))) <= most
    assert len(set(speakers(one, SpeakerBounds(2, 2)))) == 2


def test_a_voice_of_a_moment_is_no_speaker():
    labels = np.array([0] * 60 + [2] + [1] * 60)
    assert len(set(speakers(labels))) == 2


def test_what_is_heard_again_and_again_for_a_moment_is_no_speaker():
    labels = np.array(([0] * 50 + [2] + [1] * 49) * 50)
    assert len(set(speakers(labels))) == 2


def test_many_who_speak_equally_long_are_all_speakers():
    labels = np.tile(np.repeat(np.arange(40), 20), 4)
    found = speakers_of(embeddings(labels, size=256), np.full(len(labels), 0.5), ANY)
    assert found == labels.tolist()


def test_speakers_keep_their_names_over_hours_in_bounded_memory():
    labels = turns(*[7, 30, 12] * 500)  # 24,500 parts
    vectors, seconds = embeddings(labels), np.full(len(labels), 0.5)
    tracemalloc.start()
    found = speakers_of(vectors, seconds, ANY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == labels.tolist()
    assert peak < 6 * vectors.nbytes


def test_speakers_of_chunks_that_the_model_tells_apart_are_the_same_in_all_chunks():
    labels, parts = np.tile(turns(3, 2, 4), 30), np.tile([3, 2, 4], 30)
    vectors = np.repeat(
        embeddings(np.tile(turns(1, 1, 1), 30), spread=0.2), parts, axis=0
    )  # all parts of a speaker have one
    told = [np.array([1, 1, 1, 0, 0, 2, 2, 2, 2])] * 15 + [np.array([2, 2, 2, 1, 1, 0, 0, 0, 0])] * 15
    seconds = np.full(len(labels), 2.0)
    assert speakers_of(vectors, seconds, ANY, told) == labels.tolist()


def test_voices_that_are_alike_are_two_where_the_model_tells_them_apart():
    both = np.array([[1.0, 0.0], [0.7, 0.7]] * 40, np.float32)
    seconds = np.full(80, 3.0)
    assert speakers_of(both, seconds, ANY) == [0] * 80
    assert speakers_of(both, seconds, ANY, [np.array([0, 1, 0, 1])] * 20) == [0, 1] * 40
    assert speakers_of(both, seconds, SpeakerBounds(1, 1), [np.array([0, 1, 0, 1])] * 20) == [0] * 80


def test_one_speaker_whom_the_model_takes_for_two_in_a_chunk_stays_one():
    vectors, told = embeddings(np.zeros(40, int), spread=0.3), [np.array([0, 0])] * 19 + [np.array([0, 1])]
    assert speakers_of(vectors, np.full(40, 9.0), ANY, told) == [0] * 40


def test_a_speaker_of_a_moment_whom_the_model_tells_apart_is_one_of_the_others():
    labels = np.array([0, 1, 2, 0, 1] * 20)
    told = [np.array([0, 1, 2, 0, 1])] * 20
    seconds = np.tile([5.0, 5.0, 0.2, 5.0, 5.0], 20)
    found = np.array(speakers_of(embeddings(labels), seconds, ANY, told))
    assert (found[labels < 2] == labels[labels < 2]).all()
    assert set(found.tolist()) == {0, 1}
