"""How fast do exported pages open from their files, how fast is their search, and how fast are they made?

    scripts/bench exported_pages [--sources 2000] [--words 2000] [--searches 20] [--json FILE]

Exports records with texts of words that are as frequent as in a language, as `scripts/bench browse` makes them, with 12
thumbnails of each source and without media. Then Chromium opens the library, a page of a source and searches from the
files, each in a new tab without a cache. The first table has what the export takes and makes, with the peak of its
memory; the second the milliseconds until a page has been loaded with the pictures that are in sight, and, for a search,
until its first hits are there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from playwright.sync_api import Browser, sync_playwright

from lib.command import command_parser, run_command
from lib.report import Report, Spread, publish_measured
from reelscribe.thumbnails.pictures import to_webp
from reelscribe.thumbnails.store import ThumbnailStore
from synthetic.video_files import texture
from viewer.browse import SETTINGS, Language, records, searches

THUMBNAILS = 12


def make_results(out: Path, sources: int, words: int) -> Language:
    """Write records, settings and thumbnails as a run does, and return the language of the texts."""
    chance = random.Random(0)  # noqa: S311 - the records need a seed, not secrecy
    language = Language(chance)
    picture = to_webp(texture(320, 180).clip(0, 255).astype("uint8"))
    store = ThumbnailStore(out)
    with (out / "annotations.jsonl").open("w") as file:
        for k, record in enumerate(records(sources, words, language, chance)):
            digest = hashlib.sha256(str(k).encode()).hexdigest()  # those of the records are all in one folder
            source = cast(dict[str, object], record["source"])
            file.write(json.dumps(record | {"source": source | {"sha256": digest}}, separators=(",", ":")) + "\n")
            for second in range(THUMBNAILS):
                store.write(digest, 2.0 * second, picture)
    model = {"model": {"name": "some/model", "revision": "1"}, "settings": {}}
    (out / "run.json").write_text(json.dumps({"settings": {SETTINGS: model}}))
    return language


def exported(out: Path, sources: int) -> Report:
    """Export the results in a process of its own, and return what that took."""
    command = [sys.executable, "-m", "reelscribe.cli", "export", str(out), "--format", "html", "--media", "none"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    files = [path for path in (out / "html").rglob("*") if path.is_file()]
    index = [path for path in files if path.parent.name == "index"]
    report = Report(f"an export of {sources:,} sources", ("sources/s", "peak MB", "files", "MB", "index MB", "pieces"))
    sizes = (sum(path.stat().st_size for path in some) / 1e6 for some in (files, index))
    report.add(f"{sources / seconds:.0f}", peak / 1e6, f"{len(files):,}", *sizes, len(index))
    return report


def milliseconds(browser: Browser, address: str, there: str) -> float:
    """Return how long a new tab needs for a page until what a selector names is there, and all that is in sight."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    began = time.perf_counter()
    page.goto(address, wait_until="load")
    page.wait_for_selector(there, state="attached")
    took = (time.perf_counter() - began) * 1000
    page.close()
    return took


def measure(arguments: argparse.Namespace, out: Path) -> list[Report]:
    """Make results, and return the two tables."""
    language = make_results(out, arguments.sources, arguments.words)
    export = exported(out, arguments.sources)
    site = out / "html"
    a_source = next((site / "source").iterdir())
    done = "#result h2:not(:text('Searching'))"
    waits = {"the library": ("index.html", ".card"), "a source": (f"source/{a_source.name}", ".lines li")}
    pages = Report("pages from files, in milliseconds", ("page", "median and range", "longest"))
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=as_root)
        try:
            milliseconds(browser, f"file://{site}/search.html", "#q")  # the first tab of a browser is slow
            for name, (path, there) in waits.items():
                times = [milliseconds(browser, f"file://{site}/{path}", there) for _ in range(arguments.searches)]
                pages.add(name, Spread(tuple(times)), max(times))
            for name, query in searches(language).items():
                addresses = [query().replace("search?", "search.html?") for _ in range(arguments.searches)]
                times = [milliseconds(browser, f"file://{site}/{address}", done) for address in addresses]
                pages.add(f"search: {name}", Spread(tuple(times)), max(times))
        finally:
            browser.close()
    return [export, pages]


def main() -> None:
    """Measure, and print two tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--sources", type=int, default=2000, help="number of sources")
    parser.add_argument("--words", type=int, default=2000, help="number of words of a source, about")
    parser.add_argument("--searches", type=int, default=20, help="number of times that each page is opened")
    publish_measured(parser, measure)


if __name__ == "__main__":
    run_command(main)
