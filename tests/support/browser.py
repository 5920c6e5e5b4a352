"""Debian's Chromium, driven by playwright, and what a page must fulfil in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, sync_playwright

AXE = Path(__file__).parents[1] / "data" / "axe" / "axe.min.js"
"""The checker of accessibility. Its package on npm is axe-core."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FEWER_PROCESSES = (
    *("--disable-gpu", "--in-process-gpu"),
    *("--renderer-process-limit=1", "--disable-site-isolation-trials"),
)
"""Options of Chromium: each of its processes takes a third of a second of a core to start."""

AA_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""Tags of the rules of WCAG, up to level AA, and of rules that axe adds."""


def find_chromium() -> str:
    """Return the path of Chromium; its absence is a failure, because nothing else tests what users see."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        missing = f"expected Chromium on the PATH as {', '.join(NAMES)}, found none"
        raise AssertionError(f"{missing}: on Debian, run apt-get install --no-install-recommends chromium")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Run a browser without a window."""
    # Chromium's sandbox does not work for root, which tests in containers are.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*FEWER_PROCESSES, *as_root])
        try:
            yield browser
        finally:
            browser.close()


def was_aborted(request: Request) -> bool:
    """Return whether a request failed because its page was left, as that for the icon, which no page waits for."""
    return request.failure == "net::ERR_ABORTED"


def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with a page in light and dark: for each violation its rule, and the elements."""
    page.evaluate(AXE.read_text())  # not as a script of the page, whose own policy may allow none but its own
    page.emulate_media(color_scheme="light")
    found = _check(page, {"type": "tag", "values": list(AA_RULES)})
    page.emulate_media(color_scheme="dark")
    found += _check(page, {"type": "rule", "values": ["color-contrast", "link-in-text-block"]})
    return [f"{rule['id']}: {[node['html'][:200] for node in rule['nodes'][:3]]}" for rule in found]


def _check(page: Page, rules: dict[str, Any]) -> list[Any]:
    # Without "preload", axe does not fetch style sheets, which it cannot from files.
    options = {"runOnly": rules, "resultTypes": ["violations"], "preload": False}
    return page.evaluate("options => axe.run(options)", options)["violations"]
