"""When are words spoken: by Whisper's attention, and by forced alignment with a CTC model, against the truth?

    scripts/bench aligned_words [--recordings 20] [--model FOLDER] [--json FILE]

Random phrases by voices that no training used are cut as the client does, and transcribed by the demo speech model with
the times of words. A small CTC model, trained first if no --model names its folder (lib/small_ctc.py), then aligns the
words with the same chunks, as a run with --align-model does. The truth is from where to where espeak-ng makes a word
audible. Words that are recognised rightly are compared.

The table has the number of these words, and how far their starts and ends are from the truth, in seconds: the median of
the signed differences, and the 50th, 95th and 99th percentile and the largest of the absolute ones. The last column has
the CPU seconds of a way for a second of audio: of the whole transcription, and of the alignment alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import jiwer
import numpy as np
import torch

from lib import small_ctc
from lib.command import command_parser, run_command
from lib.local_speech import LocalSpeech
from lib.recordings import Recording, long_recordings
from lib.report import Report, publish_measured
from reelscribe.contract.speech import ChunkTranscript, SampleArray, TranscriptionOptions
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptMedium
from servers.torchserve import SPEECH

SEED, SECONDS = 20_261_129, 60
CHUNKS_PER_REQUEST = 8


def chunks_of(recording: Recording, whisper: LocalSpeech) -> list[SampleArray]:
    """Cut a recording as the client does."""
    chunker = SpeechOptions().task("", whisper.description).chunker()  # no file: it only makes the chunker
    return [*chunker.push(recording.samples), *chunker.flush()]


def aligned(
    medium: TranscriptMedium, ctc: LocalSpeech, chunks: Sequence[SampleArray], transcripts: Sequence[ChunkTranscript]
) -> list[ChunkTranscript]:
    """Return transcripts with aligned words, as a run makes them."""
    (follow_up,) = medium.follow_ups(chunks, transcripts)
    assert follow_up.of_second_model, "aligning is what another model does"
    pack = follow_up.of_second_model().pack
    asked = list(follow_up.asked.items())
    merged = list(transcripts)
    for at in range(0, len(asked), CHUNKS_PER_REQUEST):
        numbers, items = zip(*asked[at : at + CHUNKS_PER_REQUEST], strict=True)
        for k, answer in zip(numbers, ctc.answer(pack(items)), strict=True):
            merged[k] = follow_up.merge(transcripts[k], answer)
    return merged


def differences(
    recording: Recording, chunks: Sequence[SampleArray], transcripts: Sequence[ChunkTranscript], sample_rate: int
) -> list[tuple[float, float]]:
    """Return how much later than the truth each right word of a recording starts and ends, in seconds."""
    starts = np.cumsum([0, *map(len, chunks)]) / sample_rate
    timed = [
        (word.text, word.start + start, word.end + start)
        for start, transcript in zip(starts, transcripts, strict=False)
        for segment in transcript.segments
        for word in segment.words or ()
    ]
    outcome = jiwer.process_words(" ".join(recording.words), " ".join(text for text, *_ in timed))
    return [
        (start - true_start, end - true_end)
        for chunk in outcome.alignments[0]
        if chunk.type == "equal"
        for (true_start, true_end), (_, start, end) in zip(
            recording.word_spans[chunk.ref_start_idx : chunk.ref_end_idx],
            timed[chunk.hyp_start_idx : chunk.hyp_end_idx],
            strict=True,
        )
    ]


def measure(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Transcribe, align and compare."""
    torch.set_num_threads(1)
    whisper = LocalSpeech(SPEECH)
    ctc = LocalSpeech(options.model or small_ctc.train(folder / "ctc"))
    asked = SpeechOptions(transcription=TranscriptionOptions(word_times=True), align_model="ctc")
    medium, rate = TranscriptMedium(asked, whisper.description, ctc.description), whisper.description.sample_rate
    off: dict[str, list[tuple[float, float]]] = {"Whisper's attention": [], "CTC alignment": []}
    seconds = dict.fromkeys(off, 0.0)
    recordings = long_recordings(SEED, [SECONDS] * options.recordings)
    for recording in recordings:
        chunks = chunks_of(recording, whisper)
        began = time.process_time()
        transcripts = list(whisper.transcribe_chunks(chunks, asked))
        heard = time.process_time()
        ways = transcripts, aligned(medium, ctc, chunks, transcripts)
        spent = heard - began, time.process_time() - heard
        for name, way, cpu in zip(off, ways, spent, strict=True):
            off[name] += differences(recording, chunks, way, rate)
            seconds[name] += cpu
    total = sum(recording.seconds for recording in recordings)
    columns = [f"{side} {figure}" for side in ("start", "end") for figure in ("signed", "50 %", "95 %", "99 %", "max")]
    report = Report(f"Words in {total:.0f} s of speech, in s", ("way", "words", *columns, "CPU s/s"))
    for name, pairs in off.items():
        sides = np.array(pairs).T
        values = [v for side in sides for v in (np.median(side), *np.percentile(np.abs(side), (50, 95, 99, 100)))]
        report.add(name, len(pairs), *(f"{value:.3f}" for value in values), f"{seconds[name] / total:.4f}")
    return [report]


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--model", type=Path, help="folder of a CTC model that lib/small_ctc.py has trained")
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
