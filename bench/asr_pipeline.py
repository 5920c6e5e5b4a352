"""Seconds of sound that a second of CPU transcribes: the speech handler against transformers' own pipeline.

    .venv/bin/python bench/asr_pipeline.py [--recordings 8] [--rounds 5] [--batch 8]

Both get the same recordings as samples in memory, and one thread. Ours is what the server does, from a request's body
to its transcripts, on chunks that are cut as the client cuts them, which counts too. Theirs is
`pipeline("automatic-speech-recognition", chunk_length_s=...)` with windows of the model's length, of which neighbours
overlap by a third; "no overlap" is without that. Every round runs all ways once. The table shows medians with smallest
and largest, the ratio of ours to theirs in the same round, and the word error rate. "as shipped" is ours as speech.yaml
has it: the language is detected, and doubtful chunks are heard again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jiwer
import numpy as np
import torch
import transformers

from listener import MODEL, Listener, Spoken, long_recordings
from reelscribe.chunking import SILENCE_DB, is_silent
from reelscribe.options import SpeechOptions

SEED = 20_261_124
RECORDING_SECONDS = (60, 180)
NEW_TOKENS = 150
"""As many as the handler allows a window of 10 s."""

Transcribe = Callable[[Sequence[Spoken]], list[str]]
"""The text of each recording."""


def ours(model: Path, **settings: Any) -> Transcribe:
    """The client's cutting and the handler."""
    listener, options = Listener(model, **settings), SpeechOptions()
    task = options.task(listener.description)

    def transcribe(recordings: Sequence[Spoken]) -> list[str]:
        texts = []
        for spoken in recordings:
            chunker = task.chunker()
            chunks = [*chunker.push(spoken.samples), *chunker.flush()]
            heard = [chunk for chunk in chunks if not is_silent(chunk, task.sample_rate, SILENCE_DB)]
            texts.append(" ".join(transcript.text for transcript in listener.hear(heard, options)))
        return texts

    return transcribe


def theirs(model: Path, batch: int, *, timestamps: bool, overlap: bool = True) -> Transcribe:
    """The pipeline of transformers."""
    # Any: which pipeline it is depends on its first argument.
    pipe: Any = transformers.pipeline("automatic-speech-recognition", model=str(model), device="cpu")
    rate = pipe.feature_extractor.sampling_rate
    options = {"language": "en", "task": "transcribe", "max_new_tokens": NEW_TOKENS}

    def transcribe(recordings: Sequence[Spoken]) -> list[str]:
        sounds = ({"raw": spoken.samples.astype(np.float32) / 32768, "sampling_rate": rate} for spoken in recordings)
        answers = pipe(
            sounds,
            chunk_length_s=pipe.feature_extractor.n_samples / rate,
            stride_length_s=None if overlap else 0,
            batch_size=batch,
            return_timestamps=timestamps,
            generate_kwargs=options,
            ignore_warning=True,
        )
        return [answer["text"] for answer in answers]

    return transcribe


def ways(model: Path, batch: int) -> dict[str, tuple[str, Transcribe]]:
    """By name: what it is compared with, and how it is done."""
    alike: dict[str, Any] = {"device_batch": batch, "language": "en", "temperatures": (0.0,)}
    plain, bare, timed = "theirs, text", "theirs, no overlap", "theirs, timestamps"
    return {
        plain: ("", theirs(model, batch, timestamps=False)),
        bare: ("", theirs(model, batch, timestamps=False, overlap=False)),
        "ours, text": (plain, ours(model, timestamps=False, **alike)),
        timed: ("", theirs(model, batch, timestamps=True)),
        "ours, timestamps": (timed, ours(model, timestamps=True, **alike)),
        "ours, as shipped": (timed, ours(model)),
    }


def spread(values: Sequence[float], digits: int) -> str:
    """Median, smallest and largest."""
    return f"{median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def measure(recordings: Sequence[Spoken], model: Path, batch: int, rounds: int) -> None:
    """Print the table."""
    seconds = sum(spoken.seconds for spoken in recordings)
    print(f"{len(recordings)} recordings, {seconds:.0f} s, batches of {batch}")
    compared = ways(model, batch)
    rates: dict[str, list[float]] = {name: [] for name in compared}
    texts: dict[str, list[str]] = {}
    for transcribe in (transcribe for _, transcribe in compared.values()):
        transcribe(recordings[:1])  # what starts lazily
    for _ in range(rounds):
        for name, (_, transcribe) in compared.items():
            start = time.process_time()
            texts[name] = transcribe(recordings)
            rates[name].append(seconds / (time.process_time() - start))
    wanted = [" ".join(spoken.words) for spoken in recordings]
    print(f"{'':20}{'sound / CPU second':>24}{'ours / theirs':>22}{'words wrong':>14}")
    for name, (other, _) in compared.items():
        ratios = [a / b for a, b in zip(rates[name], rates[other], strict=True)] if other else []
        wrong = jiwer.wer(wanted, texts[name])
        print(f"{name:20}{spread(rates[name], 0):>24}{spread(ratios, 2) if ratios else '':>22}{wrong:>14.2%}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--recordings", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # The pipeline warns of arguments that it gives to itself.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    lengths = np.linspace(*RECORDING_SECONDS, options.recordings)
    measure(long_recordings(SEED, lengths.tolist()), options.model, options.batch, options.rounds)


if __name__ == "__main__":
    main()
