"""Reads what Prometheus would read at a server's metrics address."""

import asyncio
import re
import urllib.request
from collections import Counter

from servers.torchserve import Serving
from support.patience import PATIENCE

Figures = Counter[tuple[str, str]]
"""Values by name, and by model or type of error."""


def scrape(address: str) -> Figures:
    """Read all metrics of a server or a run."""
    figures: Figures = Counter()
    with urllib.request.urlopen(f"{address}/metrics") as response:
        for name, text, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", response.read().decode(), re.M):
            labels = dict(re.findall(r'(\w+)="(.*?)"', text))
            label = labels.get("ErrorType") or labels.get("ModelName") or labels.get("model_name", "")
            figures[name, label] += float(value)
    return figures


def scrape_server(serving: Serving) -> Figures:
    return scrape(serving.instance.address("metrics_address"))


async def growth(serving: Serving, before: Figures, *names: tuple[str, str], count: float = 0) -> Figures:
    """Wait until all of `names` grew by `count` since `before`, and return what grew.

    A worker's metrics reach the address some time after its response.
    """

    async def poll() -> Figures:
        while True:
            grown = scrape_server(serving) - before
            if all(grown[name] >= count and name in grown for name in names):
                return grown
            await asyncio.sleep(0.1)

    return await asyncio.wait_for(poll(), PATIENCE)
