"""How many words the demo transcriber gets wrong: ``python demo/evaluate_speech.py``.

Everything is spoken afresh, with a seed that training does not use, and most of it by voices that training never heard.
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

from phrases import SAMPLE_RATE, Recording, Utterance, random_utterance, recording
from speech_model import ENCODER_RATE, WINDOW_SECONDS

SEED = 20_261_121
BATCH = 16
MAX_NEW_TOKENS = 96
NOISE = 0.01  # standard deviation, of samples from -1 to 1
RECORDINGS, RECORDING_SECONDS = 10, 60

Chunk = NDArray[np.float32]
"""(N,), mono, 16 kHz, -1 to 1, at most WINDOW_SECONDS."""


@dataclass(frozen=True)
class TranscriptResult:
    """What the model made of a chunk."""

    text: str
    segment_starts: list[float]
    """Seconds; only if timestamps were asked for."""


class Transcriber:
    """The model as transformers runs it."""

    def __init__(self, model: str) -> None:
        self.processor = AutoProcessor.from_pretrained(model)
        self.model = AutoModelForSpeechSeq2Seq.from_pretrained(model).eval()
        self.first_timestamp, self.no_speech = self.processor.tokenizer.convert_tokens_to_ids(
            ["<|0.00|>", "<|nospeech|>"]
        )

    def transcribe(self, chunks: list[Chunk]) -> list[str]:
        """The text of each."""
        return [heard.text for heard in self.listen(chunks, timestamps=False)]

    def listen(self, chunks: list[Chunk], timestamps: bool = True) -> list[TranscriptResult]:
        """Text and segments of each."""
        heard = []
        for at in range(0, len(chunks), BATCH):
            rows = self.model.generate(
                self._features(chunks[at : at + BATCH])["input_features"],
                language="en",
                task="transcribe",
                max_new_tokens=MAX_NEW_TOKENS,
                return_timestamps=timestamps,
            )
            heard += [self._read(row) for row in rows.tolist()]
        return heard

    def _features(self, chunks: list[Chunk]) -> Any:
        return self.processor(audio=chunks, sampling_rate=SAMPLE_RATE, return_tensors="pt", return_attention_mask=True)

    def _read(self, row: list[int]) -> TranscriptResult:
        stamps = [(number - self.first_timestamp) / ENCODER_RATE for number in row if number >= self.first_timestamp]
        text = self.processor.tokenizer.decode(row, skip_special_tokens=True)
        return TranscriptResult(" ".join(text.split()), stamps[::2])

    def no_speech_probability(self, chunk: Chunk) -> float:
        """Of <|nospeech|> where the language would be named."""
        start = torch.tensor([[self.model.generation_config.decoder_start_token_id]])
        features = self._features([chunk])["input_features"]
        logits = self.model(input_features=features, decoder_input_ids=start).logits[0, 0]
        return float(logits.softmax(-1)[self.no_speech])


def word_error_rate(name: str, wanted: Sequence[Sequence[str]], heard: Sequence[str]) -> str:
    """Print it with its interval and the share of texts that are exact; returns the rate as it is printed."""
    errors, words = [], []
    for truth, text in zip(wanted, heard, strict=True):
        outcome = jiwer.process_words(" ".join(truth), text)
        errors.append(outcome.substitutions + outcome.deletions + outcome.insertions)
        words.append(len(truth))
    picks = np.random.default_rng(0).integers(len(words), size=(2000, len(words)))
    low, high = np.percentile(np.array(errors)[picks].sum(1) / np.array(words)[picks].sum(1), [2.5, 97.5])
    rate = f"{100 * sum(errors) / sum(words):.1f} % (95 % between {100 * low:.1f} and {100 * high:.1f} %)"
    print(f"{name:34} {rate}, {sum(e == 0 for e in errors)} of {len(errors)} exact", flush=True)
    return rate


def as_chunk(samples: NDArray[np.int16]) -> Chunk:
    """As the model's processor takes them."""
    return samples.astype(np.float32) / np.float32(32768)


def fixed_cuts(spoken: Recording) -> list[Chunk]:
    """Pieces of a whole window each, wherever that cuts."""
    window = WINDOW_SECONDS * SAMPLE_RATE
    return [as_chunk(spoken.samples[at : at + window]) for at in range(0, len(spoken.samples), window)]


