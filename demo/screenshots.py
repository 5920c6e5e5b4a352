"""Takes the screenshots of docs/screenshots: the pages of `reelscribe browse`, over the demo media.

A server of the demo models must run, as after scripts/build and scripts/start. Then:
    .venv/bin/python demo/screenshots.py
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
REELSCRIBE = str(Path(sys.executable).with_name("reelscribe"))
SIZES = {"wide": (1280, 800), "narrow": (360, 800)}
QUALITY = 80
BROKEN_BYTES = 20_000
FADING_MS = 1500  # until the ring is gone that Chromium draws while it loads

SECONDS = 9.2
"""The time of spoken.mp4 that its page shows: a word is being said."""


def main() -> None:
    """Annotate the demo media, and take a screenshot of each page in light and dark, wide and narrow."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / ".server", help="folder of the server")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "screenshots", help="folder of the screenshots")
    options = parser.parse_args()
    options.to.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reelscribe-") as folder:
        work = Path(folder)
        copy_media(work / "videos")
        (work / ".server").symlink_to(options.directory.resolve())  # so that commands on the pages have short paths
        models = ["--model", "captioner", "--clip-model", "clips"]
        command = [REELSCRIBE, "annotate", "videos", "--out", "out", "--word-times", "--clips", "shots", *models]
        subprocess.run([*command, "--directory", ".server"], cwd=work, check=False)  # one file fails, as it should
        with browsing(work) as address:
            take_all(address, options.to)


def copy_media(to: Path) -> None:
    """Make a library of the demo media and of a file that is broken."""
    shutil.copytree(ROOT / "demo" / "media", to, ignore=shutil.ignore_patterns("*.jsonl"))
    shutil.copy(ROOT / "demo" / "clips" / "events.mp4", to)
    (to / "broken.mp4").write_bytes((to / "spoken.mp4").read_bytes()[:BROKEN_BYTES])


@contextmanager
def browsing(work: Path) -> Iterator[str]:
    """Serve the pages of the folder `out`; the address is that of the library."""
    command = [REELSCRIBE, "browse", "out"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def take_all(address: str, to: Path) -> None:
    """Take the screenshots of all pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for size, (width, height) in SIZES.items():
            for colors in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colors)
                for name, path in {"library": "", "search": "search?q=red+cross", "run": "run"}.items():
                    page.goto(address + path, wait_until="networkidle")
                    take(page, to / f"{name}-{size}-{colors}.webp")
                page.goto(address, wait_until="networkidle")
                source = page.get_attribute(".card a:has-text('spoken.mp4')", "href") or ""
                page.goto(f"{address}{source}#t={SECONDS}", wait_until="networkidle")
                page.wait_for_function("() => media.readyState === 4 && !media.seeking")
                page.wait_for_timeout(FADING_MS)
                take(page, to / f"source-{size}-{colors}.webp")
                page.close()
        browser.close()


def take(page: Page, path: Path) -> None:
    """Write what a page shows as a WebP."""
    Image.open(BytesIO(page.screenshot(animations="disabled"))).save(path, quality=QUALITY, method=6)


if __name__ == "__main__":
    main()
