"""What does a server do when keys expire, under full load, and when clients abuse it?

    scripts/bench operations --expiry [--minutes 4]
    scripts/bench operations --latency [--seconds 25] [--in-flight 4]
    scripts/bench operations --abuse [--seconds 60] [--clients 50] [--config FILE]

--expiry: a bulk run against a server whose tokens live for a minute. Prints how many requests were refused and sent
again, how often the key was renewed, and whether anything was lost; exit status 1 if anything was.

--latency: how long GET /ping and GET /models/NAME take, each measured by a process of its own, on an idle server and
while two workers answer bodies of 8 MB, which another process sends as fast as they are answered. Exit status 1 if the
99th percentile of one of them is over 100 ms under that load.

--abuse: many clients send the largest allowed bodies to one worker, as fast as they can. Prints the answers, the peak
memory of the Java process and its limit, and whether the same processes still answer. Exit status 1 if a process ended,
a refusal was neither 503 nor 413, or memory exceeded the limit.
"""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from lib.command import command_parser, run_command
from lib.delays import pinging
from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from servers.emulated import serve_emulated
from servers.torchserve import CONFIG, Serving, serve_demo
from synthetic.video_files import FRAMES_PER_SECOND, write_library

MEBIBYTE = 2**20
BODY_FRAMES = 53
"""Frames of 224 x 224 in a body of --latency: 8 MB."""
CLIP_FRAMES = 150
MAX_MILLISECONDS = 100.0
"""Limit of the 99th percentile of --latency under full load."""
EXPECTED_OUTCOMES = {"200", "413", "503"}
"""Statuses that --abuse allows."""


async def annotate(serving: Serving, folder: Path, out: Path) -> Summary:
    """Caption a folder by a run that renews its key by itself."""
    credentials = Credentials(serving.instance.key_file, serving.settings["management_address"])
    async with CaptionClient([Server(serving.url, credentials)], serving.model) as client:
        options = CaptionOptions(Sampling(every=1), decode_workers=1, frames_per_request=5)
        return await Run([CaptionTrack(client, options)], out).run([str(folder)])


def expiry(root: Path, minutes: float) -> int:
    """Print the figures of a run during which several tokens expire; returns 1 if anything was lost."""
    clips = int(minutes * 60 * FRAMES_PER_SECOND) // CLIP_FRAMES
    folder = root / "library"
    write_library(folder, 320, 180, clips=clips, frames=CLIP_FRAMES)
    server = serve_emulated(root / "server", CONFIG, frames_per_second=FRAMES_PER_SECOND, token_expiration_min="1")  # noqa: S106 - minutes
    with server as serving:
        began = time.monotonic()
        summary = asyncio.run(annotate(serving, folder, root / "out"))
        seconds = time.monotonic() - began
        log = (serving.instance.logs / "access_log.log").read_text()
    requests = Counter(re.findall(r'"POST /predictions/\S+ \S+" (\d+)', log))
    renewals = Counter(re.findall(r'"GET /token\S* \S+" (\d+)', log))
    print(f"{seconds:.0f} s with tokens of 60 s: {summary}")
    print(f"requests by status {dict(requests)}, renewals by status {dict(renewals)}")
    print(f"failed sources {summary.failed}, refused and sent again {requests['400']}")
    return 0 if summary.failed == 0 and summary.snapshot.frames == clips * CLIP_FRAMES else 1


async def send_load(url: str, headers: dict[str, str], in_flight: int, seconds: float) -> None:
    """Send bodies of 8 MB as fast as they are answered, and print the throughput."""
    body = b"".join(wire.pack({"frames": np.zeros((BODY_FRAMES, 224, 224, 3), np.uint8)}))
    end = time.monotonic() + seconds

    async def keep_sending(session: aiohttp.ClientSession) -> int:
        answered = 0
        while time.monotonic() < end:
            async with session.post(url, data=io.BytesIO(body), headers=headers) as response:
                assert response.status == 200, await response.text()
                answered += 1
        return answered

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(keep_sending(session) for _ in range(in_flight)))
    print(f"{sum(answers) * len(body) / 1e6 / seconds:.0f} MB/s in bodies of {len(body) / 1e6:.1f} MB")


def _send_load(url: str, headers: dict[str, str], in_flight: int, seconds: float) -> None:
    asyncio.run(send_load(url, headers, in_flight, seconds))


@contextmanager
def measured(label: str, serving: Serving) -> Iterator[list[float]]:
    """Print how long both requests took during the block; after it, the list holds their 99th percentiles in ms."""
    percentiles: list[float] = []
    management, key = serving.settings["management_address"], serving.instance.key("management")
    with (
        pinging(serving.url, token=serving.token) as pings,
        pinging(management, f"/models/{serving.model}", key) as describes,
    ):
        yield percentiles
    for name, milliseconds in (("/ping", pings), ("describe", describes)):
        half, most = np.percentile(milliseconds, [50, 99])
        percentiles.append(float(most))
        print(f"{label:10} {name:10} {len(milliseconds):8} {half:8.1f} {most:8.1f} {max(milliseconds):8.1f}")


