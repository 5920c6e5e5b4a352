"""Transcripts and transcription options, and how they travel as JSON."""

import json
from dataclasses import replace

import pytest

from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions, Word

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
    language_probability=0.75,
)
TRANSCRIPT_JSON = TRANSCRIPT.to_json()


def as_received(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "transcript",
    [
        TRANSCRIPT,
        ChunkTranscript("", None, ()),
        replace(TRANSCRIPT, translation=ChunkTranscript("left", "de", (SpeechSegment(0.0, 1.0, "left"),))),
        ChunkTranscript("«étoile» \ud83d", None, (SpeechSegment(0.0, 1 / 3, "«étoile» \ud83d", words=()),)),
    ],
)
def test_a_transcript_is_the_same_after_it_was_sent(transcript):
    assert ChunkTranscript.from_json(as_received(transcript.to_json())) == transcript


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], "text", 5, {}, {"text": "go", "language": None}),
        {**TRANSCRIPT_JSON, "text": 5},
        {**TRANSCRIPT_JSON, "more": 5},
        {**TRANSCRIPT_JSON, "translation": None},
        {**TRANSCRIPT_JSON, "translation": {**TRANSCRIPT_JSON, "translation": TRANSCRIPT_JSON}},
        {**TRANSCRIPT_JSON, "segments": None},
        {**TRANSCRIPT_JSON, "segments": ["go"]},
        {**TRANSCRIPT_JSON, "segments": [{"start": 0.0, "end": 1.0, "text": "go"}]},
        {**TRANSCRIPT_JSON, "segments": [{"start": None, "end": 1.0, "text": "go", "words": None}]},
        {**TRANSCRIPT_JSON, "segments": [{"start": "soon", "end": 1.0, "text": "go", "words": None}]},
        {**TRANSCRIPT_JSON, "segments": [{"start": 0.0, "end": 1.0, "text": "go", "words": [{"text": "go"}]}]},
    ],
    ids=str,
)
def test_any_other_value_is_refused(value):
    with pytest.raises((TypeError, KeyError, ValueError)):
        ChunkTranscript.from_json(as_received(value))


def test_what_has_no_translation_is_sent_as_it_was_before_there_was_any():
    assert "translation" not in TRANSCRIPT_JSON


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TranscriptionOptions(), {"task": "transcribe", "word_times": False}),
        (
            TranscriptionOptions("fr", "translate", word_times=True),
            {"language": "fr", "task": "translate", "word_times": True},
        ),
        (
            TranscriptionOptions(initial_prompt="Now.", hotwords="a", beams=5),
            {"task": "transcribe", "word_times": False, "initial_prompt": "Now.", "hotwords": "a", "beams": 5},
        ),
    ],
)
def test_a_request_has_the_options_that_are_set(options, expected):
    assert options.to_json() == expected


@pytest.mark.parametrize(
    ("hotwords", "initial_prompt", "expected"),
    [
        (None, None, ""),
        ("Zürich", None, "Zürich"),
        ("Zürich,  Uster \r\n\nWil an der Thur,\n", None, "Zürich, Uster, Wil an der Thur"),
        (None, " A meeting. ", "A meeting."),
        ("Uster, Wil", "A meeting.", "Uster, Wil A meeting."),
    ],
)
def test_hot_words_and_the_initial_prompt_are_one_text(hotwords, initial_prompt, expected):
    assert TranscriptionOptions(hotwords=hotwords, initial_prompt=initial_prompt).previous_text == expected


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), 0.5, True, "-0.5"])
def test_what_is_no_log_probability_is_refused(wrong):
    segment = {"start": 0.0, "end": 1.0, "text": "x", "words": None, "avg_logprob": wrong}
    answer = {"text": "x", "language": "en", "no_speech_prob": 0.25, "segments": [segment]}
    with pytest.raises(TypeError, match="avg_logprob: expected a number of at most 0, or null"):
        ChunkTranscript.from_json(answer)
