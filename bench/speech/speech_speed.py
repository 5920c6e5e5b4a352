"""How fast is transcribing, and how many words are wrong: ours, transformers' pipeline and faster-whisper?

    scripts/bench speech_speed [--recordings 6] [--rounds 5] [--batch 8] [--ways WORD ...] [--real FOLDER] [--json FILE]

The model is the demo model, and its recordings have 1 to 3 minutes. With --real, it is openai/whisper-tiny.en, and the
recordings have 8 minutes of sentences that people say; FOLDER is one that scripts/real_data has prepared. All ways get
the same recordings and weights, the language, and one thread. The extra `bench` must be installed. In one process, from
samples in memory to text:

- ours: the work of client and server without the transport between them: audio is cut where it is quiet, packed, read
  from the body, and transcribed by the handler's model in batches. "as shipped" has the settings of speech.yaml: the
  language is detected, and doubtful chunks are decoded again. With the engine torch, unless it says "ctranslate2".
- pipeline: transformers' `pipeline("automatic-speech-recognition", chunk_length_s=...)` with windows of the model's
  length, of which neighbours overlap by a third; "no overlap" is without the overlap.
- faster-whisper: one window after the other; or batched, with fixed windows or with those of its detector of voice
  activity, its default. peers/faster_whisper_peer.py says what was changed so that the demo model works.

"whole path" is `reelscribe transcribe`: from FLAC files through decode processes, a real TorchServe with one worker for
each engine and the ledger to the records, with the settings of speech.yaml. Its CPU seconds are those of all these
processes, Java included. faster-whisper's "from files" decodes the same files with its own decoder, and writes nothing.

Every round runs all ways once, or with --ways those whose names have one of its words. RTFx is seconds of audio
transcribed in a second. "ours / this" compares the audio transcribed per CPU second in the same round: ours with
CTranslate2 of the same kind (text, timestamps or whole path), over this way. Figures are medians and, in brackets,
smallest and largest.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import faster_whisper
import jiwer
import numpy as np
import psutil
import transformers

from lib.command import add_json_option, command_parser, run_command
from lib.local_speech import LocalSpeech, compute_on_one_thread
from lib.real_recordings import sentences, words_of
from lib.recordings import Recording, long_recordings
from lib.report import Report, Spread, publish, take_turns
from peers.faster_whisper_peer import FasterWhisper, Windows
from reelscribe.archive import build as archive
from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.decode.audio import SILENCE_DB, is_silent
from reelscribe.run.driver import Run
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from servers.torchserve import CONFIG, HANDLERS, SPEECH, Serving, serve
from transcripts.speech_model import SpeechSettings
from transcripts.whisper.ctranslate2_conversion import convert

SEED = 20_261_124
RECORDING_SECONDS = (60, 180)
REAL_SECONDS = 480

Transcribe = Callable[[Sequence[Recording]], list[str]]
"""A function that returns the text of each recording."""


@dataclass
class Way:
    """A way to transcribe, and the figures of its runs."""

    transcribe: Transcribe
    compared_with: str
    """Name of the way of ours that the last columns compare it with."""
    server: Callable[[], Iterable[psutil.Process]] = list
    """Returns the processes that work for it besides this one and its children."""
    cpu_seconds: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def run(self, recordings: Sequence[Recording]) -> float:
        """Transcribe the recordings once, and return the seconds that it took."""
        cpu, began = self._cpu_seconds(), time.monotonic()
        self.texts = self.transcribe(recordings)
        seconds = time.monotonic() - began
        self.cpu_seconds.append(self._cpu_seconds() - cpu)
        return seconds

    def _cpu_seconds(self) -> float:
        own = psutil.Process().cpu_times()
        times = [process.cpu_times() for process in self.server()]
        total = sum(each.user + each.system for each in [own, *times]) + own.children_user + own.children_system
        return float(total)


def ours(checkpoint: Path, **settings: Any) -> Transcribe:
    """Cut as the client does, and transcribe with the handler's model."""
    local, options = LocalSpeech(checkpoint, **settings), SpeechOptions()
    task = options.task("", local.description)  # no file: it only makes chunkers

    def transcribe(recordings: Sequence[Recording]) -> list[str]:
        texts = []
        for recording in recordings:
            chunker = task.chunker()
            chunks = [*chunker.push(recording.samples), *chunker.flush()]
            audible = [chunk for chunk in chunks if not is_silent(chunk, task.sample_rate, SILENCE_DB)]
            texts.append(" ".join(transcript.text for transcript in local.transcribe_chunks(audible, options)))
        return texts

    return transcribe


