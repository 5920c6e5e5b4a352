"""Flags of captions and of descriptions of clips: texts that repeat themselves, and that are nearly equal to others."""

import random
import time

import pytest

from reelscribe.contract.outcomes import Caption, DescribedClip, Utterance
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode.sampling import Sampling
from reelscribe.results.flags import chosen_to_differ, repeats_itself, speech_flags, with_flags

DOG = "A dog runs on the beach."
DOG_TOO = "A dog runs on a beach."
CAT = "A cat sleeps on the sofa."


@pytest.mark.parametrize(
    "text",
    [
        "A man walks. A man walks. A man walks. A man walks.",
        "a man and a man and A MAN AND a man and a man",
        "A street with cars: a red car, a red car, a red car, a red car, a red car, a red car.",
        "the the the the the the",
        "\n".join(["A man\twalks."] * 4),
        "人走路。人走路。人走路。人走路。",  # without spaces, by letters
        "哈哈哈哈哈哈",
        "aaaaaaaaaaaa",
    ],
)
def test_a_text_that_says_the_same_again_and_again_repeats_itself(text):
    assert repeats_itself(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "no no",
        "no no no no no",  # too short to tell
        "aaaaa",
        "A man walks. A man walks.",
        "one two three four five six",
        "A man in a red shirt walks along a street with a dog, and a woman in a red dress walks along behind him.",
        "First the door opens, then the light goes on, and then the door closes and the light goes out again.",
        "一个男人沿着街道走、然后停下来看一扇窗户里的东西。",
        "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    ],
)
def test_a_text_that_people_may_write_does_not(text):
    assert not repeats_itself(text)


def caption(text: str) -> Caption:
    return Caption(0, 0.0, text)


def clip(text: str) -> DescribedClip:
    return DescribedClip(0.0, 1.0, 4, text, "complete", 9)


@pytest.mark.parametrize("made", [caption, clip])
@pytest.mark.parametrize(
    ("texts", "near"),
    [
        ([], []),
        ([DOG], [False]),
        ([DOG, CAT], [False, False]),
        ([DOG, DOG], [True, True]),
        ([DOG, DOG_TOO, CAT], [True, True, False]),
        ([CAT, DOG, DOG_TOO], [False, True, True]),
        ([DOG, CAT, DOG], [False, False, False]),  # only neighbours count
        ([DOG, DOG, CAT, CAT, DOG], [True, True, True, True, False]),
        (["", ""], [False, False]),
        (["", DOG, ""], [False, False, False]),
        (["a", "b"], [False, False]),
        (["a", "a"], [True, True]),
    ],
)
def test_a_text_that_is_nearly_equal_to_a_neighbour_is_a_near_duplicate(made, texts, near):
    results = [made(text) for text in texts]
    flagged = list(with_flags(results, differ=True))
    assert [result for result, _ in flagged] == results
    assert [flags for _, flags in flagged] == [["near-duplicate"] if each else [] for each in near]


def test_texts_of_millions_of_letters_are_compared_by_their_beginnings():
    rng, began = random.Random(0), time.process_time()
    letters = [chr(0x4E00 + k) for k in range(5000)]
    one, other = ("".join(rng.choices(letters, k=1_000_000)) for _ in range(2))
    flagged = with_flags(map(clip, [one, one[:500_000] + other, other]), differ=True)
    assert [flags for _, flags in flagged] == [["near-duplicate"], ["near-duplicate"], []]
    assert time.process_time() - began < 20  # it was minutes


def test_a_text_may_have_both_flags():
    texts = ["ha ha ha ha ha ha ha", "ha ha ha ha ha ha ha", DOG, "no " * 9]
    assert [flags for _, flags in with_flags(map(clip, texts), differ=True)] == [
        ["repetition", "near-duplicate"],
        ["repetition", "near-duplicate"],
        [],
        ["repetition"],
    ]


def test_results_are_flagged_while_they_are_read():
    def results():
        yield from map(caption, [DOG, DOG_TOO, CAT])
        raise AssertionError("more was read than the next result")

    flagged = with_flags(results(), differ=True)
    assert [next(flagged)[1], next(flagged)[1]] == [["near-duplicate"], ["near-duplicate"]]


@pytest.mark.parametrize(
    ("settings", "differ"),
    [
        ({"sampling": Sampling().to_json()}, False),  # one frame a second
        ({"sampling": Sampling(every=1).to_json()}, False),
        ({"sampling": Sampling(keyframes=True).to_json()}, False),
        ({"sampling": Sampling(per_shot=3).to_json()}, False),  # those of one shot are alike
        ({"sampling": Sampling(per_shot=1).to_json()}, True),
        ({"clips": ClipCutting("windows").settings()}, False),
        ({"clips": ClipCutting("shots").settings()}, True),
        ({}, False),
    ],
)
def test_only_of_frames_and_clips_that_were_chosen_to_differ_is_an_equal_text_odd(settings, differ):
    assert chosen_to_differ(settings) == differ
    flags = [flags for _, flags in with_flags(map(caption, [DOG, DOG]), differ=chosen_to_differ(settings))]
    assert flags == [["near-duplicate"] if differ else []] * 2


@pytest.mark.parametrize(
    ("text", "figures", "flags"),
    [
        ("Good morning.", {}, []),
        ("Good morning.", {"no_speech_prob": 0.4, "avg_logprob": -1.1, "compression_ratio": 1.8}, []),
        ("Thank you.", {"no_speech_prob": 0.6}, ["no-speech"]),
        ("Thank you.", {"avg_logprob": -1.2}, ["low-probability"]),
        ("Thank you.", {"compression_ratio": 2.5}, ["repetition"]),  # each segment of its chunk says it again
        ("ha " * 9, {"no_speech_prob": 0.6, "avg_logprob": -1.2}, ["repetition", "no-speech", "low-probability"]),
    ],
)
def test_speech_that_nobody_may_have_said_has_flags(text, figures, flags):
    assert speech_flags(Utterance(0.0, 1.0, text, "en", **{"no_speech_prob": None, **figures})) == flags
