"""Forced alignment: words get the frames in which their tokens are most probably spoken."""

import json
from itertools import groupby, product

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, Wav2Vec2CTCTokenizer

from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import LETTERS, save_parakeet, save_wav2vec2
from transcripts.ctc_alignment import ANY, Speller, align
from transcripts.ctc_model import CtcModel
from transcripts.speech_model import Chunk, SpeechSettings

BLANK, A, B, C = range(4)


def emissions(*frames: dict[int, float]) -> torch.Tensor:
    """Log-probabilities, (1, T, 4), with these probabilities in each frame; the others share what is left."""
    rows = []
    for given in frames:
        rest = (1 - sum(given.values())) / (4 - len(given))
        rows.append([given.get(token, rest) for token in range(4)])
    return torch.tensor([rows]).log()


def frames_of(log_probs: torch.Tensor, text: list[int]) -> list[tuple[int, int]]:
    (spans,) = align(log_probs, [log_probs.shape[1]], [text], BLANK)
    return [(span.first, span.stop) for span in spans]


def likely(*tokens: int) -> torch.Tensor:
    return emissions(*({token: 0.9} for token in tokens))


@pytest.mark.parametrize(
    ("heard", "text", "frames"),
    [
        ([BLANK, A, BLANK, BLANK, B, C, BLANK], [A, B, C], [(1, 2), (4, 5), (5, 6)]),
        ([A, A, A, B, B], [A, B], [(0, 3), (3, 5)]),
        ([A, A, BLANK, A, BLANK], [A, A], [(0, 2), (3, 4)]),  # a letter twice has a blank within
        ([A, A, A], [A, A], [(0, 1), (2, 3)]),  # also where none is heard
        ([BLANK, C, C, BLANK], [A], [(1, 2)]),  # a text that is not spoken is somewhere all the same
        ([BLANK, A, C, C, BLANK, B], [A, ANY, B], [(1, 2), (2, 4), (5, 6)]),  # what the vocabulary lacks
    ],
)
def test_tokens_have_the_frames_in_which_they_are_heard(heard, text, frames):
    got = frames_of(likely(*heard), text)
    assert got == frames or (text == [A] and got in [[(1, 2)], [(2, 3)]])


def spelled(path: tuple[int, ...]) -> list[int]:
    return [token for token, _ in groupby(path) if token != BLANK]


@pytest.mark.parametrize("text", [[A], [A, A], [A, B, A], [B, B, C]])
@pytest.mark.parametrize("seed", range(5))
def test_of_all_ways_to_spell_a_text_the_most_probable_one_is_found(text, seed):
    log_probs = torch.randn((1, 6, 4), generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    scores = log_probs[0].double()
    ways = [path for path in product(range(4), repeat=6) if spelled(path) == text]
    best = max(ways, key=lambda path: sum(scores[frame, token] for frame, token in enumerate(path)))
    runs, at = [], 0
    for token, run in groupby(best):
        length = len(list(run))
        runs += [(at, at + length)] if token != BLANK else []
        at += length
    assert frames_of(log_probs, text) == runs


def test_a_text_that_needs_more_frames_than_there_are_has_none():
    assert frames_of(likely(A, B), [A, B]) == [(0, 1), (1, 2)]
    assert frames_of(likely(A, B), [A, B, C]) == []
    assert frames_of(likely(A, A), [A, A]) == []  # there is no room for the blank
    assert frames_of(likely(A, B), []) == []


def test_an_alignment_does_not_depend_on_the_others_of_a_batch():
    log_probs = torch.randn((3, 40, 4), generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    counts, texts = [40, 7, 23], [[A, B, C, C, A], [B, A], [ANY, C] * 6]
    together = align(log_probs, counts, texts, BLANK)
    alone = [align(log_probs[k : k + 1, : counts[k]], counts[k : k + 1], texts[k : k + 1], BLANK)[0] for k in range(3)]
    assert_alike(together, alone)
    assert all(spans[-1].stop <= count for spans, count in zip(together, counts, strict=True))


NOISES = [noise(seconds, seed) for seed, seconds in enumerate([2, 3.1, 0.5, 5])]
WORDS = [("Oasis,", "then", "-", "3", "hats"), ("the", "nation"), ("This", "is", "too", "long") * 9, ()]


@pytest.fixture(scope="module", params=["wav2vec2", "wav2vec2 without masks", "parakeet"])
def model(request, tmp_path_factory) -> CtcModel:
    folder = tmp_path_factory.mktemp("model")
    masked = request.param == "wav2vec2"
    path = save_parakeet(folder) if request.param == "parakeet" else save_wav2vec2(folder, masked=masked)
    return CtcModel(SpeechSettings(path), torch.device("cpu"))


def known(samples: np.ndarray, words: tuple[str, ...] | None) -> Chunk:
    return Chunk(samples, TranscriptionOptions(), words)


def test_words_that_are_given_get_times_in_their_order(model):
    chunks = [known(*each) for each in zip(NOISES, WORDS, strict=True)]
    transcripts = model.transcribe([*chunks, known(NOISES[1], None)])
    assert_alike(transcripts, [model.transcribe([chunk])[0] for chunk in [*chunks, known(NOISES[1], None)]])
    for samples, words, transcript in zip(NOISES[:2], WORDS, transcripts, strict=False):
        (segment,) = transcript.segments
        assert tuple(word.text for word in segment.words) == words
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert segment.start <= times[0] < times[-1] <= segment.end
        assert 0 <= times[0] <= times[-1] <= len(samples) / 16_000
        assert all(word.start < word.end and 0 < word.probability <= 1 for word in segment.words)
    assert transcripts[2] == ChunkTranscript(" ".join(WORDS[2]), None, ())  # in half a second
    assert transcripts[3] == ChunkTranscript("", None, ())


def test_words_are_spelled_as_the_vocabulary_writes_them(tmp_path):
    processor = AutoProcessor.from_pretrained(save_wav2vec2(tmp_path, masked=True))
    spell = Speller(processor.tokenizer, "|").spell
    assert spell(("Oasis,", "«then»")).tokens == [LETTERS[letter] for letter in "OASIS|THEN"]
    assert spell(("4", "ß", "…")).tokens == [ANY, LETTERS["|"], LETTERS["S"], LETTERS["S"], LETTERS["|"], ANY]


def test_letters_of_two_characters_are_letters(tmp_path):
    letters = LETTERS | {"TH": len(LETTERS)}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    spell = Speller(Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")), "|").spell
    assert spell(("then", "<s>")).tokens == [letters["TH"], letters["E"], letters["N"], letters["|"], letters["S"]]
