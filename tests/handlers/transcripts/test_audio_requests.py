import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from reelscribe import wire
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions
from reelscribe.errors import PromptError, SpeechError
from support.fake_context import FakeContext, parsed
from transcripts.audio_requests import AudioLimits, AudioReader, AudioRequest
from worker.request_batch import RequestBatch, Unread

RATE = 16_000
TONE = (8000 * np.sin(np.arange(RATE) / 20)).astype(np.int16)


@dataclass
class Model:
    """The capabilities of a model."""

    sample_rate: int = RATE
    languages: tuple[str, ...] = ("en", "de")
    tasks: tuple[str, ...] = ("transcribe", "translate")
    word_times: bool = True
    beams: int = 5
    aligns: bool = True
    detects_among: bool = True

    def check_previous_text(self, text: str) -> None:
        if len(text) > 40:
            raise PromptError("expected at most 10 tokens together")


def reader(model: Model | None = None) -> AudioReader:
    return AudioReader(AudioLimits(chunks=3, chunk_seconds=5), model or Model())


def row(tree) -> dict[str, bytes]:
    return {"body": b"".join(wire.pack(tree))}


def chunks(sent, **options) -> dict[str, bytes]:
    return row({"chunks": sent, "sample_rate": RATE, **options})


def read(row: dict, headers: dict[str, str]) -> AudioRequest:
    request = reader()(row, headers)
    return request.read() if isinstance(request, Unread) else request


def transcript(text: str, start: float = 0.0, end: float = 1.0) -> ChunkTranscript:
    return ChunkTranscript(text, "en", (SpeechSegment(start, end, text),), no_speech_prob=0.1, avg_logprob=-0.2)


def test_requests_are_answered_in_the_shape_of_what_was_sent():
    rows = [
        row(TONE),
        chunks([TONE, TONE[:800]]),
        chunks(TONE),
        {"body": pickle.dumps([TONE][0])},
    ]
    context = FakeContext()
    requests = RequestBatch(rows, context, reader())
    assert [[len(chunk.samples) for chunk in items] for items in requests.items] == [
        [RATE],
        [RATE, 800],
        [RATE],
        [RATE],
    ]
    results = [[transcript("a")], [transcript("b"), transcript("c")], *[[transcript(text)] for text in "de"]]
    answers = parsed(requests.responses(results, {}))
    texts = [[part["text"] for part in answer] if isinstance(answer, list) else answer["text"] for answer in answers]
    assert texts == ["a", ["b", "c"], "d", "e"]
    assert set(context.content_types.values()) == {"application/json"}
    assert context.statuses == {}


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f4", ">f4"])
def test_samples_of_every_dtype_are_the_same_audio(dtype):
    sent = TONE.astype(dtype) if dtype[1] == "i" else (TONE / 32768).astype(dtype)
    (chunk,) = read(row(sent), {}).items
    assert chunk.samples.dtype == np.float32
    assert chunk.samples == pytest.approx(TONE / 32768, abs=1e-6)


def test_every_chunk_has_the_options_of_its_request():
    request = read(chunks([TONE, TONE], language="de", task="translate", word_times=True), {})
    assert [chunk.options for chunk in request.items] == [TranscriptionOptions("de", "translate", word_times=True)] * 2
    assert read(row(TONE), {}).items[0].options == TranscriptionOptions()


def test_every_chunk_has_the_words_that_are_sent_for_it():
    assert [chunk.words for chunk in read(chunks([TONE, TONE], words=[["one", "two"], []]), {}).items] == [
        ("one", "two"),
        (),
    ]
    assert read(chunks(TONE, words=["one"]), {}).items[0].words == ("one",)
    assert read(chunks(TONE), {}).items[0].words is None


def test_with_a_bare_array_headers_hold_the_options():
    request = read(row(TONE), {"x-reelscribe-language": "en", "x-reelscribe-word-times": "true"})
    assert request.items[0].options == TranscriptionOptions("en", word_times=True)
    vocabulary = {"x-reelscribe-initial-prompt": "Now.", "x-reelscribe-hotwords": "a,b", "x-reelscribe-beams": "5"}
    options = TranscriptionOptions(initial_prompt="Now.", hotwords="a,b", beams=5)
    assert read(row(TONE), vocabulary).items[0].options == options


