"""Seconds of sound that are transcribed in a second, and how many words are wrong: ours, transformers, faster-whisper.

    .venv/bin/python bench/speech.py [--recordings 6] [--rounds 5] [--batch 8] [--json FILE]

All get the same recordings and weights, the language, and one thread; needs the extra `bench`. In one process, from
samples in memory to text:

- ours: what client and server do, without what lies between them: cut where it is quiet, packed, read from the body,
  and heard by the handler's model, in batches. "as shipped" is as speech.yaml has it: the language is detected, and
  doubtful chunks are heard again.
- pipeline: transformers' `pipeline("automatic-speech-recognition", chunk_length_s=...)` with windows of the model's
  length, of which neighbours overlap by a third; "no overlap" is without that.
- faster-whisper: one window after the other; or batched, with fixed windows or, as it is by default, those that its
  detector of voices finds. peers/faster_whisper_peer.py says what was changed so that the demo model works.

"whole path" is `reelscribe transcribe`: from FLAC files by decode processes, a real TorchServe with one worker, and the
ledger, to the records. Its CPU seconds are those of all their processes, Java's too.

Every round runs all ways once. RTFx is seconds of sound for each second; figures are medians and, in brackets, smallest
and largest. "ours / this": sound per CPU second in the same round, of ours of the same kind (text or timestamps) and of
this way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import psutil
import torch
import transformers

from listener import MODEL, Listener, Spoken, long_recordings
from peers.faster_whisper_peer import FasterWhisper, Windows
from reelscribe.archive.build import build as archive
from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.contract.chunking import SILENCE_DB, is_silent
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.run.bulk import BulkRun, Transcripts
from reelscribe.run.options import SpeechOptions
from report import Report, Spread, add_json_option, publish, take_turns
from serving import ROOT, Serving, serve

SEED = 20_261_124
RECORDING_SECONDS = (60, 180)
NEW_TOKENS = 150
"""As many as the handler allows a window of 10 s."""

Transcribe = Callable[[Sequence[Spoken]], list[str]]
"""The text of each recording."""


@dataclass
class Way:
    """A way to transcribe, and what each of its runs took."""

    transcribe: Transcribe
    compared_with: str
    """The name of one of ours."""
    server: Callable[[], Iterable[psutil.Process]] = list
    """Processes that work for it, beside this one and its children."""
    cpu_seconds: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def run(self, recordings: Sequence[Spoken]) -> float:
        """Wall seconds."""
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


def ours(**settings: Any) -> Transcribe:
    """The client's cutting and the handler."""
    listener, options = Listener(MODEL, **settings), SpeechOptions()
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


def pipeline(batch: int, *, timestamps: bool, overlap: bool = True) -> Transcribe:
    """That of transformers."""
    # Any: which pipeline it is depends on its first argument.
    pipe: Any = transformers.pipeline("automatic-speech-recognition", model=str(MODEL), device="cpu")
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


def faster(model: FasterWhisper, windows: Windows, batch: int, *, timestamps: bool) -> Transcribe:
    """faster-whisper."""

    def transcribe(recordings: Sequence[Spoken]) -> list[str]:
        return [model.transcribe(spoken.samples, windows, batch, timestamps=timestamps) for spoken in recordings]

    return transcribe


def whole_path(serving: Serving, folder: Path) -> Transcribe:
    """`reelscribe transcribe` of files in a new `folder`."""
    folder.mkdir()

    async def run(paths: Sequence[Path], out: Path) -> None:
        async with SpeechClient([Server(serving.url, serving.token)], serving.model) as client:
            summary = await BulkRun(
                [Transcripts(client, SpeechOptions(asked=TranscriptionOptions(language="en")))], out
            ).run([str(path) for path in paths])
        assert not summary.failed, str(summary)

    def transcribe(recordings: Sequence[Spoken]) -> list[str]:
        paths = [folder / f"{spoken.seconds}.flac" for spoken in recordings]
        for path, spoken in zip(paths, recordings, strict=True):
            if not path.exists():
                spoken.write(path)
        with tempfile.TemporaryDirectory() as out:
            asyncio.run(run(paths, Path(out)))
            records = map(json.loads, (Path(out) / "annotations.jsonl").read_text().splitlines())
            texts = {
                record["source"]["path"]: " ".join(said["text"] for said in record["transcript"]) for record in records
            }
        return [texts[str(path)] for path in paths]

    return transcribe


@contextmanager
def ways(batch: int) -> Iterator[dict[str, Way]]:
    """By name."""
    alike: dict[str, Any] = {"device_batch": batch, "language": "en", "temperatures": (0.0,)}
    text, timed = "ours, text", "ours, timestamps"
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        other = FasterWhisper(MODEL, root / "converted")
        archive.build("speech", "speech", str(MODEL), root / "store", handlers=ROOT / "handlers")
        with serve(root, "speech", ROOT / "config.properties") as serving:
            yield {
                text: Way(ours(timestamps=False, **alike), text),
                "pipeline, text": Way(pipeline(batch, timestamps=False), text),
                "pipeline, text, no overlap": Way(pipeline(batch, timestamps=False, overlap=False), text),
                "faster-whisper, text": Way(faster(other, "sequential", batch, timestamps=False), text),
                "faster-whisper, text, fixed": Way(faster(other, "fixed", batch, timestamps=False), text),
                "faster-whisper, text, vad": Way(faster(other, "vad", batch, timestamps=False), text),
                timed: Way(ours(timestamps=True, **alike), timed),
                "ours, as shipped": Way(ours(), timed),
                "pipeline, timestamps": Way(pipeline(batch, timestamps=True), timed),
                "faster-whisper, timestamps": Way(faster(other, "sequential", batch, timestamps=True), timed),
                "faster-whisper, timestamps, fixed": Way(faster(other, "fixed", batch, timestamps=True), timed),
                "whole path, as shipped": Way(whole_path(serving, root / "files"), timed, serving.instance.processes),
            }


def measure(recordings: Sequence[Spoken], rounds: int, batch: int) -> Report:
    """The table."""
    seconds = sum(spoken.seconds for spoken in recordings)
    report = Report(
        f"{len(recordings)} recordings, {seconds:.0f} s of speech, batches of {batch}",
        ("way", "RTFx", "RTFx of a CPU second", "ours / this", "words wrong"),
    )
    wanted = [" ".join(spoken.words) for spoken in recordings]
    with ways(batch) as compared:
        for way in compared.values():
            way.transcribe(recordings[:1])  # what starts lazily
        walls = take_turns(rounds, {name: partial(way.run, recordings) for name, way in compared.items()})
    cpu = {name: Spread(tuple(way.cpu_seconds)) for name, way in compared.items()}
    for name, way in compared.items():
        rates = (Spread(tuple(seconds / value for value in spent.values)) for spent in (walls[name], cpu[name]))
        ratio = "" if name == way.compared_with else cpu[name].over(cpu[way.compared_with])
        report.add(name, *rates, ratio, f"{jiwer.wer(wanted, way.texts):.2%}")
    return report


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    add_json_option(parser)
    options = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # numpy's threads are counted when it is loaded, and faster-whisper makes its spectrograms with numpy.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S606
    torch.set_num_threads(1)
    # The pipeline warns of arguments that it gives to itself.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    lengths = np.linspace(*RECORDING_SECONDS, options.recordings)
    publish([measure(long_recordings(SEED, lengths.tolist()), options.rounds, options.batch)], options.json)


if __name__ == "__main__":
    main()
