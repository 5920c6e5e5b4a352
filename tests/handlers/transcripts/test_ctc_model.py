"""CTC models of several families, tiny and with random weights: the text they generate does not matter here."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCTC, AutoProcessor

from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import PromptError, StartupError
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import save_parakeet, save_wav2vec2
from transcripts.ctc_model import CtcModel
from transcripts.speech_model import Chunk, SpeechSettings

CPU = torch.device("cpu")
RATE = 16_000


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, str]:
    return {
        "wav2vec2": save_wav2vec2(tmp_path_factory.mktemp("masked"), masked=True),
        "wav2vec2 without masks": save_wav2vec2(tmp_path_factory.mktemp("unmasked"), masked=False),
        "parakeet": save_parakeet(tmp_path_factory.mktemp("parakeet")),
    }


FAMILIES = ["wav2vec2", "wav2vec2 without masks", "parakeet"]


def load(directory: str, **settings) -> CtcModel:
    # What random weights generate is never probable.
    return CtcModel(SpeechSettings(directory, **{"logprob_threshold": None, **settings}), CPU)


NOISES = [noise(seconds, seed) for seed, seconds in enumerate([1, 2.1, 0.5, 5, 0.003, 1])]


def chunks(recordings: list[np.ndarray], **options) -> list[Chunk]:
    return [Chunk(recording, TranscriptionOptions(**options)) for recording in recordings]


def test_a_model_whose_weights_are_missing_in_part_is_refused(directories, tmp_path):
    """Random weights in their place would say anything, and nobody would know."""
    folder = Path(shutil.copytree(directories["parakeet"], tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: each for name, each in weights.items() if not name.startswith("ctc_head")}, folder / "model.safetensors"
    )
    with pytest.raises(
        StartupError, match=r"all weights of a ParakeetForCTC, got none for 2 of .* such as ctc_head\.bias"
    ):
        load(str(folder))


def test_a_wav2vec2_needs_no_weights_that_only_its_training_uses(directories, tmp_path):
    folder = Path(shutil.copytree(directories["wav2vec2"], tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    del weights["wav2vec2.masked_spec_embed"]
    save_file(weights, folder / "model.safetensors")
    whole, less = (load(path).transcribe(chunks(NOISES[:1])) for path in (directories["wav2vec2"], str(folder)))
    assert_alike(less, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_what_transformers_makes_of_each_chunk_alone(directories, family):
    got = load(directories[family]).transcribe(chunks(NOISES[:4]))
    processor = AutoProcessor.from_pretrained(directories[family])
    model = AutoModelForCTC.from_pretrained(directories[family]).eval()
    for recording, transcript in zip(NOISES, got, strict=False):
        inputs = processor.feature_extractor(recording, sampling_rate=RATE, return_tensors="pt")
        with torch.inference_mode():
            best = model(**inputs).logits.argmax(-1)
        text = re.sub("<unk>|<s>|</s>", "", processor.batch_decode(best)[0])
        assert transcript.text == " ".join(text.split())
    assert len({transcript.text for transcript in got}) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_transcript_does_not_depend_on_the_other_chunks_of_a_batch(directories, family):
    model = load(directories[family])
    together = model.transcribe(chunks(NOISES, word_times=True))
    assert_alike(together, [model.transcribe([chunk])[0] for chunk in chunks(NOISES, word_times=True)])


@pytest.mark.parametrize("family", FAMILIES)
def test_words_follow_each_other_within_their_chunk(directories, family):
    for recording, transcript in zip(
        NOISES, load(directories[family]).transcribe(chunks(NOISES, word_times=True)), strict=True
    ):
        words = [word for segment in transcript.segments for word in segment.words]
        assert " ".join(word.text for word in words) == transcript.text
        times = [time for word in words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(word.start < word.end for word in words)
        assert all(0 <= time <= round(len(recording) / RATE, 3) for time in times)


def test_a_long_pause_starts_a_segment(directories):
    (chunk,) = chunks(NOISES[3:4], word_times=True)
    (whole,) = load(directories["wav2vec2"], pause_seconds=100).transcribe([chunk])
    assert len(whole.segments) == 1
    pauses = [b.start - a.end for a, b in zip(whole.segments[0].words, whole.segments[0].words[1:], strict=False)]
    (split,) = load(directories["wav2vec2"], pause_seconds=min(pauses) / 2).transcribe([chunk])
    assert len(split.segments) == len(pauses) + 1
    assert split.text == whole.text


def test_scores_that_a_ctc_model_does_not_have_are_left_out(directories):
    model = load(directories["wav2vec2"])
    assert (model.languages, model.tasks, model.chunk_seconds) == ((), ("transcribe",), 30)
    (transcript,) = model.transcribe(chunks(NOISES[:1]))
    assert (transcript.language, transcript.no_speech_prob, transcript.temperature) == (None, None, None)
    assert transcript.segments[0].words is None


def test_a_vocabulary_is_refused(directories):
    model = load(directories["wav2vec2"])
    assert (model.prompt_tokens, model.beams) == (0, 1)
    with pytest.raises(PromptError, match="expected none, as Wav2Vec2ForCTC reads no text; use"):
        model.check_previous_text("Zürich")


def test_a_language_cannot_be_set(directories):
    with pytest.raises(StartupError, match="expected of Wav2Vec2ForCTC null, as it takes none, got en"):
        load(directories["wav2vec2"], language="en")


def test_segments_that_are_not_probable_are_dropped(directories):
    # These models know no pauses, so that each recording has one segment at most.
    recordings = chunks(NOISES[:4], word_times=True)
    every = load(directories["wav2vec2"], pause_seconds=99).transcribe(recordings)
    averages = sorted(transcript.avg_logprob for transcript in every if transcript.text)
    assert [segment.avg_logprob for t in every for segment in t.segments] == [t.avg_logprob for t in every if t.text]
    assert all(0 < word.probability < 1 for t in every for segment in t.segments for word in segment.words)
    threshold = sum(averages[-2:]) / 2
    kept = load(directories["wav2vec2"], pause_seconds=99, logprob_threshold=threshold).transcribe(recordings)
    assert [t.text for t in kept if t.text] == [t.text for t in every if t.avg_logprob == averages[-1]]