def test_the_default_sample_rate_is_that_of_the_model():
    (chunk,) = read(row({"chunks": TONE, "sample_rate": RATE}), {}).items
    (unsaid,) = read(row({"chunks": TONE}), {}).items
    assert np.array_equal(unsaid.samples, chunk.samples)


def test_another_rate_is_resampled():
    slow = (8000 * np.sin(np.arange(8000) * 2 * np.pi * 440 / 8000)).astype(np.int16)
    (chunk,) = read(row({"chunks": slow, "sample_rate": 8000}), {}).items
    assert len(chunk.samples) == RATE
    expected = 8000 / 32768 * np.sin(np.arange(RATE) * 2 * np.pi * 440 / RATE)
    assert chunk.samples[800:-800] == pytest.approx(expected[800:-800], abs=1e-3)


LOUD = (TONE * 1.0).astype(np.float32)
NAN = np.array([0, np.nan, 0.1], np.float32)


@pytest.mark.parametrize(
    ("bad", "status", "kind", "reason"),
    [
        ({"body": b""}, 400, "WireError", "got 0 bytes"),
        ({"body": b'{"json": 1}'}, 415, "UnsupportedFormat", "got JSON"),
        ({"body": b"\x89PNG\r\n\x1a\n"}, 415, "UnsupportedFormat", "got a PNG image"),
        ({"body": b"ID3\4"}, 415, "UnsupportedFormat", "got MP3 audio"),
        (
            {},
            415,
            "UnsupportedFormat",
            "got a form without a field named data; send a file by curl -T FILE, or as a form by",
        ),
        (row("text"), 422, "SpeechError", "expected an array, or a dict with chunks and"),
        (row({"frames": TONE}), 422, "SpeechError", "got a dict without chunks"),
        (
            row({"chunks": TONE, "rate": 1}),
            422,
            "SpeechError",
            "words, language, task, word_times, initial_prompt, hotwords, beams, got a dict with other names, too",
        ),
        (
            row({"chunks": TONE, "sample_rate": "8k"}),
            422,
            "SpeechError",
            "samples a second the chunks have, got str of length 2",
        ),
        (row({"chunks": TONE, "sample_rate": 800}), 422, "SpeechError", "4000 to 192000 samples a second, got fewer"),
        (chunks([]), 422, "SpeechError", "at least one, got none"),
        (chunks([TONE, "text"]), 422, "SpeechError", "got str of length 4"),
        (chunks(TONE[:0]), 422, "SpeechError", "at least one sample"),
        (
            row({"chunks": TONE[:5], "sample_rate": 192000}),
            422,
            "SpeechError",
            "at least one sample at the model's rate",
        ),
        (
            chunks(np.stack([TONE, TONE], axis=1)),
            422,
            "SpeechError",
            "mono, (N,), got 2 dimensions; average the channels",
        ),
        (chunks(TONE.astype(np.int32)), 422, "SpeechError", "int16, or float32 from -1 to 1, got int32"),
        (chunks(TONE.astype(np.uint8)), 422, "SpeechError", "got uint8"),
        (chunks(TONE / 32768), 422, "SpeechError", "got float64"),
        (chunks(LOUD), 422, "SpeechError", "from -1 to 1, got larger ones; divide by full scale, 32768"),
        (chunks(NAN), 422, "SpeechError", "NaN or infinity"),
        (chunks(TONE, language="xx"), 422, "SpeechError", "language: expected one of en, de; got str of length 2"),
        (chunks(TONE, language="en,xx"), 422, "SpeechError", "language: expected one of en, de; got str of length 5"),
        (chunks(TONE, language=TONE), 422, "SpeechError", "language: expected one of en, de; got ndarray"),
        (
            chunks(TONE, task="sing"),
            422,
            "SpeechError",
            "task: expected one of transcribe, translate; got str of length 4",
        ),
        (chunks(TONE, word_times=1), 422, "SpeechError", "word_times: expected true or false, got int"),
        (chunks(TONE, beams=6), 422, "SpeechError", "beams: expected 1 to 5, the most of this model, got 6"),
        (chunks(TONE, beams=True), 422, "SpeechError", "beams: expected 1 to 5, the most of this model, got <bool>"),
        (chunks(TONE, hotwords=" ,"), 422, "PromptError", "hotwords: expected a text that is not empty, got str"),
        (chunks(TONE, initial_prompt=5), 422, "PromptError", "initial_prompt: expected a text that is not empty, got"),
        (chunks(TONE, hotwords="Zürich, " * 9), 422, "PromptError", "expected at most 10 tokens together"),
        (chunks([TONE], words=["a"]), 422, "SpeechError", "words: expected a list of texts for each chunk, got str"),
        (chunks([TONE], words=[["a"], ["b"]]), 422, "SpeechError", "words for each of 1 chunks, got list of length 2"),
        (chunks(TONE, words=["a", 5]), 422, "SpeechError", "words: expected a list of texts for each chunk, got list"),
        (chunks(TONE, words=[""] * 10_001), 413, "LimitExceeded", "words: at most 10000 characters a chunk"),
        (chunks(TONE, words=["a" * 10_000]), 413, "LimitExceeded", "words: at most 10000 characters a chunk"),
        (chunks([TONE] * 4), 413, "LimitExceeded", "at most 3 a request, got 4"),
        (chunks(np.tile(TONE, 6)), 413, "LimitExceeded", "at most 5 seconds each"),
        ({"body": pickle.dumps(print)}, 400, "WireError", "it names another class or function"),
    ],
)
def test_a_bad_request_has_its_own_error_and_its_neighbours_none(bad, status, kind, reason):
    context = FakeContext()
    requests = RequestBatch([row(TONE), bad, row(TONE)], context, reader())
    first, error, last = parsed(requests.responses([[transcript("a")], [transcript("b")]], {}))
    assert (first["text"], last["text"]) == ("a", "b")
    assert context.statuses == {1: status}
    assert error["error"]["type"] == kind
    assert reason in error["error"]["message"]


