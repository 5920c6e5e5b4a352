from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from transcripts.chunks import join_transcripts


def heard(text: str, language: str | None = "en", **numbers: float) -> ChunkTranscript:
    words = tuple(Word(i, i + 0.5, word) for i, word in enumerate(text.split()))
    segments = (SpeechSegment(0.0, 2.5, text, words),) if text else ()
    return ChunkTranscript(text, language, segments, **numbers)


def test_one_transcript_is_itself():
    assert join_transcripts([(0.0, heard("a b"))]) == heard("a b")


def test_later_ones_have_their_times_in_the_whole():
    whole = join_transcripts([(0.0, heard("a b")), (10.25, heard("c"))])
    assert whole.text == "a b c"
    assert [(s.start, s.end) for s in whole.segments] == [(0.0, 2.5), (10.25, 12.75)]
    assert whole.segments[1].words == (Word(10.25, 10.75, "c"),)


def test_a_whole_is_as_doubtful_as_its_most_doubtful_part():
    sure = heard("a", no_speech_prob=0.1, avg_logprob=-0.1, compression_ratio=1.0, temperature=0.0)
    doubtful = heard("b", no_speech_prob=0.5, avg_logprob=-0.9, compression_ratio=2.0, temperature=0.4)
    nothing = heard("", no_speech_prob=0.9, avg_logprob=-3.0, compression_ratio=5.0, temperature=1.0)
    whole = join_transcripts([(0.0, sure), (5.0, doubtful), (9.0, nothing)])
    assert (whole.avg_logprob, whole.compression_ratio, whole.temperature) == (-0.9, 2.0, 0.4)
    assert whole.no_speech_prob == 0.1  # there is speech in it
    assert join_transcripts([(0.0, heard("a", None)), (5.0, heard("b", None))]).no_speech_prob is None


def test_its_language_is_that_of_what_was_said():
    whole = join_transcripts([(0.0, heard("", "cy")), (5.0, heard("赤い", "ja")), (9.0, heard("丸", "ja"))])
    assert (whole.language, whole.text) == ("ja", "赤い丸")
