"""Saved batches of audio, and the results in the order of time that are made from them."""

from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.outcomes import AudioResult, Silence, SpeechFailure, Translation, Utterance
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript, audio_results


def transcript(*segments: SpeechSegment, language: str | None = "en", **figures: float) -> ChunkTranscript:
    return ChunkTranscript(" ".join(segment.text for segment in segments), language, segments, **figures)


def spoken(text: str, start: float = 0.0, end: float = 1.0, words: tuple[Word, ...] | None = None) -> ChunkTranscript:
    """A transcript of one segment."""
    return transcript(SpeechSegment(start, end, text, words))


def batch_of(start: float, end: float, transcript: ChunkTranscript) -> SavedAudioBatch:
    """A batch of one chunk."""
    return SavedAudioBatch(0, 50, transcripts=[TimedTranscript(start, end, transcript)])


def results(*batches: SavedAudioBatch) -> list[AudioResult]:
    return list(audio_results(batches))


def saved_and_restored(batch: SavedAudioBatch) -> SavedAudioBatch:
    """The batch, after its JSON was stored as UTF-8."""
    stored = batch.results_to_json().encode()
    return SavedAudioBatch.from_json(batch.first, batch.stop, batch.anchor, stored.decode())


BATCHES = [
    SavedAudioBatch(
        0,
        300,
        transcripts=[TimedTranscript(10.0, 20.0, spoken("go")), TimedTranscript(30.0, 40.0, spoken("stop"))],
        failures=[SpeechFailure(20.0, 30.0, "x")],
    ),
    SavedAudioBatch(300, 500, silences=[Silence(40.0, 50.0), Silence(50.0, 60.0)]),
    SavedAudioBatch(
        500, 700, transcripts=[TimedTranscript(70.0, 80.0, spoken("left"))], silences=[Silence(60.0, 70.0)]
    ),
]


def test_results_come_in_the_order_of_time():
    assert results(*BATCHES) == [
        Utterance(10.0, 11.0, "go", "en", None),
        SpeechFailure(20.0, 30.0, "x"),
        Utterance(30.0, 31.0, "stop", "en", None),
        Silence(40.0, 70.0),
        Utterance(70.0, 71.0, "left", "en", None),
    ]


def test_a_translation_is_in_the_order_of_time_beside_what_is_said_and_is_saved():
    said = transcript(SpeechSegment(0.0, 2.0, "Guten Morgen."), SpeechSegment(2.0, 4.0, "Ja."), language="de")
    english = transcript(SpeechSegment(0.5, 1.5, "Good morning."), SpeechSegment(3, 4, ""), language="de")
    batch = SavedAudioBatch(
        0, 50, transcripts=[TimedTranscript(10.0, 20.0, replace(said, translation=english), "channel 1")]
    )
    assert results(saved_and_restored(batch)) == [
        Utterance(10.0, 12.0, "Guten Morgen.", "de", None, speaker="channel 1"),
        Translation(10.5, 11.5, "Good morning.", "de", None, speaker="channel 1"),
        Utterance(12.0, 14.0, "Ja.", "de", None, speaker="channel 1"),
    ]


def test_what_a_chunk_lacks_comes_before_what_is_said_in_it():
    chunk = TimedTranscript(10.0, 20.0, spoken("go", 0.5))
    batch = SavedAudioBatch(0, 50, transcripts=[chunk], failures=[SpeechFailure(10.0, 20.0, "x")])
    assert [result.start for result in results(batch)] == [10.0, 10.5]


def test_no_batches_and_empty_batches_have_no_results():
    assert results() == []
    assert results(SavedAudioBatch(0, 300)) == []


def test_adjacent_silences_are_one_across_batches_until_a_chunk_that_was_sent():
    nothing_said = ChunkTranscript("", None, ())
    batches = [
        SavedAudioBatch(0, 20, silences=[Silence(0.0, 1.0), Silence(1.0, 2.0)]),
        SavedAudioBatch(20, 40, silences=[Silence(2.0, 3.0)], transcripts=[TimedTranscript(3.0, 4.0, nothing_said)]),
        SavedAudioBatch(40, 50, silences=[Silence(4.0, 5.0)]),
    ]
    assert results(*batches) == [Silence(0.0, 3.0), Silence(4.0, 5.0)]


def test_silences_with_a_gap_between_them_stay_apart():
    silences = [Silence(0.0, 1.0), Silence(1.2, 2.0)]
    assert results(SavedAudioBatch(0, 20, silences=silences)) == silences


