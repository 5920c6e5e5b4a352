"""A Parakeet with a token-and-duration transducer, tiny and with random weights: its words mean nothing."""

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, ParakeetForTDT

from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions, Word
from reelscribe.errors import PromptError, StartupError
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import save_parakeet_tdt
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.tdt_model import TdtModel

CPU = torch.device("cpu")
RATE = 16_000
NOISES = [noise(seconds, seed) for seed, seconds in enumerate([1, 2.1, 0.5, 5, 0.003, 1])]
CHUNKS = [Chunk(samples, TranscriptionOptions(word_times=True)) for samples in NOISES]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> str:
    return save_parakeet_tdt(tmp_path_factory.mktemp("parakeet"))


def load(directory: str, **settings) -> TdtModel:
    # What random weights generate is never probable.
    return TdtModel(SpeechSettings(directory, **{"logprob_threshold": None, **settings}), CPU)


def words(transcript: ChunkTranscript) -> list[Word]:
    return [word for segment in transcript.segments for word in segment.words]


def generated(directory: str, samples: np.ndarray) -> tuple[str, list[dict]]:
    """Text and times of tokens by `generate` of transformers and its processor, without a limit of its own."""
    processor, model = AutoProcessor.from_pretrained(directory), ParakeetForTDT.from_pretrained(directory).eval()
    inputs = processor(samples, sampling_rate=RATE, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=100, return_dict_in_generate=True)
    text, times = processor.decode(output.sequences, durations=output.durations, skip_special_tokens=True)
    return text[0], times[0]


def test_text_and_times_are_those_of_transformers(directory):
    # Longer noise makes this model stay at a frame, which transformers' loop would not leave.
    for samples, got in zip(NOISES[:3], load(directory).transcribe(CHUNKS[:3]), strict=True):
        text, tokens = generated(directory, samples)
        assert got.text == " ".join(text.split())
        assert words(got)[0].start == pytest.approx(tokens[0]["start"])


def test_a_transcript_does_not_depend_on_the_other_chunks_of_a_batch(directory):
    model = load(directory)
    together = model.transcribe(CHUNKS)
    assert_alike(together, [model.transcribe([chunk])[0] for chunk in CHUNKS])
    assert len({transcript.text for transcript in together}) > 3


def test_words_follow_each_other_within_their_chunk(directory):
    for samples, transcript in zip(NOISES, load(directory).transcribe(CHUNKS), strict=True):
        assert " ".join(word.text for word in words(transcript)) == transcript.text
        times = [time for word in words(transcript) for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(word.start < word.end for word in words(transcript))
        assert all(0 <= time <= round(len(samples) / RATE, 3) for time in times)


def test_a_model_that_does_not_go_on_is_moved_after_some_tokens(directory):
    model = load(directory)
    model.model.joint.head.bias.data[11] += 1000  # of the duration 0
    model.model.joint.head.bias.data[4] += 1000  # of the token "d"
    (transcript,) = model.transcribe(CHUNKS[:1])
    frames = -(-len(NOISES[0]) // 160 // 8)
    assert transcript.text == "d" * model.model.max_symbols_per_step * frames


def test_silence_of_a_single_sample_has_a_transcript(directory):
    (transcript,) = load(directory).transcribe([Chunk(np.zeros(1, np.float32), TranscriptionOptions())])
    assert (transcript.text, transcript.segments) == ("", ())


def test_it_takes_no_language_and_no_text(directory):
    model = load(directory)
    assert (model.languages, model.language, model.tasks) == ((), None, ("transcribe",))
    assert (model.word_times, model.prompt_tokens, model.beams, model.chunk_seconds) == (True, 0, 1, 30)
    with pytest.raises(PromptError, match="as ParakeetForTDT reads no text; use a Whisper or Qwen3-ASR"):
        model.check_previous_text("Zürich")
    with pytest.raises(StartupError, match="expected of ParakeetForTDT null, as it takes none, got en"):
        load(directory, language="en")


def test_segments_that_are_not_probable_are_dropped(directory):
    assert load(directory, logprob_threshold=0.0).transcribe(CHUNKS[:2]) == [ChunkTranscript("", None, ())] * 2
