import random

import jiwer
import numpy as np
import pytest
import torch

from reelscribe.contract.chunking import Chunker, Cutting
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from synthetic.phrases import SAMPLE_RATE, recording
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.model import WhisperModel
from transcripts.word_trimming import audible_seconds, fit_words


def spoken(*levels: tuple[float, float]) -> np.ndarray:
    """Noise of the given seconds and levels, one after the other."""
    noise = np.random.default_rng(0).standard_normal
    return np.concatenate([noise(round(s * SAMPLE_RATE)) * level for s, level in levels]).astype(np.float32)


def fitted(samples: np.ndarray, segment: tuple[float, float], *words: tuple[float, float]) -> SpeechSegment:
    timed = tuple(Word(start, end, "go") for start, end in words)
    transcript = ChunkTranscript("go", "en", (SpeechSegment(*segment, "go", timed),))
    (result,) = fit_words(transcript, samples, SAMPLE_RATE).segments
    return result


def times(segment: SpeechSegment) -> list[tuple[float, float]]:
    return [(word.start, word.end) for word in segment.words]


PAUSED = [(0.5, 0.1), (0.3, 0.0), (0.5, 0.1), (0.7, 0.0)]
"""Two words, with a pause between them and behind them."""


@pytest.mark.parametrize("divided", [0.42, 0.5, 0.6, 0.8])
def test_the_pause_between_two_words_is_part_of_neither(divided):
    segment = fitted(spoken(*PAUSED), (0, 2), (0, divided), (divided, 2))
    assert times(segment) == [(0, 0.5), (0.8, 1.3)]


def fitted_segments(samples: np.ndarray, *segments: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The times of words, of which each segment is a list."""
    given = tuple(
        SpeechSegment(words[0][0], words[-1][1], "go", tuple(Word(start, end, "go") for start, end in words))
        for words in segments
    )
    return [times(s) for s in fit_words(ChunkTranscript("go", "en", given), samples, SAMPLE_RATE).segments]


ROOM = [(0.5, 0.1), (0.2, 0.0004), (1.5, 0.0), (0.2, 0.0004), (0.5, 0.1), (0.5, 0.1), (0.2, 0.0004)]
"""Three words, with 1.9 s after the first one: the noise of a room, digital silence, and the noise again."""


@pytest.mark.parametrize("pause_level", [0.0, 0.0004])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(0, 0.2), (0.2, 2.6)], [(2.6, 2.9), (2.9, 3.6)]),  # a segment that ends in the next one's first word
        ([(0, 0.45), (0.45, 2.6)], [(2.6, 2.9), (2.9, 3.6)]),  # with more of that word than of its own last one
        ([(0, 0.2), (0.2, 0.4)], [(0.4, 2.9), (2.9, 3.6)]),  # one that begins in the last word of the one before
    ],
)
def test_a_word_with_a_pause_of_a_sentence_in_it_stays_on_its_side(first, second, pause_level):
    samples = spoken(*((s, max(level, pause_level)) for s, level in ROOM))
    (*_, (_, end)), ((start, _), *_) = fitted_segments(samples, first, second)
    assert (end, start) == (0.5, 2.4)


def test_the_noise_of_a_room_next_to_digital_silence_is_a_pause():
    room = [(1.0, 0.0), (0.3, 0.0004), (0.5, 0.01), (0.3, 0.0004), (1.0, 0.0)]
    assert times(fitted(spoken(*room), (0, 3.1), (0, 3.1))) == [(1.3, 1.8)]


def test_faint_noise_is_a_pause_too_and_loud_noise_is_not():
    faint, loud = ([(s, max(level, floor)) for s, level in PAUSED] for floor in (0.002, 0.02))
    assert times(fitted(spoken(*faint), (0, 2), (0, 0.46), (0.46, 2))) == [(0, 0.5), (0.8, 1.3)]
    assert times(fitted(spoken(*loud), (0, 2), (0, 0.46), (0.46, 2))) == [(0, 0.46), (0.46, 2)]


def test_a_segment_lasts_from_its_first_word_to_its_last():
    for given in ((0.1, 1.2), (0, 2)):
        segment = fitted(spoken(*PAUSED), given, (0, 0.6), (0.6, 1.4))
        assert (segment.start, segment.end) == (0, 1.3)


def test_a_rumble_before_a_word_is_not_part_of_it():
    rumble = 0.02 * np.sin(2 * np.pi * 2 * np.arange(2 * SAMPLE_RATE) / SAMPLE_RATE)
    segment = fitted(spoken((1.0, 0.0), (0.5, 0.1), (0.5, 0.0)) + rumble, (0, 2), (0, 2))
    assert times(segment) == [(1.0, 1.5)]


def test_the_last_sound_of_a_chunk_ends_where_the_noise_goes_on():
    for floor in (0.0, 0.002):
        samples = spoken(*((s, max(level, floor)) for s, level in PAUSED))
        assert audible_seconds(samples, SAMPLE_RATE) == 1.3
        assert audible_seconds(samples[:-77] + 0.1, SAMPLE_RATE) == 1.3  # whatever its length and mean


def test_words_that_cannot_be_heard_stay_where_they_were():
    segment = fitted(np.zeros(2 * SAMPLE_RATE, np.float32), (0, 2), (0, 1.0), (1.0, 1.02), (1.02, 1.987))
    assert times(segment) == [(0, 1.0), (1.0, 1.02), (1.02, 1.987)]


@pytest.fixture(scope="module")
def model(demo_speech) -> WhisperModel:
    return WhisperModel(SpeechSettings(demo_speech), torch.device("cpu"))


@pytest.mark.parametrize("search_seconds", [5.0, 0.0])
def test_words_lie_in_their_segments_and_where_they_are_spoken(model, search_seconds):
    talk = recording(random.Random(81), 40, held_out=True)
    pieces = Chunker(10 * SAMPLE_RATE, SAMPLE_RATE, Cutting(search_seconds))
    cut = [*pieces.push(talk.samples), *pieces.flush()]
    options = TranscriptionOptions(language="en", word_times=True)
    answers = model.transcribe([Chunk(piece.astype(np.float32) / 32768, options) for piece in cut])

    found, at = [], 0.0
    for piece, answer in zip(cut, answers, strict=True):
        previous = 0.0
        for segment in answer.segments:
            assert [word.text for word in segment.words] == segment.text.split()
            for word in segment.words:
                assert segment.start <= word.start < word.end <= segment.end
                assert previous <= word.start
                previous = word.end
                found.append((word.text, at + word.start, at + word.end))
        at += len(piece) / SAMPLE_RATE

    truth = [word for *_, words in talk.phrases for word in words]
    outcome = jiwer.process_words(" ".join(truth), " ".join(text for text, *_ in found))
    errors = [
        np.subtract(found[part.hyp_start_idx + k][1:], np.divide(talk.word_spans[part.ref_start_idx + k], SAMPLE_RATE))
        for part in outcome.alignments[0]
        if part.type == "equal"
        for k in range(part.ref_end_idx - part.ref_start_idx)
    ]
    assert len(errors) > 0.9 * len(truth)
    # A recording as short as this has few words. Of many, 95 % are as exact
    # (docs/decisions/alignment-within-segments.md).
    assert np.percentile(np.abs(errors), 90, axis=0) == pytest.approx(0, abs=0.15)