def pipeline(checkpoint: Path, batch: int, *, timestamps: bool, overlap: bool = True) -> Transcribe:
    """Transcribe with the pipeline of transformers."""
    # Any: the type of the pipeline depends on its first argument.
    pipe: Any = transformers.pipeline("automatic-speech-recognition", model=str(checkpoint), device="cpu")
    rate = pipe.feature_extractor.sampling_rate
    # The handler's limit of tokens for a whole window.
    settings = SpeechSettings(str(checkpoint))
    tokens = settings.token_limit(pipe.feature_extractor.n_samples / rate)
    options: dict[str, Any] = {"max_new_tokens": tokens}
    if pipe.model.generation_config.is_multilingual:
        options |= {"language": "en", "task": "transcribe"}

    def transcribe(recordings: Sequence[Recording]) -> list[str]:
        inputs = ({"raw": each.samples.astype(np.float32) / 32768, "sampling_rate": rate} for each in recordings)
        answers = pipe(
            inputs,
            chunk_length_s=pipe.feature_extractor.n_samples / rate,
            stride_length_s=None if overlap else 0,
            batch_size=batch,
            return_timestamps=timestamps,
            generate_kwargs=options,
            ignore_warning=True,
        )
        return [answer["text"] for answer in answers]

    return transcribe


def faster(model: FasterWhisper, windows: Windows, batch: int, *, timestamps: bool) -> Transcribe:
    """Transcribe with faster-whisper."""

    def transcribe(recordings: Sequence[Recording]) -> list[str]:
        return [model.transcribe(each.samples, windows, batch, timestamps=timestamps) for each in recordings]

    return transcribe


def written(recordings: Sequence[Recording], folder: Path) -> list[Path]:
    """The recordings as FLAC files in `folder`."""
    paths = [folder / f"{recording.seconds}.flac" for recording in recordings]
    for path, recording in zip(paths, recordings, strict=True):
        if not path.exists():
            recording.write(path)
    return paths


def faster_from_files(
    model: FasterWhisper, folder: Path, windows: Windows, batch: int, *, timestamps: bool
) -> Transcribe:
    """Decode files with faster-whisper, and transcribe them in batches."""

    def transcribe(recordings: Sequence[Recording]) -> list[str]:
        decoded = (
            (faster_whisper.decode_audio(str(path)) * 32768).astype(np.int16) for path in written(recordings, folder)
        )
        return [model.transcribe(samples, windows, batch, timestamps=timestamps) for samples in decoded]

    return transcribe


def whole_path(serving: Serving, model: str, folder: Path) -> Transcribe:
    """Transcribe files in `folder` with a model of the server as `reelscribe transcribe` does."""

    async def run(paths: Sequence[Path], out: Path) -> None:
        async with SpeechClient([Server(serving.url, serving.token)], model) as client:
            summary = await Run(
                [TranscriptTrack(client, SpeechOptions(transcription=TranscriptionOptions(language="en")))], out
            ).run([str(path) for path in paths])
        assert not summary.failed, str(summary)

    def transcribe(recordings: Sequence[Recording]) -> list[str]:
        paths = written(recordings, folder)
        with tempfile.TemporaryDirectory() as out:
            asyncio.run(run(paths, Path(out)))
            records = map(json.loads, (Path(out) / "annotations.jsonl").read_text().splitlines())
            texts = {
                record["source"]["path"]: " ".join(utterance["text"] for utterance in record["segments"])
                for record in records
            }
        return [texts[str(path)] for path in paths]

    return transcribe


