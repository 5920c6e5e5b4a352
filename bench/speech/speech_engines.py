"""Do the engines of speech models give the same answers?

    scripts/bench speech_engines [--media FOLDER] [--json FILE]

Files are read and cut as the client does, and their chunks are transcribed with the settings of speech.yaml and with
times of words: by torch, and by CTranslate2 with the weights as they are and in int8. The languages are detected. The
table compares the others with torch: how many words are different (of the alignment with the fewest errors), how many
chunks have another language, and by how many seconds segments and words with the same text begin or end at another
time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import jiwer
import numpy as np
import torch

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech
from lib.report import Report, publish
from reelscribe.contract.speech import ChunkTranscript, TranscriptionOptions
from reelscribe.decode.audio import Audio
from reelscribe.run.tracks.transcripts import SpeechOptions
from servers.torchserve import SPEECH
from transcripts.whisper.ctranslate2_conversion import convert

MEDIA = Path(__file__).resolve().parents[2] / "demo" / "media"
OPTIONS = SpeechOptions(transcription=TranscriptionOptions(word_times=True))


def transcripts_of(local: LocalSpeech, path: Path) -> list[ChunkTranscript]:
    """The transcript of each chunk of a file that is not silent."""
    with Audio(OPTIONS.task(str(path), local.description)) as audio:
        samples = [chunk.samples for chunk in audio.chunks() if not chunk.silent]
    return list(local.transcribe_chunks(samples, OPTIONS))


def shifts(one: Sequence[ChunkTranscript], other: Sequence[ChunkTranscript], *, words: bool) -> list[float]:
    """By how many seconds segments or words with the same text begin and end at other times, each of them twice."""
    found = []
    for pair in zip(one, other, strict=True):
        segments = [transcript.segments for transcript in pair]
        items = [[word for segment in part for word in segment.words or ()] if words else part for part in segments]
        for ours, theirs in zip(*items, strict=False):
            if ours.text == theirs.text:
                found += [abs(ours.start - theirs.start), abs(ours.end - theirs.end)]
    return found


def compare(name: str, expected: Sequence[ChunkTranscript], got: Sequence[ChunkTranscript]) -> tuple[str, ...]:
    """A row of the table."""
    text, other = (" ".join(transcript.text for transcript in part) for part in (expected, got))
    outcome = jiwer.process_words(text, other)
    different = outcome.substitutions + outcome.deletions + outcome.insertions
    languages = sum(a.language != b.language for a, b in zip(expected, got, strict=True))
    return (
        name,
        str(len(got)),
        f"{different} of {len(text.split())}",
        str(languages),
        *(
            f"{np.mean(each):.3f}, {np.max(each):.3f}"
            for each in (shifts(expected, got, words=words) for words in (False, True))
        ),
    )


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--media", type=Path, default=MEDIA)
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = Report(
        "engines compared with torch",
        ("engine, file", "chunks", "words that differ", "languages", "segments, s: mean, most", "words, s: mean, most"),
    )
    with tempfile.TemporaryDirectory() as directory:
        engines = {"torch": LocalSpeech(SPEECH)}
        for dtype in ("auto", "int8"):
            convert(str(SPEECH), f"{directory}/{dtype}", dtype)
            engines[f"ctranslate2, {dtype}"] = LocalSpeech(
                SPEECH, engine="ctranslate2", converted=f"{directory}/{dtype}", dtype=dtype
            )
        for path in sorted(options.media.iterdir()):
            if path.suffix == ".jsonl":
                continue
            expected = transcripts_of(engines["torch"], path)
            for name, local in engines.items():
                if any(transcript.text for transcript in expected) and name != "torch":
                    report.add(*compare(f"{name}, {path.name}", expected, transcripts_of(local, path)))
    publish([report], options.json)


if __name__ == "__main__":
    run_command(main)