def test_each_segment_of_a_chunk_becomes_an_utterance_in_presentation_time():
    segments = [SpeechSegment(0.25, 1.5, "go left"), SpeechSegment(2.0, 3.125, "stop")]
    assert results(batch_of(100.5, 110.5, transcript(*segments, language=None, no_speech_prob=0.125))) == [
        Utterance(100.75, 102.0, "go left", None, 0.125),
        Utterance(102.5, 103.625, "stop", None, 0.125),
    ]


def test_words_are_in_presentation_time_too():
    words = (Word(0.25, 0.5, "go"), Word(0.75, 1.5, "left"))
    (utterance,) = results(batch_of(100.5, 110.5, spoken("go left", 0.25, 1.5, words)))
    assert utterance.words == (Word(100.75, 101.0, "go"), Word(101.25, 102.0, "left"))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(-1.0, 1.0, (10.0, 11.0)), (1.0, 99.0, (11.0, 12.0)), (5.0, 6.0, (12.0, 12.0)), (1.0, 0.5, (11.0, 11.0))],
)
def test_times_outside_a_chunk_are_moved_into_it(start, end, expected):
    words = (Word(start, end, "go"),)
    (utterance,) = results(batch_of(10.0, 12.0, spoken("go", start, end, words)))
    assert (utterance.start, utterance.end) == expected
    assert 10.0 <= utterance.words[0].start <= 12.0
    assert 10.0 <= utterance.words[0].end <= 12.0


def test_segments_without_text_are_left_out():
    batch = batch_of(0.0, 5.0, transcript(SpeechSegment(0, 1, ""), SpeechSegment(1, 2, "go")))
    assert [utterance.text for utterance in results(batch)] == ["go"]


def test_the_json_of_a_batch_has_a_list_for_each_chunk():
    batch = SavedAudioBatch(
        0,
        50,
        transcripts=[TimedTranscript(0.0, 5.0, ChunkTranscript("", None, ()))],
        silences=[Silence(5.0, 6.0)],
        failures=[SpeechFailure(6.0, 7.0, "x")],
    )
    assert batch.results_to_json() == (
        '[[[0.0,5.0,{"text":"","language":null,"segments":[],"no_speech_prob":null,"avg_logprob":null,'
        '"compression_ratio":null,"temperature":null,"language_probability":null}]],[[5.0,6.0]],[[6.0,7.0,"x"]]]'
    )


def test_a_batch_is_equal_after_it_was_saved_and_restored():
    text = "«étoile»\n\x00 half a surrogate pair: \ud83d"
    figures = {"no_speech_prob": 0.1, "avg_logprob": -0.3, "compression_ratio": 1.2, "temperature": 0.0}
    figures["language_probability"] = 0.75
    odd = transcript(SpeechSegment(0.0, 1 / 3, text, (Word(0.0, 1 / 3, text),)), language=None, **figures)
    batch = SavedAudioBatch(
        0,
        50,
        transcripts=[TimedTranscript(0.0, 5.0, odd)],
        silences=[Silence(5.0, 1e9 / 3)],
        failures=[SpeechFailure(6.0, 7.0, text)],
    )
    assert saved_and_restored(batch) == batch
    assert results(*map(saved_and_restored, BATCHES)) == results(*BATCHES)


def test_segments_of_several_speakers_are_in_the_order_of_time_and_keep_their_overlap():
    said = transcript(SpeechSegment(0.0, 2.0, "Hello."), SpeechSegment(5.0, 9.0, "Yes.", (Word(5.0, 9.0, "Yes."),)))
    answers = [TimedTranscript(0.0, 10.0, spoken("Good morning.", 1.0, 6.0), "channel 1")]
    answers.append(TimedTranscript(0.0, 9.0, said, "channel 2"))
    batches = [SavedAudioBatch(0, 30, transcripts=answers, failures=[SpeechFailure(9.0, 10.0, "x", "channel 2")])]
    batches += [SavedAudioBatch(30, 40, silences=[Silence(10.0, 20.0, "channel 1")])]
    assert [(result.moment, result.end) for result in results(*map(saved_and_restored, batches))] == [
        ((0.0, "channel 2: Hello."), 2.0),
        ((1.0, "channel 1: Good morning."), 6.0),
        ((5.0, "channel 2: Yes."), 9.0),
        ((9.0, "channel 2: no transcript: x"), 10.0),
        ((10.0, "channel 1: silence until 0:00:20.000"), 20.0),
    ]
    (yes,) = (result for result in results(*batches) if isinstance(result, Utterance) and result.words)
    assert yes.words == (Word(5.0, 9.0, "Yes.", speaker="channel 2"),)


