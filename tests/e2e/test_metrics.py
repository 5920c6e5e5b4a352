"""Metrics that Prometheus reads from the real TorchServe and from a run."""

import asyncio
import sys
from contextlib import suppress

import numpy as np
import pytest
from aiohttp import web

from reelscribe import wire
from support.fake_torchserve import FakeTorchServe, Received, captions
from support.patience import PATIENCE
from support.scraping import growth, scrape, scrape_server
from support.snapshots import free_port


async def test_prometheus_reads_the_workers_counters_and_their_errors(server, media):
    before = scrape_server(server)
    audio = (media / "phrases.ogg").read_bytes()
    assert (await server.with_model("speech").post(audio))[0] == 200
    body = b"".join(wire.pack(np.zeros((5, 100, 100, 3), np.uint8)))
    assert [(await server.post(sent))[0] for sent in (body, body, b"noise")] == [200, 200, 400]
    last = [("reelscribe_errors_total", "WireError"), ("reelscribe_device_seconds_total", "speech")]
    grown = await growth(server, before, *last)
    assert grown["reelscribe_requests_total", "captioner"] == 3
    assert grown["reelscribe_frames_total", "captioner"] == grown["reelscribe_device_items_total", "captioner"] == 10
    assert grown["reelscribe_device_batches_total", "captioner"] == 2
    assert grown["reelscribe_errors_total", "WireError"] == 1
    assert grown["reelscribe_tokens_total", "captioner"] > 10
    assert grown["reelscribe_audio_seconds_total", "speech"] == pytest.approx(78.4, abs=0.1)


async def test_torchserves_own_metrics_include_the_queue(server):
    before = scrape_server(server)
    body = b"".join(wire.pack(np.zeros((32, 224, 224, 3), np.uint8)))
    await asyncio.gather(*(server.post(body) for _ in range(4)))
    # A response is sent before it is counted.
    total, queue = [(f"ts_{name}_latency_microseconds", "captioner") for name in ("inference", "queue")]
    grown = await growth(server, before, total, queue)
    assert grown[total] > grown[queue]
    assert ("QueueTime", "") in scrape_server(server)


async def test_a_run_can_be_scraped_while_it_lasts(media, tmp_path):
    scraped = asyncio.Event()

    async def when_scraped(request: Received) -> web.Response:
        await scraped.wait()
        return await captions(request)

    async def sources(address: str) -> float:
        while True:
            with suppress(OSError):  # it is not there yet
                if found := scrape(address)["reelscribe_run_sources", ""]:
                    return found
            await asyncio.sleep(0.1)

    port = str(free_port())
    async with FakeTorchServe(when_scraped) as server:  # so that the run lasts
        command = [sys.executable, "-m", "reelscribe.cli", "caption", "--server", server.url, "--quiet", "--all-frames"]
        command += ["--out", str(tmp_path / "out"), "--metrics-port", port, str(media / "same-640x360.webm")]
        run = await asyncio.create_subprocess_exec(*command)
        assert await asyncio.wait_for(sources(f"http://127.0.0.1:{port}"), PATIENCE) == 1
        scraped.set()
        assert await run.wait() == 0
