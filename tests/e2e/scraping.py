"""What Prometheus would read at a server's metrics address."""

import asyncio
import re
import urllib.request
from collections import Counter

from e2e.conftest import Running

Figures = Counter[tuple[str, str]]
"""By name, and by model or type of error."""


def scrape(address: str) -> Figures:
    figures: Figures = Counter()
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        for name, text, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", answer.read().decode(), re.M):
            labels = dict(re.findall(r'(\w+)="(.*?)"', text))
            label = labels.get("ErrorType") or labels.get("ModelName") or labels.get("model_name", "")
            figures[name, label] += float(value)
    return figures


async def growth(running: Running, before: Figures, *told: tuple[str, str], count: float = 0) -> Figures:
    """What came since `before`, when all of `told` has, `count` of each: what workers tell takes its way."""

    async def all_told() -> Figures:
        while True:
            grown = scrape(running.instance.address("metrics_address")) - before
            if all(grown[name] >= count and name in grown for name in told):
                return grown
            await asyncio.sleep(0.1)

    return await asyncio.wait_for(all_told(), 30)