def test_a_header_with_an_unknown_value_is_refused():
    context = FakeContext(headers=[{"X-Reelscribe-Word-Times": "maybe"}])
    (answer,) = parsed(RequestBatch([row(TONE)], context, reader()).responses([], {}))
    assert context.statuses == {0: 422}
    assert "word_times: expected true or false, got str of length 5" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"language": "en"}, "none, as this model does not say which language it knows"),
        ({"task": "translate"}, "expected one of transcribe; got str of length 9"),
        ({"word_times": True}, "cannot give the times of words"),
        ({"words": ["a"]}, "words: expected none, as this model cannot align words; use one with a CTC head"),
    ],
)
def test_options_that_a_model_does_not_support_are_refused(option, reason):
    context = FakeContext()
    modest = Model(languages=(), tasks=("transcribe",), word_times=False, aligns=False)
    (answer,) = parsed(RequestBatch([chunks(TONE, **option)], context, reader(modest)).responses([], {}))
    assert context.statuses == {0: 422}
    assert reason in answer["error"]["message"]


def test_several_languages_are_for_models_that_detect_which_is_spoken():
    (chunk,) = read(chunks(TONE, language="en,de"), {}).items
    assert chunk.options.languages == ("en", "de")
    with pytest.raises(SpeechError, match="language: expected one code, as this model cannot detect which of several"):
        reader(Model(detects_among=False))(chunks(TONE, language="en,de"), {})


def test_a_float_may_overshoot_a_little_as_lossy_codecs_do():
    (chunk,) = read(row(np.full(100, 1.3, np.float32)), {}).items
    assert chunk.samples.max() == np.float32(1.3)


def test_a_call_takes_as_much_audio_as_one_request_may_hold_and_refuses_the_rest():
    context = FakeContext()
    requests = RequestBatch(
        [chunks([np.tile(TONE, 4)] * 3), chunks([np.tile(TONE, 5)] * 2), row(TONE)], context, reader()
    )
    assert [len(items) for items in requests.items] == [3, 1]
    answers = parsed(requests.responses([[transcript("a")] * 3, [transcript("b")]], {}))
    assert context.statuses == {1: 503}
    assert answers[1]["error"]["type"] == "CallFull"