def check_running_speech(transcriber: Transcriber, rng: random.Random) -> None:
    """Long recordings in pieces that begin and end within words."""
    recordings = [recording(rng, RECORDING_SECONDS, held_out=True) for _ in range(RECORDINGS)]
    wanted = [[word for *_, words in spoken.phrases for word in words] for spoken in recordings]
    heard = [" ".join(transcriber.transcribe(fixed_cuts(spoken))) for spoken in recordings]
    word_error_rate("running speech, cut every 10 s", wanted, heard)
    heard = [" ".join(h.text for h in transcriber.listen(fixed_cuts(spoken))) for spoken in recordings]
    word_error_rate("the same with timestamps", wanted, heard)


def check_segments(transcriber: Transcriber, rng: random.Random, count: int) -> None:
    """Whether every phrase of a short recording begins a segment, and when."""
    recordings: list[Recording] = []
    while len(recordings) < count:
        spoken = recording(rng, 5, held_out=True)
        if len(spoken.samples) <= WINDOW_SECONDS * SAMPLE_RATE:
            recordings.append(spoken)
    heard = transcriber.listen([as_chunk(spoken.samples) for spoken in recordings])
    wanted = [[word for *_, words in spoken.phrases for word in words] for spoken in recordings]
    word_error_rate("several phrases, with timestamps", wanted, [h.text for h in heard])
    late, stray, segments = [], 0, 0
    for spoken, h in zip(recordings, heard, strict=True):
        truth, found = np.array([first for first, *_ in spoken.phrases]) / SAMPLE_RATE, np.array(h.segment_starts)
        distance = np.abs(truth[:, None] - found[None, :])
        late += distance.min(axis=1, initial=WINDOW_SECONDS).tolist()
        stray += int((distance.min(axis=0, initial=WINDOW_SECONDS) > 0.3).sum())
        segments += len(found)
    near, far = (np.mean(np.array(late) <= limit) for limit in (0.1, 0.3))
    print(
        f"segment starts: {near:.1%} of {len(late)} phrases within 0.1 s, {far:.1%} within 0.3 s, median"
        f" {np.median(late):.3f} s; {stray} of {segments} segments begin within a phrase",
        flush=True,
    )


def check_no_speech(transcriber: Transcriber, utterances: list[Utterance]) -> None:
    """What <|nospeech|> says of sounds without and with speech."""
    noise, time = np.random.default_rng(SEED), np.arange(5 * SAMPLE_RATE) / SAMPLE_RATE
    silent = {
        "silence": 0 * time,
        "faint noise": noise.normal(0, 0.001, len(time)),
        "loud noise": noise.normal(0, 0.1, len(time)),
        "a hum": 0.1 * np.sin(2 * np.pi * 50 * time) + 0.05 * np.sin(2 * np.pi * 150 * time),
        "a tone": 0.3 * np.sin(2 * np.pi * 440 * time),
    }
    for name, sound in silent.items():
        chunk = sound.astype(np.float32)
        probability, text = transcriber.no_speech_probability(chunk), transcriber.transcribe([chunk])[0]
        print(f"{name:12} no speech {probability:.3f}, text {text!r}")
    spoken = [transcriber.no_speech_probability(as_chunk(utterance.samples)) for utterance in utterances]
    print(f"speech       no speech at most {max(spoken):.3f}, in {len(spoken)} utterances", flush=True)


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(Path(__file__).parent / "models" / "speech"))
    parser.add_argument("--utterances", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # transformers' generate of Whisper warns of arguments that it gives to itself.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    transcriber, rng = Transcriber(options.model), random.Random(SEED)
    held_out = [random_utterance(rng, held_out=True) for _ in range(options.utterances)]
    seen = [random_utterance(rng) for _ in range(options.utterances)]
    chunks, words = [as_chunk(u.samples) for u in held_out], [u.words for u in held_out]
    noise = np.random.default_rng(SEED)
    noisy = [chunk + noise.normal(0, NOISE, len(chunk)).astype(np.float32) for chunk in chunks]
    rate = word_error_rate("held-out voices", words, transcriber.transcribe(chunks))
    word_error_rate("held-out voices, with timestamps", words, [h.text for h in transcriber.listen(chunks)])
    word_error_rate("held-out voices in white noise", words, transcriber.transcribe(noisy))
    seen_texts = transcriber.transcribe([as_chunk(u.samples) for u in seen])
    word_error_rate("voices of the training", [u.words for u in seen], seen_texts)
    check_running_speech(transcriber, rng)
    check_segments(transcriber, rng, options.utterances // 3)
    check_no_speech(transcriber, held_out[:100])
    print(f"word error rate: {rate} of {options.utterances} held-out utterances")


if __name__ == "__main__":
    main()
