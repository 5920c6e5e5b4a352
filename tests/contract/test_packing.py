"""Chunks packed from stretches in which somebody speaks, and transcripts put back into the time of the recording."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelscribe.contract.packing import AudioChunk, Stretch, numbered, pack, unpack
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word

RATE, LIMIT = 10, 50
"""Samples in a second, and the most in a chunk."""

PIECES = st.lists(st.tuples(st.integers(1, LIMIT), st.booleans()), max_size=60)
"""The length of each piece, and whether nobody speaks in it."""


def pieces_of(lengths: list[tuple[int, bool]]) -> list[AudioChunk]:
    values = np.arange(sum(length for length, _ in lengths), dtype=np.int16)
    ends = np.cumsum([length for length, _ in lengths])[:-1]
    chunks = numbered(np.split(values, ends), RATE) if lengths else ()
    return [chunk._replace(silent=silent) for chunk, (_, silent) in zip(chunks, lengths, strict=True)]


@given(PIECES)
def test_every_sample_is_heard_or_silent_once(lengths):
    chunks = list(pack(pieces_of(lengths), LIMIT, RATE))
    stretches = sorted(each for chunk in chunks for each in (*chunk.heard, *chunk.unheard(RATE)))
    stops = [each.stop for each in stretches]
    assert [each.first for each in stretches] == [0, *stops[:-1]][: len(stops)]
    assert sum(stops[-1:]) == sum(length for length, _ in lengths)
    assert all(each.start_seconds == each.first / RATE for each in stretches)


@given(PIECES)
def test_all_speech_is_heard_in_chunks_that_are_not_too_long(lengths):
    pieces = pieces_of(lengths)
    heard = [chunk for chunk in pack(pieces, LIMIT, RATE) if chunk.heard]
    spoken = [sample for piece in pieces if not piece.silent for sample in piece.samples]
    assert [sample for chunk in heard for sample in chunk.samples] == spoken
    for chunk in heard:
        assert len(chunk.samples) <= LIMIT
        numbers = [number for each in chunk.heard for number in range(each.first, each.stop)]
        assert chunk.samples.tolist() == numbers


@given(PIECES, st.data())
def test_reading_may_go_on_at_the_end_of_any_chunk(lengths, data):
    pieces = pieces_of(lengths)
    chunks = list(pack(pieces, LIMIT, RATE))
    done = data.draw(st.integers(0, len(chunks)))
    stop = chunks[done - 1].stop if done else 0
    rest = list(pack([piece for piece in pieces if piece.stop > stop], LIMIT, RATE))
    assert [chunk.heard for chunk in rest] == [chunk.heard for chunk in chunks[done:]]
    assert [chunk.first for chunk in rest] == [chunk.first for chunk in chunks[done:]]


def test_stretches_far_apart_and_those_after_a_jump_in_time_are_not_one_chunk():
    far = pieces_of([(10, False), *[(LIMIT, True)] * 10, (10, False)])
    assert [len(chunk.heard) for chunk in pack(far, LIMIT, RATE) if chunk.heard] == [1, 1]
    first, second = pieces_of([(10, False), (10, False)])
    later = second._replace(start_seconds=second.start_seconds + 5)
    assert [chunk.first for chunk in pack([first, later], LIMIT, RATE)] == [0, 10]
    assert [chunk.heard for chunk in pack([first, second], LIMIT, RATE)] == [(Stretch(0, 20, 0.0),)]


def test_channels_are_chunks_by_themselves():
    pieces = [piece._replace(speaker="channel 1") for piece in pieces_of([(10, False), (5, True), (10, False)])]
    expected = [(0, 10, False), (10, 15, True), (15, 25, False)]
    assert [(chunk.first, chunk.stop, chunk.silent) for chunk in pack(pieces, LIMIT, RATE)] == expected


HEARD = [Stretch(0, 20, 0.0), Stretch(100, 130, 10.0)]
"""Two seconds from the start on, and three from 10 s on, which follow in the chunk."""


def spoken(start: float, end: float, text: str, *words: tuple[float, float, str]) -> ChunkTranscript:
    segment = SpeechSegment(start, end, text, tuple(Word(*word) for word in words) or None)
    return ChunkTranscript(text, "en", (segment,), no_speech_prob=0.25)


def unpacked(transcript: ChunkTranscript) -> list[list[tuple[float, float, str]]]:
    """The start, end and text of each segment of each stretch, from the start of the stretch."""
    parts = list(unpack(HEARD, transcript, RATE))
    assert [stretch for stretch, _ in parts] == HEARD
    assert all((part.language, part.no_speech_prob) == ("en", 0.25) for _, part in parts)
    return [[(each.start, each.end, each.text) for each in part.segments] for _, part in parts]


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        (spoken(0.5, 1.5, "go"), [[(0.5, 1.5, "go")], []]),
        (spoken(2.5, 4.5, "go"), [[], [(0.5, 2.5, "go")]]),
        (spoken(1.9, 4.0, "go left"), [[], [(0.0, 2.0, "go left")]]),  # most of it is in the second
        (spoken(0.5, 2.5, "go left"), [[(0.5, 2.0, "go left")], []]),
        (spoken(4.0, 9.0, "go"), [[], [(2.0, 3.0, "go")]]),
        (
            spoken(1.0, 4.0, "Go left, stop.", (1.0, 1.4, "Go"), (1.4, 2.2, " left,"), (2.5, 3.5, " stop.")),
            [[(1.0, 2.0, "Go left,")], [(0.5, 2.0, "stop.")]],
        ),
        (spoken(1.0, 4.0, "向左停", (1.0, 1.4, "向左"), (2.5, 3.5, "停")), [[(1.0, 1.4, "向左")], [(0.5, 2.0, "停")]]),
    ],
)
def test_a_segment_is_put_into_the_stretch_in_which_it_is_spoken_and_split_between_words(transcript, expected):
    assert unpacked(transcript) == expected


def test_words_of_a_split_segment_keep_their_order_and_lie_in_their_stretches():
    words = ((1.0, 1.4, "Go"), (1.8, 2.1, " left,"), (2.1, 3.5, " stop."))
    (_, first), (_, second) = unpack(HEARD, spoken(1.0, 4.0, "Go left, stop.", *words), RATE)
    assert [(word.start, word.end, word.text) for word in first.segments[0].words] == [
        (1, 1.4, "Go"),
        (1.8, 2, " left,"),
    ]
    assert [(word.start, word.end, word.text) for word in second.segments[0].words] == [(0.1, 1.5, " stop.")]


def test_a_chunk_of_one_stretch_keeps_its_transcript():
    transcript = spoken(0.5, 1.5, "go")
    assert list(unpack(HEARD[:1], transcript, RATE)) == [(HEARD[0], transcript)]
