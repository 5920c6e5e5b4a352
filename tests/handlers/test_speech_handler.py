"""The handler with the trained demo speech model."""

import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

import speech_handler
from reelscribe import wire
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import StartupError
from support.alike import assert_alike
from support.fake_context import FakeContext, parsed
from support.tiny_models import save_wav2vec2
from synthetic.phrases import SAMPLE_RATE, Utterance, random_utterance, recording
from transcripts.speech_model import SpeechSettings


@pytest.fixture(scope="module")
def spoken() -> list[Utterance]:
    rng = random.Random(11)
    return [random_utterance(rng, held_out=True) for _ in range(6)]


def load(model: str, **settings) -> FakeContext:
    """Start a worker's handler as TorchServe does."""
    context = FakeContext({"model": model, **settings})
    assert speech_handler.handle(None, context) is None
    return context


def ask(context: FakeContext, body: bytes, **headers: str):
    """The answer to one request, as it arrives."""
    context.headers = [{f"X-Reelscribe-{name.replace('_', '-').title()}": value for name, value in headers.items()}]
    (answer,) = parsed(speech_handler.handle([{"body": body}], context))
    assert context.statuses == {}
    return answer


def packed(samples: list[np.ndarray], **options) -> bytes:
    return b"".join(wire.pack({"chunks": samples, "sample_rate": SAMPLE_RATE, **options}))


def saved(samples: np.ndarray) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format="FLAC")
    return file.getvalue()


def padded(utterance: Utterance, before: float) -> np.ndarray:
    """With so many seconds of silence before it, and half a second after it."""
    return np.pad(utterance.samples, (round(before * SAMPLE_RATE), SAMPLE_RATE // 2))


@pytest.mark.parametrize("timestamps", [True, False])
def test_transcripts_are_what_was_spoken(demo_speech, spoken, timestamps):
    context = load(demo_speech, timestamps=timestamps)
    answers = ask(context, packed([utterance.samples for utterance in spoken], language="en"))
    assert [answer["text"] for answer in answers] == [" ".join(utterance.words) for utterance in spoken]
    assert all(answer["temperature"] == 0 for answer in answers)


def test_segments_and_words_start_when_they_are_spoken(demo_speech, spoken):
    context = load(demo_speech)
    body = packed([padded(utterance, before=1.5) for utterance in spoken], word_times=True)
    for utterance, answer in zip(spoken, ask(context, body), strict=True):
        (segment,) = ChunkTranscript.from_json(answer).segments
        assert segment.start == pytest.approx(1.5, abs=0.3)
        assert segment.end == pytest.approx(1.5 + len(utterance.samples) / SAMPLE_RATE, abs=0.3)
        assert [word.text for word in segment.words] == list(utterance.words)
        starts = [1.5 + start / SAMPLE_RATE for start in utterance.word_starts]
        assert [word.start for word in segment.words] == pytest.approx(starts, abs=0.4)


def test_the_language_is_detected_and_silence_is_no_speech(demo_speech, spoken):
    speech, silence = ask(load(demo_speech), packed([spoken[0].samples, np.zeros(SAMPLE_RATE * 3, np.int16)]))
    assert (speech["language"], silence["text"], silence["segments"]) == ("en", "", [])
    assert speech["no_speech_prob"] < 0.1 < 0.9 < silence["no_speech_prob"]


def test_a_file_longer_than_the_window_is_one_transcript(demo_speech):
    talk = recording(random.Random(3), 25, pauses=(0.4, 0.8))
    answer = ask(load(demo_speech), saved(talk.samples), language="en")
    assert answer["text"].split() == [word for _, _, words in talk.phrases for word in words]
    starts = [segment["start"] for segment in answer["segments"]]
    assert starts == sorted(starts)
    assert 0 < starts[0] < 1
    assert starts[-1] == pytest.approx(talk.phrases[-1][0] / SAMPLE_RATE, abs=0.3)


def test_a_chunk_has_the_same_transcript_in_every_batch(demo_speech, spoken):
    body = packed([utterance.samples for utterance in spoken], word_times=True)
    assert_alike(ask(load(demo_speech, device_batch=1), body), ask(load(demo_speech, device_batch=4), body))


def test_a_file_has_a_translation_if_it_is_asked_for(demo_speech, spoken):
    context, file = load(demo_speech), saved(padded(spoken[0], before=0.5))
    plain, both = ask(context, file), ask(context, file, task="both")
    assert [segment["text"] for segment in both.pop("translations")] == [" ".join(spoken[0].words)]
    assert_alike(both, plain)


def test_describe_returns_what_a_client_needs(demo_speech):
    context = load(demo_speech, device_batch=7, max_chunks=9)
    context.headers = [{"describe": "True"}]
    (answer,) = parsed(speech_handler.handle([{"body": b""}], context))
    description = SpeechDescription.from_json(answer)
    assert (description.workers, description.joined_requests) == (1, 8)  # TorchServe's settings, not the YAML
    assert (description.name, description.sample_rate, description.chunk_seconds) == (demo_speech, SAMPLE_RATE, 10)
    assert description.revision.startswith("sha256:")
    assert "en" in description.languages
    assert (description.tasks, description.language) == (("transcribe", "translate", "both"), None)
    assert description.word_times
    assert description.generation["compression_ratio_threshold"] == 2.4
    assert (description.dtype, description.device_batch, description.max_chunks) == ("float32", 7, 9)


def test_a_response_has_the_computing_time_as_a_header(demo_speech, spoken):
    context = load(demo_speech)
    ask(context, packed([spoken[0].samples]))
    assert float(context.response_headers[0][wire.COMPUTE_SECONDS_HEADER]) > 0


def test_a_response_names_its_worker_and_where_that_computes(demo_speech, spoken):
    context = load(demo_speech)
    ask(context, packed([spoken[0].samples]))
    assert context.response_headers[0][wire.WORKER_HEADER] == f"{os.getpid()} cpu"


def test_a_ctc_model_answers_as_well(tmp_path, spoken):
    context = load(save_wav2vec2(tmp_path, masked=True))
    (answer,) = ask(context, packed([spoken[0].samples], word_times=True))
    assert ChunkTranscript.from_json(answer).language is None
    (answer,) = ask(context, packed([spoken[0].samples], words=[["Sit!", "Then?"]]))
    (segment,) = ChunkTranscript.from_json(answer).segments
    assert [word.text for word in segment.words] == ["Sit!", "Then?"]
    assert segment.words[0].start < segment.words[0].end <= segment.words[1].start < segment.words[1].end


@pytest.mark.parametrize("model", ["captioner", "nothing"])
def test_a_model_of_another_kind_is_refused(demo_model, tmp_path, model):
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(StartupError, match=r"expected WhisperForConditionalGeneration, .* or a \.\.\.ForCTC, got"):
        load(demo_model if model == "captioner" else str(tmp_path))


def test_the_yaml_holds_the_default_settings():
    options = yaml.safe_load((Path(speech_handler.__file__).parent / "speech.yaml").read_text())["handler"]
    assert SpeechSettings(**options) == SpeechSettings(options["model"])
