"""The engine CTranslate2 with the demo's speech model: what the engine torch answers, it answers."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.audio import Audio, AudioTask
from reelscribe.errors import StartupError
from speech_handler import load_speech_model
from support.alike import assert_alike
from support.tiny_models import save_wav2vec2
from synthetic.phrases import SAMPLE_RATE, random_utterance
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.ctranslate2_conversion import convert
from transcripts.whisper.ctranslate2_engine import ENCODER_FILE
from transcripts.whisper.model import WhisperModel

CPU = torch.device("cpu")
CT2 = "ctranslate2"


@pytest.fixture(scope="module")
def converted(demo_speech, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("demo") / "model"
    convert(demo_speech, str(folder), "auto")
    return str(folder)


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    """Three phrases and a second of noise, which ask for words."""
    rng = random.Random(3)
    spoken = [random_utterance(rng, held_out=k % 2 == 0).samples.astype(np.float32) / 32768 for k in range(3)]
    noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).astype(np.float32)
    return [Chunk(samples, TranscriptionOptions(word_times=True)) for samples in (*spoken, noise)]


def load(weights: str, **settings) -> WhisperModel:
    return WhisperModel(SpeechSettings(weights, **settings), CPU)


@pytest.mark.parametrize("timestamps", [True, False])
def test_its_transcripts_are_those_of_torch_and_its_words_nearly(demo_speech, converted, chunks, timestamps):
    expected = load(demo_speech, timestamps=timestamps).transcribe(chunks)
    got = load(demo_speech, timestamps=timestamps, engine=CT2, converted=converted).transcribe(chunks)
    differences = []
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.text, ours.language, ours.temperature) == (theirs.text, theirs.language, theirs.temperature)
        assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=2e-3)
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=2e-3)
        for segment, other in zip(ours.segments, theirs.segments, strict=True):
            assert [word.text for word in segment.words] == [word.text for word in other.words]
            for word, same in zip(segment.words, other.words, strict=True):
                assert segment.start <= word.start < word.end <= segment.end
                differences.append((word.start - same.start, word.end - same.end))
    assert np.abs(differences).mean() < 0.02


@pytest.mark.parametrize("name", ["phrases.ogg", "spoken.mp4"])
def test_in_the_demo_media_texts_languages_and_segments_are_those_of_torch(demo_speech, converted, media, name):
    with Audio(AudioTask(str(media / name), SAMPLE_RATE, 10 * SAMPLE_RATE)) as audio:
        heard = [chunk.samples.astype(np.float32) / 32768 for chunk in audio.chunks() if not chunk.silent]
    expected, got = (
        load(demo_speech, **settings).transcribe([Chunk(samples, TranscriptionOptions()) for samples in heard])
        for settings in ({}, {"engine": CT2, "converted": converted})
    )
    assert any(theirs.text for theirs in expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.text, ours.language) == (theirs.text, theirs.language)
        assert [(s.start, s.end) for s in ours.segments] == [(s.start, s.end) for s in theirs.segments]


def test_a_sample_is_the_same_in_every_batch_and_another_one_for_other_audio(demo_speech, converted, chunks):
    settings = {"engine": CT2, "converted": converted, "temperatures": (2.0,), "no_speech_threshold": None}
    few = [chunks[0], Chunk(chunks[0].samples * 0.9, chunks[0].options), chunks[-1]]
    model = load(demo_speech, **settings)
    together = model.transcribe(few)
    for again in (model.transcribe(few[::-1])[::-1], load(demo_speech, **settings).transcribe(few)):
        assert_alike(again, together)
    assert len({transcript.text for transcript in together}) == 3


@pytest.mark.parametrize("timestamps", [True, False])
def test_each_window_has_its_own_limit_of_tokens_whatever_the_others_of_its_batch(
    demo_speech, converted, chunks, timestamps
):
    short = Chunk(chunks[0].samples[:16000], chunks[0].options)
    settings = {"tokens_per_second": 1.0, "timestamps": timestamps}
    model = load(demo_speech, engine=CT2, converted=converted, **settings)
    alone = [*model.transcribe([short]), *model.transcribe(chunks[:1])]
    assert_alike(model.transcribe([short, chunks[0]]), alone)
    exact = load(demo_speech, **settings).transcribe([short, chunks[0]])
    assert [t.text for t in alone] == [t.text for t in exact]
    assert [t.avg_logprob for t in alone] == pytest.approx([t.avg_logprob for t in exact], abs=2e-4)


def test_int8_is_a_dtype_of_its_own_with_the_encoder_in_the_same_file(demo_speech, converted, chunks, tmp_path):
    convert(demo_speech, str(tmp_path / "int8"), "int8")
    exact = load(demo_speech, engine=CT2, converted=converted)
    rounded = load(demo_speech, engine=CT2, converted=str(tmp_path / "int8"), dtype="int8")
    assert (exact.dtype, rounded.dtype) == ("float32", "int8_float32")
    assert rounded.transcribe(chunks[:1])[0].text == exact.transcribe(chunks[:1])[0].text
    files = [{path.name for path in folder.iterdir()} for folder in (Path(converted), tmp_path / "int8")]
    assert files[0] - files[1] == {ENCODER_FILE}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float64"}, "expected auto or one of .*float32.*, got 'float64'"),
        ({"generation": {"no_repeat_ngram_size": 3}}, "has max_new_tokens alone, got no_repeat_ngram_size"),
        ({"stages": 2}, "expected converted weights in `converted` and one stage, got .* and 2"),
        ({"converted": None}, "expected converted weights in `converted` and one stage, got None"),
        ({"engine": "onnx"}, "expected torch or ctranslate2 for this handler, got 'onnx'"),
    ],
)
def test_what_it_cannot_do_is_refused_when_the_model_loads(demo_speech, converted, settings, reason):
    with pytest.raises(StartupError, match=reason):
        load(demo_speech, **{"engine": CT2, "converted": converted, **settings})


def test_other_architectures_are_refused(tmp_path, converted):
    settings = SpeechSettings(save_wav2vec2(tmp_path, masked=True), engine=CT2, converted=converted)
    with pytest.raises(StartupError, match="expected WhisperForConditionalGeneration where handler, engine is"):
        load_speech_model(settings, CPU, None)


def test_a_server_without_the_package_says_so(demo_speech, converted, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "transcripts.whisper.ctranslate2_engine", raising=False)
    with pytest.raises(StartupError, match=r"expected the package ctranslate2, got none; .* install .*\[ctranslate2\]"):
        load(demo_speech, engine=CT2, converted=converted)
