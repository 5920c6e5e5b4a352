"""Measures the word error rate of the demo speech model.

    PYTHONPATH=demo .venv/bin/python -m training.speech.evaluate

All speech is synthesised with a seed that training does not use, most of it in held-out voices.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from synthetic.phrases import SAMPLE_RATE, Recording, Utterance, random_utterance, recording
from training.speech.model import ENCODER_RATE, WINDOW_SECONDS

SEED = 20_261_121
BATCH = 16
MAX_NEW_TOKENS = 96
NOISE = 0.01
"""Standard deviation of white noise, for samples from -1 to 1."""
RECORDINGS, RECORDING_SECONDS = 10, 60

Chunk = NDArray[np.float32]
"""Mono samples, (N,), at 16 kHz, from -1 to 1; at most WINDOW_SECONDS long."""


@dataclass(frozen=True)
class TranscriptResult:
    """The model's output for a chunk."""

    text: str
    segment_starts: list[float]
    """In seconds; empty without timestamps."""


class Transcriber:
    """Runs the model with transformers' own processor and `generate`."""

    def __init__(self, model: str) -> None:
        self.processor = AutoProcessor.from_pretrained(model)
        self.model = AutoModelForSpeechSeq2Seq.from_pretrained(model).eval()
        self.first_timestamp, self.no_speech = self.processor.tokenizer.convert_tokens_to_ids(
            ["<|0.00|>", "<|nospeech|>"]
        )

    def transcribe(self, chunks: list[Chunk]) -> list[str]:
        """Return the text of each chunk, generated without timestamps."""
        return [result.text for result in self.generate(chunks, timestamps=False)]

    def generate(self, chunks: list[Chunk], timestamps: bool = True) -> list[TranscriptResult]:
        """Return the text of each chunk, and with `timestamps` the starts of its segments."""
        results = []
        for at in range(0, len(chunks), BATCH):
            rows = self.model.generate(
                self._features(chunks[at : at + BATCH])["input_features"],
                language="en",
                task="transcribe",
                max_new_tokens=MAX_NEW_TOKENS,
                return_timestamps=timestamps,
            )
            results += [self._decode(row) for row in rows.tolist()]
        return results

    def _features(self, chunks: list[Chunk]) -> Any:
        return self.processor(audio=chunks, sampling_rate=SAMPLE_RATE, return_tensors="pt", return_attention_mask=True)

    def _decode(self, row: list[int]) -> TranscriptResult:
        times = [(token - self.first_timestamp) / ENCODER_RATE for token in row if token >= self.first_timestamp]
        text = self.processor.tokenizer.decode(row, skip_special_tokens=True)
        return TranscriptResult(" ".join(text.split()), times[::2])

    def no_speech_probability(self, chunk: Chunk) -> float:
        """Return the probability of <|nospeech|> in the place of the language token."""
        start = torch.tensor([[self.model.generation_config.decoder_start_token_id]])
        features = self._features([chunk])["input_features"]
        logits = self.model(input_features=features, decoder_input_ids=start).logits[0, 0]
        return float(logits.softmax(-1)[self.no_speech])