KINDS = st.sampled_from(["transcripts", "silences", "failures"])
CHANNELS = st.lists(st.lists(st.tuples(KINDS, st.sampled_from([1, 2, 3, 5])), max_size=10), min_size=2, max_size=3)
"""For each channel the list that each of its chunks is in, and the seconds of the chunk."""


def chunks_of(channels: list[list[tuple[str, int]]]) -> list[tuple[str, TimedTranscript | Silence | SpeechFailure]]:
    """The chunks of all channels in the order in which they start, and then in that of the channels."""
    chunks = []
    for channel, rows in enumerate(channels, 1):
        speaker = f"channel {channel}"
        for (kind, _), (start, end) in zip(
            rows, pairwise(accumulate((seconds for _, seconds in rows), initial=0)), strict=True
        ):
            chunk = {
                "transcripts": TimedTranscript(start, end, spoken(f"{start}", 0.25, 0.75), speaker),
                "silences": Silence(start, end, speaker),
                "failures": SpeechFailure(start, end, f"{start}", speaker),
            }[kind]
            chunks.append((kind, chunk))
    return sorted(chunks, key=lambda each: (each[1].start, each[1].speaker))


@given(CHANNELS, st.data())
def test_results_of_several_speakers_do_not_depend_on_where_batches_end(channels, data):
    chunks = chunks_of(channels)
    ends = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    one, several = [{"transcripts": [], "silences": [], "failures": []}], []
    several.append({"transcripts": [], "silences": [], "failures": []})
    for (kind, chunk), ends_batch in zip(chunks, ends, strict=True):
        one[-1][kind].append(chunk)
        several[-1][kind].append(chunk)
        if ends_batch:
            several.append({"transcripts": [], "silences": [], "failures": []})
    whole = results(*(SavedAudioBatch(0, 1, **lists) for lists in one))
    assert results(*(SavedAudioBatch(0, 1, **lists) for lists in several)) == whole
    assert [result.start for result in whole] == sorted(result.start for result in whole)
    covered = sum(result.end - result.start for result in whole if not isinstance(result, Utterance))
    assert covered == sum(seconds for rows in channels for kind, seconds in rows if kind != "transcripts")
    assert sum(isinstance(result, Utterance) for result in whole) == [k for k, _ in chunks].count("transcripts")


CHUNKS = st.lists(
    st.tuples(st.sampled_from(["transcripts", "silences", "failures"]), st.integers(1, 160_000), st.booleans()),
    max_size=12,
)
"""The list that each chunk is in, its number of samples, and whether a batch ends behind it."""


def to_batches(chunks: list[tuple[str, int, bool]], start: Fraction, *, one_batch: bool) -> list[SavedAudioBatch]:
    """The chunks of 16 kHz in batches that end where the chunks say, or in one batch; times are rounded as by a run."""
    batches, lists, first = [], {"transcripts": [], "silences": [], "failures": []}, 0
    bounds = pairwise(accumulate((samples for _, samples, _ in chunks), initial=0))
    for number, ((kind, samples, ends_batch), (begin, stop)) in enumerate(zip(chunks, bounds, strict=True), 1):
        chunk_start = round(float(start + Fraction(begin, 16_000)), 6)
        chunk_end = round(chunk_start + samples / 16_000, 6)
        if kind == "transcripts":
            lists[kind].append(TimedTranscript(chunk_start, chunk_end, spoken(f"text {begin}")))
        elif kind == "silences":
            lists[kind].append(Silence(chunk_start, chunk_end))
        else:
            lists[kind].append(SpeechFailure(chunk_start, chunk_end, f"error {begin}"))
        if (ends_batch and not one_batch) or number == len(chunks):
            batches.append(SavedAudioBatch(first, stop, **lists))
            lists, first = {"transcripts": [], "silences": [], "failures": []}, stop
    return batches


@given(CHUNKS, st.fractions(0, 10_000, max_denominator=90_000))
def test_results_depend_neither_on_where_batches_end_nor_on_how_times_are_rounded(chunks, start):
    whole = results(*to_batches(chunks, start, one_batch=True))
    assert results(*map(saved_and_restored, to_batches(chunks, start, one_batch=False))) == whole
    kinds = [kind for kind, _, _ in chunks]
    silences = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind == "silences" != before]
    assert sum(isinstance(result, Silence) for result in whole) == len(silences)
    assert sum(isinstance(result, SpeechFailure) for result in whole) == kinds.count("failures")
