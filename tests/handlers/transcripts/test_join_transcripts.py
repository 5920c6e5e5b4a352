from dataclasses import replace

import numpy as np

from reelscribe.contract.speech import BOTH, ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from transcripts.speech_model import Chunk, join_transcripts, with_translations


def transcript(text: str, language: str | None = "en", **numbers: float) -> ChunkTranscript:
    words = tuple(Word(i, i + 0.5, word) for i, word in enumerate(text.split()))
    segments = (SpeechSegment(0.0, 2.5, text, words),) if text else ()
    return ChunkTranscript(text, language, segments, **numbers)


def test_a_single_transcript_stays_as_it_is():
    assert join_transcripts([(0.0, transcript("a b"))]) == transcript("a b")


def test_times_count_from_the_start_of_the_whole():
    whole = join_transcripts([(0.0, transcript("a b")), (10.25, transcript("c"))])
    assert whole.text == "a b c"
    assert [(s.start, s.end) for s in whole.segments] == [(0.0, 2.5), (10.25, 12.75)]
    assert whole.segments[1].words == (Word(10.25, 10.75, "c"),)


def test_a_whole_has_the_worst_scores_of_its_parts_with_text():
    sure = transcript("a", no_speech_prob=0.1, avg_logprob=-0.1, compression_ratio=1.0, temperature=0.0)
    doubtful = transcript("b", no_speech_prob=0.5, avg_logprob=-0.9, compression_ratio=2.0, temperature=0.4)
    nothing = transcript("", no_speech_prob=0.9, avg_logprob=-3.0, compression_ratio=5.0, temperature=1.0)
    whole = join_transcripts([(0.0, sure), (5.0, doubtful), (9.0, nothing)])
    assert (whole.avg_logprob, whole.compression_ratio, whole.temperature) == (-0.9, 2.0, 0.4)
    assert whole.no_speech_prob == 0.1  # there is speech in it
    assert join_transcripts([(0.0, transcript("a", None)), (5.0, transcript("b", None))]).no_speech_prob is None


def test_its_language_is_that_of_the_first_chunk_with_text():
    whole = join_transcripts(
        [(0.0, transcript("", "cy")), (5.0, transcript("赤い", "ja")), (9.0, transcript("丸", "ja"))]
    )
    assert (whole.language, whole.text) == ("ja", "赤い丸")


def test_a_remainder_in_the_language_of_its_beginning_leaves_the_probability_as_it_was():
    parts = [(0.0, transcript("a", "en", language_probability=0.75)), (5.0, transcript("b", "en"))]
    assert join_transcripts(parts).language_probability == 0.75


def test_nothing_is_translated_where_nobody_speaks():
    chunks = [Chunk(np.zeros(9, np.float32), TranscriptionOptions(task=BOTH))] * 2
    texts = [transcript("ja", "de"), transcript("yes", "de"), transcript("", "de"), transcript("you", "de")]
    assert with_translations(chunks, texts) == [
        replace(transcript("ja", "de"), translation=transcript("yes", "de")),
        replace(transcript("", "de"), translation=transcript("", "de")),
    ]