def latency(root: Path, seconds: float, in_flight: int) -> int:
    """Print the table of latencies; returns 1 if answers took too long."""
    with serve_emulated(root, CONFIG, frames_per_second=1e6, workers=2) as serving:
        arguments = (serving.predictions, serving.headers, in_flight, seconds)
        print(f"{'':10} {'':10} {'requests':>8} {'p50, ms':>8} {'p99, ms':>8} {'max, ms':>8}")
        with measured("idle", serving):
            time.sleep(seconds / 2)
        process = get_context("spawn").Process(target=_send_load, args=arguments, daemon=True)
        with measured("full load", serving) as percentiles:
            process.start()
            process.join()
    return int(process.exitcode != 0 or max(percentiles) > MAX_MILLISECONDS)


def largest_body(limit: int) -> bytes:
    """A body of exactly `limit` bytes: as many Full HD frames as fit, and padding in a second array."""
    frame = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
    frames = np.stack([frame] * ((limit - MEBIBYTE) // frame.nbytes))
    rest = limit - wire.size_of(wire.pack({"frames": frames, "rest": np.zeros(MEBIBYTE // 2, np.uint8)}))
    body = b"".join(wire.pack({"frames": frames, "rest": np.zeros(MEBIBYTE // 2 + rest, np.uint8)}))
    assert len(body) == limit
    return body


async def send_large_bodies(serving: Serving, clients: int, seconds: float, limit: int) -> Counter[str]:
    """Send from all clients at once, and return the statuses. Every tenth sends one byte more than is allowed."""
    body, end = largest_body(limit), time.monotonic() + seconds
    outcomes: Counter[str] = Counter()

    async def keep_sending(session: aiohttp.ClientSession, body: bytes) -> None:
        while time.monotonic() < end:
            try:
                async with session.post(
                    serving.predictions, data=io.BytesIO(body), headers=serving.headers
                ) as response:
                    await response.read()
                    outcomes[str(response.status)] += 1
            except (aiohttp.ClientError, OSError) as error:
                outcomes[type(error).__name__] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(keep_sending(session, body + b"x" * (i % 10 == 9)) for i in range(clients)))
    return outcomes


async def ping(serving: Serving) -> str:
    """Return the server's answer to GET /ping."""
    async with (
        aiohttp.ClientSession(headers=serving.headers) as session,
        session.get(f"{serving.url}/ping") as response,
    ):
        return await response.text()


def abuse(root: Path, clients: int, seconds: float, config: Path) -> int:
    """Print the answers to large bodies and the memory of the Java process; returns 1 if the server did not cope."""
    with serve_demo(root, config) as serving:
        before = serving.processes()
        java = psutil.Process(before["java"][0])
        limit = int(serving.settings["max_request_size"])
        outcomes = asyncio.run(send_large_bodies(serving, clients, seconds, limit))
        after, answer = serving.processes(), asyncio.run(ping(serving))
        status = Path(f"/proc/{java.pid}/status").read_text()
        peak = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
        allowed = serving.memory_limit
    print(f"{clients} clients, {limit:,} bytes in a request, {seconds:.0f} s")
    print(f"answers by status {dict(sorted(outcomes.items()))}")
    print(f"Java process: peak {peak / MEBIBYTE:,.0f} MiB of {allowed / MEBIBYTE:,.0f} MiB for heap and direct buffers")
    print(f"processes before {before}, after {after}, ping {answer.split()}")
    coped = before == after and "Healthy" in answer and peak < allowed and set(outcomes) <= EXPECTED_OUTCOMES
    print("the server coped" if coped else "THE SERVER DID NOT COPE")
    return 0 if coped else 1


def main() -> int:
    """Run the benchmark that the options name, and return its exit status."""
    parser = command_parser(__doc__)
    benchmark = parser.add_mutually_exclusive_group(required=True)
    benchmark.add_argument("--expiry", action="store_true")
    benchmark.add_argument("--latency", action="store_true")
    benchmark.add_argument("--abuse", action="store_true")
    parser.add_argument("--minutes", type=float, default=4, help="length of --expiry")
    parser.add_argument("--seconds", type=float, help="length of --latency (25) or --abuse (60)")
    parser.add_argument("--in-flight", type=int, default=4, help="requests of --latency at once")
    parser.add_argument("--clients", type=int, default=50, help="clients of --abuse")
    parser.add_argument("--config", type=Path, default=CONFIG, help="TorchServe's settings for --abuse")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if arguments.expiry:
            return expiry(root, arguments.minutes)
        if arguments.latency:
            return latency(root, arguments.seconds or 25, arguments.in_flight)
        return abuse(root, arguments.clients, arguments.seconds or 60, arguments.config)


if __name__ == "__main__":
    run_command(main)
