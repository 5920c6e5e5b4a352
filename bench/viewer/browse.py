"""How fast are the pages of `reelscribe browse` over a large library, and how fast is its index built?

    scripts/bench browse [--sources 100000] [--words 200] [--requests 200] [--json FILE]

Makes a file of records with texts of words that are as frequent as in a language (Zipf), 15 to 20 texts of a source.
Then it starts the server as a process of its own, with the index still to be built, and asks it for pages as a browser
does, one after the other. The first table has the records that are indexed in a second, on all cores that this process
may use, and in a second of one core's time, which matters where others compute, too; the seconds until the server
answers, with the start of Python; then the resident memory of the server, and the size of the index. The second table
has the times of pages in milliseconds: searches for words of different frequency, phrases and beginnings of words, and
pages of the library with all filters, orders, and pages from the first to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlencode

import psutil

from lib.command import command_parser, killed_at_end, run_command
from lib.report import Report, publish_measured
from reelscribe.viewer.index.building import build

VOCABULARY = 30_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LANGUAGES = ("en", "de", "fr", "ja")
SETTINGS = "0123456789ab"

Query = Callable[[], str]
"""Returns the address of a page that was not asked for before, relative to the library."""


class Language:
    """Words that are made up, the most frequent one first."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        words = {"".join(chance.choices(LETTERS, k=chance.randint(2, 9))): None for _ in range(2 * VOCABULARY)}
        self.words = list(words)[:VOCABULARY]
        self._weights = list(accumulate(1 / (k + 1) for k in range(VOCABULARY)))

    def text(self, count: int) -> str:
        """Return a text of so many words."""
        return " ".join(self._chance.choices(self.words, cum_weights=self._weights, k=count))

    def word(self, first: int, stop: int) -> str:
        """Return one of the words from number `first` to before `stop`."""
        return self.words[self._chance.randrange(first, stop)]


