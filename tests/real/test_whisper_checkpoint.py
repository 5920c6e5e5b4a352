"""whisper-tiny.en as scripts/real_data converts it, beside CTranslate2 and faster-whisper with the published file."""

import ctranslate2
import numpy as np
import pytest
import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from reelscribe.contract.speech import TranscriptionOptions
from support.real_speech import Sentence, wrong_words
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.ctranslate2_conversion import convert
from transcripts.whisper.model import WhisperModel

START, NO_TIMESTAMPS, END = 50257, 50362, 50256
WINDOW_FRAMES = 3000
TOLERANCE = 0.01
"""Of log-probabilities. The published weights have 11 bits, and the sums of the libraries are in other orders."""


@pytest.fixture(scope="module")
def processor(checkpoint):
    return AutoProcessor.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def features(processor, sentences) -> list[torch.Tensor]:
    """The spectrogram of each sentence, (1, mels, WINDOW_FRAMES)."""
    audio = [sentence.samples for sentence in sentences]
    return list(processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="pt").input_features[:, None])


@pytest.fixture(scope="module")
def reference(published):
    """The published file, as CTranslate2 reads it."""
    return ctranslate2.models.Whisper(published, device="cpu", compute_type="float32")


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def ours(request, checkpoint, tmp_path_factory) -> WhisperModel:
    """The model of our handler with its default settings, with each engine."""
    settings = {}
    if request.param == "ctranslate2":
        folder = tmp_path_factory.mktemp("engine") / "converted"
        convert(checkpoint, str(folder), "auto")
        settings = {"engine": "ctranslate2", "converted": str(folder)}
    return WhisperModel(SpeechSettings(checkpoint, **settings), torch.device("cpu"))


def generated(reference, features: torch.Tensor, prompt: list[int], **options):
    """What CTranslate2 generates greedily after a prompt."""
    view = ctranslate2.StorageView.from_array(features.numpy())
    (result,) = reference.generate(view, [prompt], beam_size=1, return_scores=True, **options)
    return result


def transcribed(ours: WhisperModel, sentences: list[Sentence]):
    return ours.transcribe([Chunk(sentence.samples, TranscriptionOptions()) for sentence in sentences])


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


def test_both_engines_generate_the_text_of_the_published_file(ours, reference, processor, features, sentences):
    for window, transcript in zip(features, transcribed(ours, sentences), strict=True):
        result = generated(reference, window, [START])
        (tokens,), (score,) = result.sequences_ids, result.scores
        text = processor.tokenizer.decode([token for token in tokens if token < END])
        assert (transcript.text, transcript.temperature) == (text.strip(), 0)
        assert transcript.avg_logprob == pytest.approx(score * len(tokens) / (len(tokens) + 1), abs=TOLERANCE)


def test_both_engines_transcribe_as_faster_whisper_does(ours, published, sentences):
    faster_whisper = pytest.importorskip("faster_whisper", reason="faster-whisper comes with the extra bench")
    peer = faster_whisper.WhisperModel(published, device="cpu", compute_type="float32")
    for sentence, transcript in zip(sentences, transcribed(ours, sentences), strict=True):
        segments, _ = peer.transcribe(sentence.samples, language="en", beam_size=1, temperature=0)
        (segment,) = segments
        assert transcript.text == segment.text.strip()
        assert transcript.avg_logprob == pytest.approx(segment.avg_logprob, abs=TOLERANCE)


def test_the_sentences_are_read_as_they_are_written(ours, sentences):
    texts = [transcript.text for transcript in transcribed(ours, sentences)]
    assert sum(len(sentence.text.split()) for sentence in sentences) == 66
    assert wrong_words(texts, sentences) <= 3
