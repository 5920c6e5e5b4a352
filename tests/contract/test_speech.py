"""What a speech model says of itself and of what it heard, on its way as JSON."""

import json
from dataclasses import replace

import pytest

from reelscribe.contract.model import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from reelscribe.errors import ServerError
from support.fake_torchserve import SPEECH

TRANSCRIPT = ChunkTranscript(
    text="go left",
    language="en",
    segments=(
        SpeechSegment(0.5, 1.5, "go", words=(Word(0.5, 1.25, "go"),)),
        SpeechSegment(2.0, 3.0, "left"),
    ),
    no_speech_prob=0.125,
    avg_logprob=-0.25,
    compression_ratio=1.5,
    temperature=0.0,
)


def sent(value):
    """As it arrives."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("changes", [{}, {"languages": (), "tasks": ("transcribe",)}, {"language": "fr"}])
def test_a_description_is_the_same_after_it_was_sent(changes):
    description = replace(SPEECH, **changes)
    assert SpeechDescription.from_json(sent(description.to_json())) == description


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "text", 5, {}, {"languages": [], "tasks": []}),
        {**SPEECH.to_json(), "languages": None},
        {**SPEECH.to_json(), "tasks": 5},
        {**SPEECH.to_json(), "frame": {"width": 8, "height": 8}},
    ],
    ids=str,
)
def test_what_is_no_description_is_an_error_that_says_what_came(value):
    with pytest.raises(ServerError, match=r"expected the description of a speech handler, got .*; is the model"):
        SpeechDescription.from_json(sent(value))


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"workers": 8, "device_batch": 1, "max_chunks": 3, "response_seconds": 5.0}, True),
        ({"revision": "other"}, False),
        ({"dtype": "bfloat16"}, False),
        ({"chunk_seconds": 10.0}, False),
        ({"language": "en"}, False),
        ({"generation": {}}, False),
    ],
)
def test_models_are_the_same_if_they_hear_the_same(changes, same):
    assert (SPEECH.identity == replace(SPEECH, **changes).identity) == same


def test_of_several_servers_workers_are_added_and_the_smallest_limit_holds():
    servers = [replace(SPEECH, workers=2, max_chunks=8), replace(SPEECH, workers=3, max_chunks=4, device_batch=1)]
    assert SpeechDescription.of_all(servers) == replace(SPEECH, workers=5, max_chunks=4)


@pytest.mark.parametrize(
    "transcript",
    [
        TRANSCRIPT,
        ChunkTranscript("", None, ()),
        ChunkTranscript("«étoile» \ud83d", None, (SpeechSegment(0.0, 1 / 3, "«étoile» \ud83d", words=()),)),
    ],
)
def test_a_transcript_is_the_same_after_it_was_sent(transcript):
    assert ChunkTranscript.from_json(sent(transcript.to_json())) == transcript


GOOD = TRANSCRIPT.to_json()


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "text", 5, {}, {"text": "go", "language": None}),
        {**GOOD, "text": 5},
        {**GOOD, "more": 5},
        {**GOOD, "segments": None},
        {**GOOD, "segments": ["go"]},
        {**GOOD, "segments": [{"start": 0.0, "end": 1.0, "text": "go"}]},
        {**GOOD, "segments": [{"start": None, "end": 1.0, "text": "go", "words": None}]},
        {**GOOD, "segments": [{"start": "soon", "end": 1.0, "text": "go", "words": None}]},
        {**GOOD, "segments": [{"start": 0.0, "end": 1.0, "text": "go", "words": [{"text": "go"}]}]},
    ],
    ids=str,
)
def test_what_is_no_transcript_is_refused(value):
    with pytest.raises((TypeError, KeyError, ValueError)):
        ChunkTranscript.from_json(sent(value))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (TranscriptionOptions(), {"task": "transcribe", "word_times": False}),
        (
            TranscriptionOptions("fr", "translate", word_times=True),
            {"language": "fr", "task": "translate", "word_times": True},
        ),
    ],
)
def test_a_request_has_only_what_is_asked_for(asked, expected):
    assert asked.to_json() == expected
