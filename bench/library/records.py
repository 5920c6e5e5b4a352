"""How fast is the ledger of a library, how large are its records, and which programs can open them?

    scripts/bench library/records [--sources 50000] [--keep FOLDER] [--json FILE]

The ledger of a library is filled with videos that have captions and a transcript, recordings that have a transcript
alone, and, in the last twentieth, files that could not be read; so the first error comes late in annotations.jsonl.
Nothing is decoded and no model runs. The first table has the sources that are saved in a second, 64 at a time; those
that are looked up in a second, 256 at a time; the seconds that it takes to mark all of them as missing; the records
that are written in a second; and then the peak of the resident memory. The file of records is opened with each reader
that is installed: Hugging Face datasets, DuckDB and pandas infer the types of all fields by themselves. `pip install
datasets duckdb pandas` installs them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from lib.command import command_parser, run_command
from lib.report import Report, publish_measured
from reelscribe.contract.outcomes import Caption, SourceError
from reelscribe.contract.source import AudioInfo, Source, VideoInfo
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, Word
from reelscribe.results.annotations import FAILURES_NAME, NAME, write_results
from reelscribe.results.batches import ReusedFrame, SavedAudioBatch, SavedFrameBatch, TimedTranscript
from reelscribe.results.jobs import Job, SavedAudio, SavedVideo
from reelscribe.results.known_files import AskedFile
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.records import Kind
from reelscribe.results.schema import settings_text

CAPTIONER = {"model": ["some/captioner", "abc"], "sampling": {"fps": 1.0}, "generation": {"max_new_tokens": 30}}
WHISPER = {"model": ["some/whisper", "def"], "sample_rate": 16_000, "generation": {"num_beams": 1}}
STAT = "10000 1700000000000000000 1700000000000000000 12345678"
VIDEO = VideoInfo(10.0, 1920, 1080, 0, 1.0, 300, 30.0, 0.0, 10.0, "h264", "aac")
AUDIO = AudioInfo("aac", 48_000, 2, 0.0, 0.0, 10.0)
SAVED_AT_ONCE, LOOKED_UP_AT_ONCE = 64, 256


def path_of(number: int) -> str:
    """Return the path of a source of the library."""
    return f"/library/{number:07}.mp4"


def sha256_of(number: int) -> str:
    """Return a digest; digests of neighbours are far apart, as real ones are."""
    return hashlib.sha256(str(number).encode()).hexdigest()


async def add_source(ledger: Ledger, settings: tuple[int, int], number: int, sources: int) -> None:
    """Save one source of the library: every third is a recording, and the last twentieth cannot be read."""
    captioner, whisper = settings
    path, sha256 = path_of(number), sha256_of(number)
    if number >= sources * 0.95:
        await ledger.save_unreadable(path, SourceError("MediaError", "the file is empty"))
        return
    source = Source(path, 10_000, sha256)
    ledger.save_digest(path, STAT, source)
    spoken = await ledger.job(sha256, whisper)
    ledger.save_opened(spoken.id, SavedAudio(AUDIO, None), 160_000)
    ledger.save_batch(spoken.id, transcript(number))
    jobs: dict[Kind, Job] = {"transcript": spoken}
    if number % 3:
        shown = await ledger.job(sha256, captioner)
        ledger.save_opened(shown.id, SavedVideo(VIDEO, 10.0, None), 10)
        ledger.save_batch(shown.id, captions(number))
        jobs["captions"] = shown
    await ledger.save_source(source, jobs)


def captions(number: int) -> SavedFrameBatch:
    """Ten captions, one a second; in every hundredth video two of them are reused."""
    made = [Caption(30 * k, float(k), f"a star of {number} points", avg_logprob=-0.25) for k in range(10)]
    reused = [ReusedFrame(30 * k, float(k), 210) for k in (8, 9)] if number % 100 == 1 else []
    return SavedFrameBatch(0, 10, 210, captions=made[: 10 - len(reused)], reused=reused)


def transcript(number: int) -> SavedAudioBatch:
    """Two segments of three words; every hundredth has times of its words."""
    words = tuple(Word(k, k + 0.5, "word", 0.75) for k in range(3)) if number % 100 == 2 else None
    segments = tuple(SpeechSegment(5.0 * k, 5.0 * k + 4, "word word word", words, -0.25) for k in range(2))
    answer = ChunkTranscript("word word word " * 2, "en", segments, no_speech_prob=0.125)
    return SavedAudioBatch(0, 160_000, transcripts=[TimedTranscript(0.0, 10.0, answer)])


async def use_ledger(out: Path, sources: int) -> tuple[float, float, float]:
    """Save a library in the ledger of a folder, look all of it up, and mark it as missing.

    Returns:
        Sources saved in a second, sources looked up in a second, and the seconds that marking took.
    """
    async with Ledger(out) as ledger:
        settings = (await ledger.settings_id(CAPTIONER), await ledger.settings_id(WHISPER))
        began = time.perf_counter()
        for numbers in pages(sources, SAVED_AT_ONCE):
            await asyncio.gather(*(add_source(ledger, settings, number, sources) for number in numbers))
        saved = time.perf_counter()
        models: dict[Kind, str] = {"captions": settings_text(CAPTIONER), "transcript": settings_text(WHISPER)}
        for numbers in pages(sources, LOOKED_UP_AT_ONCE):
            await ledger.look_up([AskedFile(path_of(number), STAT, models) for number in numbers])
        looked_up = time.perf_counter()
        await ledger.mark_missing()
        return sources / (saved - began), sources / (looked_up - saved), time.perf_counter() - looked_up


def pages(sources: int, size: int) -> Iterator[range]:
    """Yield the numbers of all sources, some at a time."""
    return (range(first, min(first + size, sources)) for first in range(0, sources, size))


def first_error(annotations: Path) -> int:
    """Return after how many bytes the first record with an error begins, apart from those that come first."""
    offset, beginning = 0, 16  # at most so many records are moved to the beginning of a large file
    with annotations.open("rb") as file:
        for number, line in enumerate(file):
            if number >= beginning and b'"status":"error"' in line:
                return offset
            offset += len(line)
    return offset


def open_with_datasets(annotations: Path) -> tuple[int, int]:
    """Return the number of records and of errors that Hugging Face datasets finds."""
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    table = datasets.load_dataset(
        "json", data_files=str(annotations), split="train", cache_dir=str(annotations.parent / "cache")
    )
    return len(table), sum(error is not None for error in table["error"])


def open_with_duckdb(annotations: Path) -> tuple[int, int]:
    """Return the number of records and of errors that DuckDB finds."""
    query = f"SELECT count(*), count(error.message) FROM '{annotations}'"  # noqa: S608 - the path is our own
    ((records, errors),) = import_module("duckdb").sql(query).fetchall()
    return records, errors


def open_with_pandas(annotations: Path) -> tuple[int, int]:
    """Return the number of records and of errors that pandas finds."""
    table = import_module("pandas").read_json(annotations, lines=True)
    return len(table), int(table["error"].notna().sum())


READERS: dict[str, Callable[[Path], tuple[int, int]]] = {
    "datasets": open_with_datasets,
    "duckdb": open_with_duckdb,
    "pandas": open_with_pandas,
}


def measure(arguments: argparse.Namespace, folder: Path) -> list[Report]:
    """Write the records of a library, and open them with every reader."""
    speeds = asyncio.run(use_ledger(folder, arguments.sources))
    began = time.perf_counter()
    with LedgerReader(folder) as reader:
        write_results(folder, reader.records())
    seconds = time.perf_counter() - began
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    ledger = Report("ledger", ("sources", "saved/s", "looked up/s", "marked in s", "written/s", "peak MB"))
    ledger.add(str(arguments.sources), *speeds, arguments.sources / seconds, peak)
    annotations = folder / NAME
    size = annotations.stat().st_size
    sizes = Report("records", ("records", "errors", "MB", "bytes a record", "first error after MB", "written in s"))
    late = first_error(annotations) / 1e6
    failed = len((folder / FAILURES_NAME).read_text().splitlines())
    sizes.add(str(arguments.sources), failed, size / 1e6, size / arguments.sources, late, seconds)
    opened = Report("readers", ("reader", "records", "errors", "seconds"))
    for name, open_records in READERS.items():
        if find_spec(name) is None:
            opened.add(name, "not installed", "", "")
            continue
        began = time.perf_counter()
        records, errors = open_records(annotations)
        opened.add(name, str(records), str(errors), time.perf_counter() - began)
    if arguments.keep:
        shutil.copytree(folder, arguments.keep)
    return [ledger, sizes, opened]


def main() -> None:
    """Measure, and print three tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--sources", type=int, default=50_000, help="number of sources of the library")
    parser.add_argument("--keep", type=Path, help="copy the output folder to this new folder")
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