def records(sources: int, words: int, language: Language, chance: random.Random) -> Iterator[dict[str, object]]:
    """Yield records with all fields: half of the texts are captions and half speech, and every fiftieth has failed."""
    for k in range(sources):
        path = f"/library/{k // 1000:03}/video {k:06}.mp4"
        texts = [language.text(words // 18 + (j % 3 - 1)) for j in range(chance.randint(17, 20))]
        spans = [{"start": 2.0 * j, "end": 2.0 * j + 2, "text": text} for j, text in enumerate(texts[::2])]
        flags = ["repetition"] if k % 7 == 0 else []
        spoken = LANGUAGES[min(k % 10 // 3, 3)]
        common = {"language": spoken, "no_speech_prob": 0.01, "avg_logprob": -0.2, "words": None}
        caption = {"reused_from": None, "avg_logprob": -0.3, "flags": flags}
        failed = k % 50 == 0
        yield {
            "source": {
                "path": path,
                "bytes": 10**6 + k,
                "sha256": f"{k:064x}",
                "missing": False,
                "absolute_path": path,
            },
            "status": "error" if failed else "ok",
            "error": {"type": "MediaError", "message": "expected a whole file"} if failed else None,
            "media": {
                "duration_seconds": 5.0 + k % 4000,
                "width": 1920,
                "height": 1080,
                "rotation": 0,
                "pixel_aspect": 1.0,
                "frames": 1000,
                "average_fps": 25.0,
                "skipped_frames": 0,
                "start_seconds": 0.0,
                "end_seconds": 40.0,
                "video_codec": "h264",
                "audio_codec": "aac",
            },
            "audio": None,
            "shots": [],
            "shot_settings": None,
            "captions": [
                {"frame_index": 50 * j, "pts_seconds": 2.0 * j, "text": span["text"], **caption}
                for j, span in enumerate(spans)
            ],
            "caption_spans": spans,
            "caption_failures": [],
            "caption_settings": SETTINGS,
            "clips": [],
            "clip_failures": [],
            "clip_settings": None,
            "segments": [
                {"start": 2.0 * j, "end": 2.0 * j + 2, "text": text, **common} for j, text in enumerate(texts[1::2])
            ],
            "silences": [],
            "speech_failures": [],
            "speech_settings": SETTINGS,
        }


def searches(language: Language) -> dict[str, Query]:
    """Return searches of several kinds by name. The numbers are the ranks of the words by their frequency."""

    def page(query: str) -> str:
        return "search?" + urlencode({"q": query})

    common, medium, rare = (0, 50), (50, 1000), (1000, VOCABULARY)
    word = language.word
    return {
        "a common word": lambda: page(word(*common)),
        "a rare word": lambda: page(word(*rare)),
        "two common words": lambda: page(f"{word(*common)} {word(*common)}"),
        "two words": lambda: page(f"{word(*medium)} {word(*medium)}"),
        "a common and a rare word": lambda: page(f"{word(*common)} {word(*rare)}"),
        "a phrase of common words": lambda: page(f'"{word(*common)} {word(*common)}"'),
        "a phrase": lambda: page(f'"{word(*medium)} {word(*medium)}"'),
        "a beginning of 2 letters": lambda: page(f"{word(*medium)[:2]}*"),
        "a beginning of 3 letters and a word": lambda: page(f"{word(*medium)[:3]}* {word(*common)}"),
    }


def library_pages(sources: int, chance: random.Random) -> dict[str, Query]:
    """Return pages of the library by name."""

    def page(**parameters: object) -> str:
        return "?" + urlencode(parameters)

    def order() -> str:
        return chance.choice(["name", "longest", "shortest", "failures"])

    return {
        "all, any order and page": lambda: page(sort=order(), page=chance.randint(1, sources // 48 + 1)),
        "one language": lambda: page(language=chance.choice(LANGUAGES), sort=order(), page=chance.randint(1, 50)),
        "failed": lambda: page(error="MediaError", sort=order(), page=chance.randint(1, 20)),
        "by name or folder": lambda: page(
            q=f"{chance.randrange(sources // 1000 + 1):03} {chance.randrange(100):02}", page=chance.randint(1, 3)
        ),
        "in a folder": lambda: page(folder=f"{chance.randrange(sources // 1000 + 1):03}", sort=order()),
        "flagged and long": lambda: page(
            flag="repetition", duration=f"{chance.randint(60, 3000)}-", sort=order(), page=chance.randint(1, 20)
        ),
    }


def milliseconds(address: str, query: Query, requests: int) -> list[float]:
    """Return how long each of several requests takes."""
    times = []
    for _ in range(requests):
        wanted = address + query()
        began = time.perf_counter()
        with urllib.request.urlopen(wanted) as response:  # noqa: S310 - our own server
            response.read()
        times.append((time.perf_counter() - began) * 1000)
    return times


def measure(arguments: argparse.Namespace, folder: Path) -> list[Report]:
    """Make the records, and return the two tables."""
    chance = random.Random(0)  # noqa: S311 - the records need a seed, not secrecy
    language = Language(chance)
    annotations = folder / "annotations.jsonl"
    with annotations.open("w") as file:
        for record in records(arguments.sources, arguments.words, language, chance):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    (folder / "alone").mkdir()
    began, cpu = time.perf_counter(), _cpu_seconds()
    built = build(annotations, annotations.stat().st_size, folder / "alone")
    seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    assert built.docs == arguments.sources
    shutil.rmtree(folder / "alone")

    pages = Report("pages, in milliseconds", ("page", "median", "p95", "longest"))
    began = time.perf_counter()
    command = [sys.executable, "-m", "reelscribe.cli", "browse", str(folder)]
    with killed_at_end(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ) as server:
        assert server.stdout
        address = server.stdout.readline().strip()
        started = time.perf_counter() - began
        groups = {"search": searches(language), "library": library_pages(arguments.sources, chance)}
        for group, queries in groups.items():
            together = []
            for name, query in queries.items():
                times = milliseconds(address, query, arguments.requests)
                together += times
                pages.add(f"{group}: {name}", *_figures(times))
            pages.add(f"{group}: together", *_figures(together))
        memory = psutil.Process(server.pid).memory_full_info()
        peak = _peak_bytes(server.pid)
    size = sum(path.stat().st_size for path in (folder / ".browse").rglob("*") if path.is_file())
    building = Report(
        f"an index of {arguments.sources:,} records with {annotations.stat().st_size / 1e6:.0f} MB",
        ("shards", "records/s", "records/CPU s", "seconds to the address", "peak MB", "own MB at the end", "index MB"),
    )
    rates = (f"{arguments.sources / each:,.0f}" for each in (seconds, cpu))
    building.add(built.shards, *rates, started, peak / 1e6, memory.uss / 1e6, size / 1e6)
    return [building, pages]


def _figures(times: list[float]) -> tuple[float, float, float]:
    return median(times), quantiles(times, n=20)[-1], max(times)


def _cpu_seconds() -> float:
    """Return the time that this process and those that it has waited for have computed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    """Measure, and print two tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--sources", type=int, default=100_000, help="number of sources of the library")
    parser.add_argument("--words", type=int, default=200, help="number of words of a source, about")
    parser.add_argument("--requests", type=int, default=200, help="number of requests of each kind")
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
