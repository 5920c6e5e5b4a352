"""Canary and Qwen3-ASR, tiny and with random weights: the text they generate does not matter here.

They are compared with `generate` and the processor of transformers, whose pipeline gives these models no prompt.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import PromptError, StartupError
from runtime.metrics import Counters
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import save_canary, save_qwen3_asr
from transcripts.canary_model import CanaryModel
from transcripts.prompted_model import PromptedModel
from transcripts.qwen3_asr_model import Qwen3AsrModel
from transcripts.speech_model import Chunk, SpeechSettings

CPU = torch.device("cpu")
RATE = 16_000
CLASSES = {"canary": CanaryModel, "qwen3asr": Qwen3AsrModel}
NOISES = [noise(seconds, seed) for seed, seconds in enumerate([1, 2.1, 0.5, 5, 0.003, 1.37])]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "canary": [{}, {"language": "de"}, {"language": "de", "task": "translate"}],
    "qwen3asr": [{}, {"language": "de"}, {"hotwords": "Zürich, Ny"}, {"language": "en", "initial_prompt": "Hello."}],
}
CASES = [(family, options) for family, choices in OPTIONS.items() for options in choices]


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, str]:
    return {
        "canary": save_canary(tmp_path_factory.mktemp("canary")),
        "qwen3asr": save_qwen3_asr(tmp_path_factory.mktemp("qwen3asr")),
    }


def load(directories: dict[str, str], family: str, **settings) -> PromptedModel:
    return CLASSES[family](SpeechSettings(directories[family], **settings), CPU)


def chunks(**options) -> list[Chunk]:
    return [Chunk(samples, TranscriptionOptions(**options)) for samples in NOISES]


def requested(processor: Any, family: str, samples: np.ndarray, options: TranscriptionOptions) -> Any:
    """What the processor of transformers makes of a request."""
    if family == "qwen3asr":
        text = options.previous_text or None
        return processor.apply_transcription_request([samples], language=options.language, prompt=text)
    spoken = options.language or "en"
    target = "en" if options.task == "translate" else spoken
    return processor.apply_transcription_request([samples], source_language=spoken, target_language=target)


@pytest.mark.parametrize(("family", "options"), CASES)
def test_text_is_what_transformers_makes_of_each_chunk_alone(directories, family, options):
    got = load(directories, family).transcribe(chunks(**options))
    processor = AutoProcessor.from_pretrained(directories[family])
    model = AutoModelForSpeechSeq2Seq.from_pretrained(directories[family], dtype=torch.float32).eval()
    for samples, transcript in zip(NOISES, got, strict=True):
        if len(samples) < 0.1 * RATE:
            continue  # transformers makes no frame of it
        inputs = requested(processor, family, samples, TranscriptionOptions(**options))
        limit = 10 + int(np.ceil(14 * len(samples) / RATE))
        output = model.generate(**inputs, max_new_tokens=limit)
        prompt = inputs["input_ids" if family == "qwen3asr" else "decoder_input_ids"].shape[1]
        text = processor.decode(output[0, prompt:], skip_special_tokens=True)
        assert transcript.text == (processor.extract_transcription(text) if family == "qwen3asr" else text.strip())
    assert len({transcript.text for transcript in got}) > 2


@pytest.mark.parametrize("family", CLASSES)
def test_a_transcript_does_not_depend_on_the_other_chunks_of_a_batch(directories, family):
    model = load(directories, family, tokens_per_second=3)
    mixed = [Chunk(samples, TranscriptionOptions(**o)) for samples, o in product(NOISES, OPTIONS[family])]
    together = model.transcribe(mixed)
    assert_alike(together, [model.transcribe([chunk])[0] for chunk in mixed])
    assert len({transcript.avg_logprob for transcript in together}) > len(NOISES)


@pytest.mark.parametrize("family", CLASSES)
def test_a_language_that_is_named_twice_is_one(directories, family):
    model = load(directories, family)
    assert_alike(model.transcribe(chunks(language="de, de")), model.transcribe(chunks(language="de")))


def test_a_transcript_and_its_translation_are_those_of_each_alone(directories):
    model = load(directories, "canary", tokens_per_second=3)
    said, translated, both = (
        model.transcribe(chunks(language="de", task=task)) for task in ("transcribe", "translate", "both")
    )
    assert_alike(both, [replace(one, translation=other) for one, other in zip(said, translated, strict=True)])


@pytest.mark.parametrize("family", CLASSES)
def test_a_chunk_is_one_segment_with_no_more_tokens_than_its_length_allows(directories, family):
    counters = Counters()
    model = CLASSES[family](SpeechSettings(directories[family], tokens_per_second=2), CPU, counters)
    for chunk in chunks(language="en"):
        counters.take()
        (transcript,) = model.transcribe([chunk])
        assert counters.take().get("tokens", 0) <= 10 + np.ceil(2 * model.seconds(chunk))
        assert transcript.language == "en"
        spans = [(segment.start, segment.end, segment.text, segment.words) for segment in transcript.segments]
        assert spans == ([(0, round(model.seconds(chunk), 3), transcript.text, None)] if transcript.text else [])


@pytest.mark.parametrize("family", CLASSES)
def test_a_single_sample_and_the_longest_chunk_have_a_transcript(directories, family):
    model = load(directories, family, chunk_seconds=60, tokens_per_second=1)
    lengths = [1, 60 * RATE]
    short, long = (model.inputs(Chunk(np.zeros(length, np.float32), TranscriptionOptions())) for length in lengths)
    frames = "input_features_mask" if family == "qwen3asr" else "attention_mask"
    assert long[frames].sum() == 6000  # nothing is cut off
    assert short[frames].sum() < 60
    assert len(model.transcribe([Chunk(noise(60, 1), TranscriptionOptions())])) == 1


@pytest.mark.parametrize(("family", "seconds"), [("canary", 90), ("qwen3asr", 120)])
def test_chunks_without_room_in_the_model_are_refused(directories, family, seconds):
    with pytest.raises(StartupError, match=rf"expected chunks with room in the .* positions of .*, got {seconds}, for"):
        load(directories, family, chunk_seconds=seconds)


def test_what_they_can_do(directories):
    canary, qwen = (load(directories, family) for family in CLASSES)
    assert (canary.language, canary.tasks, canary.prompt_tokens) == ("en", ("transcribe", "translate", "both"), 0)
    assert (qwen.language, qwen.tasks, qwen.prompt_tokens) == (None, ("transcribe",), 1000)
    assert {"de", "uk"} <= {*canary.languages} & {*qwen.languages, "uk"}
    assert load(directories, "canary", language="fr").language == "fr"
    with pytest.raises(StartupError, match=r"language: expected of CanaryForConditionalGeneration one of bg, .*got ja"):
        load(directories, "canary", language="ja")
    with pytest.raises(StartupError, match="generation: num_beams cannot be set, as this model decodes greedily"):
        load(directories, "canary", generation={"num_beams": 2})


def test_qwen_tells_the_language_that_it_heard(directories):
    model = load(directories, "qwen3asr")
    for answer, text, language in [
        ("language German<asr_text>Guten Tag.", "Guten Tag.", "de"),
        ("language None<asr_text>", "", None),
        ("language Klingon<asr_text>nuqneH", "nuqneH", None),
    ]:
        tokens = model.tokenizer(answer).input_ids
        assert model.text(chunks()[0], tokens) == (text, language)


def test_a_vocabulary_is_part_of_the_prompt_of_qwen_alone(directories):
    model = load(directories, "qwen3asr")
    prompt = model.tokenizer.decode(model.inputs(chunks(hotwords="Foo\nBär", initial_prompt="Hi.")[0])["input_ids"][0])
    assert "system\nFoo, Bär Hi.<" in prompt
    model.check_previous_text("a" * 1000)
    for text, reason in [("a" * 1001, "at most 1000 tokens together"), ("<|audio_pad|>", "expected no special tokens")]:
        with pytest.raises(PromptError, match=reason):
            model.check_previous_text(text)
    with pytest.raises(PromptError, match="as CanaryForConditionalGeneration reads no text; use a Whisper or Qwen3"):
        load(directories, "canary").check_previous_text("Zürich")
