"""Do recordings that are posted as files have the same words, however many of them are read at once?

    scripts/bench posted_recordings FOLDER [--recordings 40] [--minutes 1 10] [--threads 0 1 2 4 8] [--in-flight 8]
                                    [--engine ctranslate2] [--seed 0] [--json FILE]

FOLDER is one that scripts/real_data has prepared: openai/whisper-tiny.en and voices. The recordings are sentences with
pauses, their lengths from the first to the second number of minutes, as FLAC files. A real TorchServe joins up to 8 of
them in a call. The first row has one thread that reads, and one recording after the other; the others have --in-flight
at once. The table shows the words wrong, in percent; how many recordings have another text than in the first row; how
much audio is transcribed in a second; and the milliseconds of the server's answers to /ping meanwhile.
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp
import numpy as np
import soundfile

from lib.command import add_json_option, command_parser, run_command
from lib.delays import pinging
from lib.real_recordings import recording, words_of, wrong_words
from lib.report import Report, publish
from reelscribe.archive import build as archive
from runtime.model_settings import READ_THREADS_VARIABLE
from servers.torchserve import CONFIG, HANDLERS, Serving, serve
from synthetic.phrases import SAMPLE_RATE

MODEL = "whisper"


@dataclass(frozen=True)
class Posted:
    """A recording as it is posted."""

    body: bytes
    seconds: float
    words: list[str]


def make_recordings(folder: Path, count: int, minutes: tuple[float, float], seed: int) -> list[Posted]:
    """Make FLAC files of lengths whose logarithms are evenly spread, the short ones among the long ones."""
    made = []
    for k in np.random.default_rng(seed).permutation(count).tolist():
        seconds = 60 * minutes[0] * (minutes[1] / minutes[0]) ** (k / max(1, count - 1))
        whole = recording(folder, "clean", seconds, seed + k)
        file = io.BytesIO()
        soundfile.write(file, whole.samples, SAMPLE_RATE, format="FLAC")
        words = [word for _, phrase in whole.phrases for word in phrase]
        made.append(Posted(file.getvalue(), len(whole.samples) / SAMPLE_RATE, words))
    return made


async def transcribe(serving: Serving, recordings: list[Posted], in_flight: int) -> list[str]:
    """Post all recordings, `in_flight` at once, and return their texts."""
    turns = asyncio.Semaphore(in_flight)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=serving.headers, timeout=timeout) as session:

        async def post(body: bytes) -> str:
            async with turns, session.post(serving.predictions, data=body) as response:
                assert response.status == 200, await response.text()
                return str((await response.json())["text"])

        return await asyncio.gather(*(post(one.body) for one in recordings))


@dataclass(frozen=True)
class Outcome:
    """What came of a row."""

    texts: list[str]
    seconds: float
    pings: list[float]


def measure(store: Path, recordings: list[Posted], threads: int, in_flight: int) -> Outcome:
    """Transcribe all recordings on a server whose worker reads with so many threads."""
    os.environ[READ_THREADS_VARIABLE] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "store").symlink_to(store)
        with serve(Path(folder), MODEL, CONFIG) as serving:
            asyncio.run(transcribe(serving, recordings[:1], 1))  # warms up
            began = monotonic()
            with pinging(serving.url, token=serving.token) as pings:
                texts = asyncio.run(transcribe(serving, recordings, in_flight))
            return Outcome(texts, monotonic() - began, list(pings))


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--minutes", type=float, nargs=2, default=(1.0, 10.0), help="of the shortest and the longest")
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--engine", choices=("torch", "ctranslate2"), default="ctranslate2")
    parser.add_argument("--seed", type=int, default=0)
    add_json_option(parser)
    options = parser.parse_args()
    recordings = make_recordings(options.folder, options.recordings, tuple(options.minutes), options.seed)
    spoken = sum(len(one.words) for one in recordings)
    audio = sum(one.seconds for one in recordings)
    report = Report(
        f"{len(recordings)} recordings, {audio / 60:.0f} min, {spoken:,} words",
        ("threads", "in flight", "wrong, %", "other texts", "audio s/s", "ping p50, ms", "p99", "longest"),
    )
    os.environ.pop("PYTHONPATH", None)  # with it, workers would load the modules of the checkout, not of the archive
    weights = str(options.folder / "whisper-tiny.en")
    with tempfile.TemporaryDirectory() as folder:
        archive.build(MODEL, "speech", weights, Path(folder), engine=options.engine, handlers=HANDLERS)
        first: list[str] = []
        for threads, in_flight in [(1, 1), *((count, options.in_flight) for count in options.threads)]:
            got = measure(Path(folder), recordings, threads, in_flight)
            first = first or got.texts
            texts = zip(recordings, got.texts, strict=True)
            wrong = sum(wrong_words(one.words, words_of(text)) for one, text in texts)
            others = sum(before != after for before, after in zip(first, got.texts, strict=True))
            pings = np.percentile(got.pings, [50, 99, 100]).tolist()
            percent = f"{100 * wrong / spoken:.2f}"
            report.add(str(threads), str(in_flight), percent, str(others), audio / got.seconds, *pings)
    publish([report], options.json)


if __name__ == "__main__":
    run_command(main)
