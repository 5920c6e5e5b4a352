"""What Prometheus finds at the metrics address of the real TorchServe, and at that of a run."""

import asyncio
import re
import subprocess
import urllib.request
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from e2e.conftest import Running, post
from reelscribe import wire
from test_run_metrics import free_port

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


async def growth(running: Running, before: Figures, *told: tuple[str, str]) -> Figures:
    """What came since `before`, when all of `told` has: what workers tell takes its way through TorchServe."""
    async with asyncio.timeout(30):
        while True:
            grown = scrape(running.instance.address("metrics_address")) - before
            if set(told) <= set(grown):
                return grown
            await asyncio.sleep(0.1)


async def test_prometheus_sees_what_the_workers_did_and_which_errors_they_gave(both, media):
    before = scrape(both.instance.address("metrics_address"))
    sound = (media / "phrases.ogg").read_bytes()
    assert (await post(Running(both.instance, "speech"), sound))[0] == 200
    body = b"".join(wire.pack(np.zeros((5, 100, 100, 3), np.uint8)))
    assert [(await post(both, sent))[0] for sent in (body, body, b"noise")] == [200, 200, 400]
    last = [("reelscribe_errors_total", "WireError"), ("reelscribe_device_seconds_total", "speech")]
    grown = await growth(both, before, *last)
    assert grown["reelscribe_requests_total", "captioner"] == 3
    assert grown["reelscribe_frames_total", "captioner"] == grown["reelscribe_device_items_total", "captioner"] == 10
    assert grown["reelscribe_device_batches_total", "captioner"] == 2
    assert grown["reelscribe_errors_total", "WireError"] == 1
    assert grown["reelscribe_tokens_total", "captioner"] > 10
    assert grown["reelscribe_audio_seconds_total", "speech"] == pytest.approx(78.4, abs=0.1)


async def test_torchserves_own_metrics_tell_of_the_queue(both):
    before = scrape(both.instance.address("metrics_address"))
    body = b"".join(wire.pack(np.zeros((32, 224, 224, 3), np.uint8)))
    await asyncio.gather(*(post(both, body) for _ in range(4)))
    # An answer is on its way before it is counted.
    grown = await growth(both, before, ("ts_queue_latency_microseconds", "captioner"))
    assert grown["ts_inference_latency_microseconds", "captioner"] > grown["ts_queue_latency_microseconds", "captioner"]
    assert ("QueueTime", "") in scrape(both.instance.address("metrics_address"))


def test_a_run_can_be_scraped_while_it_lasts(both, media, tmp_path):
    port = free_port()
    command = both.command(media / "same-640x360.webm", "--out", tmp_path / "out", "--metrics-port", port, "--quiet")
    sources = 0.0
    with subprocess.Popen(command) as run:
        while run.poll() is None:
            with suppress(OSError):  # it is not there yet, or not any more
                sources = max(sources, scrape(f"http://127.0.0.1:{port}")["reelscribe_run_sources", ""])
            with suppress(subprocess.TimeoutExpired):
                run.wait(0.02)
    assert run.returncode == 0
    assert sources == 1
