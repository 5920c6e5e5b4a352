"""What a server does over time, under load and under attack.

    .venv/bin/python bench/operations.py --expiry [--minutes 4]
    .venv/bin/python bench/operations.py --latency [--seconds 25] [--in-flight 4]
    .venv/bin/python bench/operations.py --attacks

--expiry: a bulk run against a server whose tokens live for a minute: how many requests were refused and sent again, how
often the key was renewed, and whether anything was lost.

--latency: how long GET /ping and GET /models/NAME take, from a process each, on an idle server and while two workers
answer bodies of 8 MB, sent by a process of its own as fast as they are answered; exit status 1 if the 99th percentile
of one of them is over 100 ms under that load.

--attacks: every attack of attacks.py and what the server answered; exit status 1 if one was not refused.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import aiohttp
import numpy as np

from attacks import (
    FLOODS,
    HELD,
    MALFORMED,
    MODEL_API_OFF,
    PATHS,
    REGISTRATIONS,
    TOKENS,
    Attack,
    Target,
    planted,
    was_connected,
)
from delivery import make_sources
from pings import pinging
from reelscribe import wire
from reelscribe.archive.build import build as archive
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.run.bulk import BulkRun, Captions, Summary
from reelscribe.run.options import CaptionOptions
from serving import ROOT, Serving, serve, serve_emulated

CONFIG = ROOT / "config.properties"
BODY_FRAMES = 53
"""Of 224 x 224: 8 MB."""
FRAMES_PER_SECOND = 25
CLIP_FRAMES = 150
MOST_MILLISECONDS = 100.0
"""That 99 of 100 answers may take under full load."""


async def annotate(serving: Serving, folder: Path, out: Path) -> Summary:
    """A run that renews its key by itself."""
    credentials = Credentials(serving.instance.key_file, serving.settings["management_address"])
    async with CaptionClient([Server(serving.url, credentials)], serving.model) as client:
        options = CaptionOptions(decode_workers=1, frames_per_request=5)
        return await BulkRun([Captions(client, options)], out).run([str(folder)])


def expiry(root: Path, minutes: float) -> int:
    """Print what came of a run over the ends of several tokens."""
    frames = int(minutes * 60 * FRAMES_PER_SECOND)
    folder = make_sources(root / "library", 320, 180, CLIP_FRAMES, frames)
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
    return 0 if summary.failed == 0 and summary.snapshot.frames == frames // CLIP_FRAMES * CLIP_FRAMES else 1


async def load(url: str, headers: dict[str, str], in_flight: int, seconds: float) -> None:
    """Bodies of 8 MB as fast as they are answered; prints how many."""
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


def _load(url: str, headers: dict[str, str], in_flight: int, seconds: float) -> None:
    asyncio.run(load(url, headers, in_flight, seconds))


@contextmanager
def measured(label: str, serving: Serving) -> Iterator[list[float]]:
    """Print how long both requests took while the block ran; then the list holds their 99th percentiles, in ms."""
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
        print(f"{label:10} {name:10} {len(milliseconds):6} {half:8.1f} {most:8.1f} {max(milliseconds):8.1f}")


def latency(root: Path, seconds: float, in_flight: int) -> int:
    """Print the table; 1 if answers took too long."""
    with serve_emulated(root, CONFIG, frames_per_second=1e6, workers=2) as serving:
        arguments = (serving.predictions, serving.headers, in_flight, seconds)
        print(f"{'':10} {'':10} {'asked':>6} {'p50, ms':>8} {'p99, ms':>8} {'max, ms':>8}")
        with measured("idle", serving):
            time.sleep(seconds / 2)
        process = get_context("spawn").Process(target=_load, args=arguments)
        with measured("full load", serving) as percentiles:
            process.start()
            process.join()
    return int(process.exitcode != 0 or max(percentiles) > MOST_MILLISECONDS)


def attempts(target: Target, attacks: Iterable[Attack]) -> int:
    """Print what came of each; how many were not refused."""
    failed = 0
    for attack in attacks:
        outcome = attack.send(target)
        refused = outcome in attack.refusals
        failed += not refused
        print(f"{'refused' if refused else 'NOT REFUSED':12} {outcome or 'hung up':40} {attack}")
    print(f"{'':12} {'then an ordinary request: ' + target.ordinary()}")
    return failed


def attack_all(root: Path) -> int:
    """Print the list."""
    weights = str(ROOT / "demo" / "models" / "captioner")
    mar = archive.build("captioner", "caption", weights, root / "store", handlers=ROOT / "handlers")
    (root / "outside").mkdir()
    (root / "outside" / "x.mar").write_bytes(mar.read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        places = {"outside": root / "outside", "planted": planted(root / "planted")}
        places["listener"] = listener.getsockname()[1]
        with serve(root, "captioner", CONFIG) as serving:
            attacks = [*TOKENS, *MODEL_API_OFF, *PATHS, *MALFORMED, *FLOODS]
            failed = attempts(Target.of(serving, **places), attacks)
        small = {"enable_model_api": "true", "vmargs": "-Xmx512m -XX:MaxDirectMemorySize=192m"}
        with serve(root, "captioner", CONFIG, **small) as serving:
            failed += attempts(Target.of(serving, **places), [*REGISTRATIONS, HELD])
        assert not was_connected(listener)
    return int(failed > 0)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--expiry", action="store_true")
    what.add_argument("--latency", action="store_true")
    what.add_argument("--attacks", action="store_true")
    parser.add_argument("--minutes", type=float, default=4, help="of --expiry")
    parser.add_argument("--seconds", type=float, default=25, help="of --latency")
    parser.add_argument("--in-flight", type=int, default=4, help="requests of --latency at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if arguments.expiry:
            return expiry(root, arguments.minutes)
        if arguments.latency:
            return latency(root, arguments.seconds, arguments.in_flight)
        return attack_all(root)


if __name__ == "__main__":
    sys.exit(main())