def word_error_rate(name: str, expected: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
    """Print the word error rate and the number of exact texts.

    Args:
        name: What was transcribed, as it is printed.
        expected: The words of each chunk or recording.
        texts: The transcript of each.

    Returns:
        The word error rate with its 95 % confidence interval, as it is printed.
    """
    errors, words = [], []
    for truth, text in zip(expected, texts, strict=True):
        outcome = jiwer.process_words(" ".join(truth), text)
        errors.append(outcome.substitutions + outcome.deletions + outcome.insertions)
        words.append(len(truth))
    resampled = np.random.default_rng(0).integers(len(words), size=(2000, len(words)))
    low, high = np.percentile(np.array(errors)[resampled].sum(1) / np.array(words)[resampled].sum(1), [2.5, 97.5])
    rate = f"{100 * sum(errors) / sum(words):.1f} % (95 % between {100 * low:.1f} and {100 * high:.1f} %)"
    print(f"{name:34} {rate}, {sum(e == 0 for e in errors)} of {len(errors)} exact", flush=True)
    return rate


def as_chunk(samples: NDArray[np.int16]) -> Chunk:
    """Convert int16 samples to what the model's processor expects."""
    return samples.astype(np.float32) / np.float32(32768)


def fixed_chunks(spoken: Recording) -> list[Chunk]:
    """Cut a recording into chunks of a whole window each, also where that is within a word."""
    window = WINDOW_SECONDS * SAMPLE_RATE
    return [as_chunk(spoken.samples[at : at + window]) for at in range(0, len(spoken.samples), window)]


def check_running_speech(transcriber: Transcriber, rng: random.Random) -> None:
    """Measure long recordings that are cut into chunks which begin and end within words."""
    recordings = [recording(rng, RECORDING_SECONDS, held_out=True) for _ in range(RECORDINGS)]
    expected = [[word for *_, words in spoken.phrases for word in words] for spoken in recordings]
    texts = [" ".join(transcriber.transcribe(fixed_chunks(spoken))) for spoken in recordings]
    word_error_rate("running speech, cut every 10 s", expected, texts)
    texts = [" ".join(result.text for result in transcriber.generate(fixed_chunks(spoken))) for spoken in recordings]
    word_error_rate("the same with timestamps", expected, texts)


def check_segments(transcriber: Transcriber, rng: random.Random, count: int) -> None:
    """Measure how far segments begin from the phrases of short recordings."""
    recordings: list[Recording] = []
    while len(recordings) < count:
        spoken = recording(rng, 5, held_out=True)
        if len(spoken.samples) <= WINDOW_SECONDS * SAMPLE_RATE:
            recordings.append(spoken)
    results = transcriber.generate([as_chunk(spoken.samples) for spoken in recordings])
    expected = [[word for *_, words in spoken.phrases for word in words] for spoken in recordings]
    word_error_rate("several phrases, with timestamps", expected, [result.text for result in results])
    errors, within_phrases, segments = [], 0, 0
    for spoken, result in zip(recordings, results, strict=True):
        truth, found = np.array([first for first, *_ in spoken.phrases]) / SAMPLE_RATE, np.array(result.segment_starts)
        distances = np.abs(truth[:, None] - found[None, :])
        errors += distances.min(axis=1, initial=WINDOW_SECONDS).tolist()
        within_phrases += int((distances.min(axis=0, initial=WINDOW_SECONDS) > 0.3).sum())
        segments += len(found)
    close, near = (np.mean(np.array(errors) <= limit) for limit in (0.1, 0.3))
    print(
        f"segment starts: {close:.1%} of {len(errors)} phrases within 0.1 s, {near:.1%} within 0.3 s, median"
        f" {np.median(errors):.3f} s; {within_phrases} of {segments} segments begin within a phrase",
        flush=True,
    )


def check_no_speech(transcriber: Transcriber, utterances: list[Utterance]) -> None:
    """Print the probability of <|nospeech|> for audio without and with speech."""
    noise, time = np.random.default_rng(SEED), np.arange(5 * SAMPLE_RATE) / SAMPLE_RATE
    silent = {
        "silence": 0 * time,
        "faint noise": noise.normal(0, 0.001, len(time)),
        "loud noise": noise.normal(0, 0.1, len(time)),
        "a hum": 0.1 * np.sin(2 * np.pi * 50 * time) + 0.05 * np.sin(2 * np.pi * 150 * time),
        "a tone": 0.3 * np.sin(2 * np.pi * 440 * time),
    }
    for name, samples in silent.items():
        chunk = samples.astype(np.float32)
        probability, text = transcriber.no_speech_probability(chunk), transcriber.transcribe([chunk])[0]
        print(f"{name:12} no speech {probability:.3f}, text {text!r}")
    spoken = [transcriber.no_speech_probability(as_chunk(utterance.samples)) for utterance in utterances]
    print(f"speech       no speech at most {max(spoken):.3f}, in {len(spoken)} utterances", flush=True)


@torch.inference_mode()
def main() -> None:
    """Parse the command line and print all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(Path(__file__).parents[2] / "models" / "speech"))
    parser.add_argument("--utterances", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # `generate` of transformers' Whisper warns about arguments that it passes to itself.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    transcriber, rng = Transcriber(options.model), random.Random(SEED)
    held_out = [random_utterance(rng, held_out=True) for _ in range(options.utterances)]
    trained = [random_utterance(rng) for _ in range(options.utterances)]
    chunks, words = [as_chunk(u.samples) for u in held_out], [u.words for u in held_out]
    noise = np.random.default_rng(SEED)
    noisy = [chunk + noise.normal(0, NOISE, len(chunk)).astype(np.float32) for chunk in chunks]
    rate = word_error_rate("held-out voices", words, transcriber.transcribe(chunks))
    word_error_rate("held-out voices, with timestamps", words, [result.text for result in transcriber.generate(chunks)])
    word_error_rate("held-out voices in white noise", words, transcriber.transcribe(noisy))
    trained_texts = transcriber.transcribe([as_chunk(u.samples) for u in trained])
    word_error_rate("voices of the training", [u.words for u in trained], trained_texts)
    check_running_speech(transcriber, rng)
    check_segments(transcriber, rng, options.utterances // 3)
    check_no_speech(transcriber, held_out[:100])
    print(f"word error rate: {rate} of {options.utterances} held-out utterances")


if __name__ == "__main__":
    main()