@contextmanager
def ways(checkpoint: Path, batch: int) -> Iterator[dict[str, Way]]:
    """All ways by name."""
    alike: dict[str, Any] = {"device_batch": batch, "language": "en", "temperatures": (0.0,)}
    text, timed = "ours, text", "ours, timestamps"
    fast_text, fast_timed, whole = (
        f"{text}, ctranslate2",
        f"{timed}, ctranslate2",
        "whole path, as shipped, ctranslate2",
    )
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        other = FasterWhisper(checkpoint, root / "converted")
        convert(str(checkpoint), str(root / "ours"), "auto")
        fast = {"engine": "ctranslate2", "converted": str(root / "ours")}
        for engine in ("torch", "ctranslate2"):
            archive.build(engine, "speech", str(checkpoint), root / "store", engine=engine, handlers=HANDLERS)
        own, files = partial(ours, checkpoint), root / "files"
        files.mkdir()
        with serve(root, "torch", CONFIG) as serving:
            served = serving.instance.processes
            yield {
                text: Way(own(timestamps=False, **alike), fast_text),
                fast_text: Way(own(timestamps=False, **alike, **fast), fast_text),
                "pipeline, text": Way(pipeline(checkpoint, batch, timestamps=False), fast_text),
                "pipeline, text, no overlap": Way(
                    pipeline(checkpoint, batch, timestamps=False, overlap=False), fast_text
                ),
                "faster-whisper, text": Way(faster(other, "sequential", batch, timestamps=False), fast_text),
                "faster-whisper, text, fixed": Way(faster(other, "fixed", batch, timestamps=False), fast_text),
                "faster-whisper, text, vad": Way(faster(other, "vad", batch, timestamps=False), fast_text),
                timed: Way(own(timestamps=True, **alike), fast_timed),
                fast_timed: Way(own(timestamps=True, **alike, **fast), fast_timed),
                "ours, as shipped": Way(own(), fast_timed),
                "ours, as shipped, ctranslate2": Way(own(**fast), fast_timed),
                "pipeline, timestamps": Way(pipeline(checkpoint, batch, timestamps=True), fast_timed),
                "faster-whisper, timestamps": Way(faster(other, "sequential", batch, timestamps=True), fast_timed),
                "faster-whisper, timestamps, fixed": Way(faster(other, "fixed", batch, timestamps=True), fast_timed),
                whole: Way(whole_path(serving, "ctranslate2", files), whole, served),
                "whole path, as shipped": Way(whole_path(serving, "torch", files), whole, served),
                "faster-whisper, timestamps, fixed, from files": Way(
                    faster_from_files(other, files, "fixed", batch, timestamps=True), whole
                ),
                "faster-whisper, text, vad, from files": Way(
                    faster_from_files(other, files, "vad", batch, timestamps=False), whole
                ),
            }


def measure(checkpoint: Path, recordings: Sequence[Recording], rounds: int, batch: int, words: Sequence[str]) -> Report:
    """Run all ways, or those whose name has one of `words`, and return the table."""
    seconds = sum(recording.seconds for recording in recordings)
    report = Report(
        f"{len(recordings)} recordings, {seconds:.0f} s of speech, batches of {batch}",
        ("way", "RTFx", "RTFx of a CPU second", "ours / this", "words wrong"),
    )
    expected = [" ".join(recording.words) for recording in recordings]
    with ways(checkpoint, batch) as everything:
        compared = {name: way for name, way in everything.items() if not words or any(word in name for word in words)}
        for way in compared.values():
            way.transcribe(recordings[:1])  # loads what is loaded at the first use
        walls = take_turns(rounds, {name: partial(way.run, recordings) for name, way in compared.items()})
    cpu = {name: Spread(tuple(way.cpu_seconds)) for name, way in compared.items()}
    for name, way in compared.items():
        rates = (Spread(tuple(seconds / value for value in spent.values)) for spent in (walls[name], cpu[name]))
        known = way.compared_with in cpu and name != way.compared_with
        ratio = cpu[name].over(cpu[way.compared_with]) if known else ""
        texts = [" ".join(words_of(text)) for text in way.texts]
        report.add(name, *rates, ratio, f"{jiwer.wer(expected, texts):.2%}")
    return report


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--recordings", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--ways", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    add_json_option(parser)
    options = parser.parse_args()
    compute_on_one_thread()
    # Workers would import handlers/ instead of their archives, and look for converted weights there.
    os.environ.pop("PYTHONPATH", None)
    if options.real:
        checkpoint = options.real.resolve() / "whisper-tiny.en"
        recordings = [sentences(options.real, REAL_SECONDS, SEED + k) for k in range(options.recordings)]
    else:
        checkpoint = SPEECH
        recordings = long_recordings(SEED, np.linspace(*RECORDING_SECONDS, options.recordings).tolist())
    publish([measure(checkpoint, recordings, options.rounds, options.batch, options.ways)], options.json)


if __name__ == "__main__":
    run_command(main)
