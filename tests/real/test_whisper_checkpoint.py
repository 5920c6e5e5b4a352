"""whisper-tiny.en as scripts/real_data converts it, beside CTranslate2 and faster-whisper with the published file."""

import json

import ctranslate2
import numpy as np
import pytest
import soundfile
import soxr
import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from real.recordings import TEXTS
from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions
from support.real_speech import MOST_WRONG, SAMPLE_RATE, Sentence, wrong_words
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.ctranslate2_conversion import convert
from transcripts.whisper.model import WhisperModel

START, NO_TIMESTAMPS, END = 50257, 50362, 50256
WINDOW = 480_000
"""Samples of a window."""
TOLERANCE = 0.01
"""Of log-probabilities. The published weights have 11 bits, and the sums of the libraries are in other orders."""


@pytest.fixture(scope="module")
def processor(checkpoint):
    return AutoProcessor.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def features(processor, sentences) -> list[torch.Tensor]:
    """The spectrogram of each sentence, (1, mels, frames)."""
    audio = [sentence.samples for sentence in sentences]
    return list(processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="pt").input_features[:, None])


@pytest.fixture(scope="module")
def reference(published):
    """The published file, as CTranslate2 reads it."""
    return ctranslate2.models.Whisper(published, device="cpu", compute_type="float32", intra_threads=1)


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def transcripts(request, checkpoint, sentences, tmp_path_factory) -> list[ChunkTranscript]:
    """The transcripts that the model of our handler makes with its default settings, with each engine."""
    settings = {}
    if request.param == "ctranslate2":
        folder = tmp_path_factory.mktemp("engine") / "converted"
        convert(checkpoint, str(folder), "auto")
        settings = {"engine": "ctranslate2", "converted": str(folder)}
    model = WhisperModel(SpeechSettings(checkpoint, **settings), torch.device("cpu"))
    return model.transcribe([Chunk(sentence.samples, TranscriptionOptions()) for sentence in sentences])


def generated(reference, features: torch.Tensor, prompt: list[int], **options):
    """What CTranslate2 generates greedily after a prompt."""
    view = ctranslate2.StorageView.from_array(features.numpy())
    (result,) = reference.generate(view, [prompt], beam_size=1, return_scores=True, **options)
    return result


def test_every_token_is_as_probable_as_with_the_published_file(checkpoint, reference, features):
    model = WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()
    plain = {"suppress_blank": False, "suppress_tokens": [], "return_logits_vocab": True}
    for window in features:
        result = generated(reference, window, [START, NO_TIMESTAMPS], **plain)
        (tokens,), (steps,) = result.sequences_ids, result.logits
        expected = torch.from_numpy(np.stack([np.asarray(step).ravel() for step in steps])).log_softmax(-1)
        with torch.inference_mode():
            ids = torch.tensor([[START, NO_TIMESTAMPS, *tokens]])
            logprobs = model(window, decoder_input_ids=ids).logits[0, 1:].log_softmax(-1)
        assert len(tokens) > 5
        assert logprobs.argmax(-1).tolist() == [*tokens, END]
        chosen = torch.tensor([*tokens, END])[:, None]
        assert logprobs.gather(1, chosen) == pytest.approx(expected.gather(1, chosen), abs=TOLERANCE)


def test_both_engines_generate_the_text_of_the_published_file(transcripts, reference, processor, features):
    for window, transcript in zip(features, transcripts, strict=True):
        result = generated(reference, window, [START])
        (tokens,), (score,) = result.sequences_ids, result.scores
        text = processor.tokenizer.decode([token for token in tokens if token < END])
        assert (transcript.text, transcript.temperature) == (text.strip(), 0)
        assert transcript.avg_logprob == pytest.approx(score * len(tokens) / (len(tokens) + 1), abs=TOLERANCE)


@pytest.fixture(scope="module")
def faster_whisper_segments(published, sentences) -> list:
    """What faster-whisper hears in each sentence: one segment."""
    faster_whisper = pytest.importorskip("faster_whisper", reason="faster-whisper comes with the extra bench")
    model = faster_whisper.WhisperModel(published, device="cpu", compute_type="float32", cpu_threads=1)
    segments = []
    for sentence in sentences:
        # Like openai/whisper, we pad the audio with silence. faster-whisper pads the spectrogram with zeros, which are
        # louder than silence; so its audio gets the length of a window.
        padded = np.pad(sentence.samples, (0, WINDOW - len(sentence.samples)))
        segments += model.transcribe(padded, language="en", beam_size=1, temperature=0)[0]
    return segments


def test_both_engines_transcribe_as_faster_whisper_does(transcripts, faster_whisper_segments):
    for transcript, segment in zip(transcripts, faster_whisper_segments, strict=True):
        assert transcript.text == segment.text.strip()
        assert transcript.avg_logprob == pytest.approx(segment.avg_logprob, abs=TOLERANCE)


def test_the_sentences_are_read_as_they_are_written(transcripts, sentences):
    assert wrong_words([transcript.text for transcript in transcripts], sentences) <= MOST_WRONG


HARD = ("bull", "cow", "crow", "deer", "doe", "giraffe", "koala", "orca")
"""Single words of which it hears none, such as "ciao" for "cow"."""


@pytest.fixture(scope="module")
def hard_words(part) -> list[Sentence]:
    """Recordings of the hard words."""
    folder, found = part("words"), []
    texts = json.loads((folder / TEXTS).read_text())
    for name in HARD:
        samples, rate = soundfile.read(folder / f"{name}.ogg", dtype="float32")
        found.append(Sentence(texts[f"{name}.ogg"], soxr.resample(samples, rate, SAMPLE_RATE)))
    return found


def test_hot_words_are_heard_and_no_others_are_lost_or_invented(checkpoint, hard_words, sentences):
    model = WhisperModel(SpeechSettings(checkpoint), torch.device("cpu"))

    def heard(recordings: list[Sentence], hotwords: str | None) -> list[str]:
        options = TranscriptionOptions(hotwords=hotwords)
        return [each.text for each in model.transcribe([Chunk(one.samples, options) for one in recordings])]

    assert wrong_words(heard(hard_words, None), hard_words) >= len(HARD)
    assert wrong_words(heard(hard_words, ", ".join(HARD)), hard_words) <= len(HARD) // 4
    assert wrong_words(heard(sentences, ", ".join(HARD)), sentences) <= MOST_WRONG
