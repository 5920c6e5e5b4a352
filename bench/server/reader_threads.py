"""How much faster is a worker whose threads read requests while its device computes, and how many should they be?

    scripts/bench reader_threads [--bodies sounds] [--joined 8] [--threads 0 1 2 4 8 16] [--shared 2 6]
                          [--requests 48] [--rounds 5] [--json FILE]

A real TorchServe with one worker for each number of threads, and clients that keep its queue full. The models of the
workers only sleep, as long as a device of the speed below would compute, in device batches of 8 chunks or frames. With
0 threads, a worker reads all requests of a call before it computes. --joined is how many requests TorchServe joins for
a call. --shared are sizes of a pool that both reads and computes, for sounds alone. 6 is that of Python's default pool
on two cores.

    sounds   FLAC of 60 s, 44.1 kHz stereo; 2,000 s of audio in a second
    short    FLAC of 1 to 2 s, 16 kHz mono; likewise
    stills   JPEG photos of 1920x1080; 400 frames in a second
    arrays   32 frames of 224x224, as our own client sends them, with nothing to decode; 20,000 frames in a second, so
             that reading would show

Every round runs each number of threads once. The tables show what was answered in a second, the ratio to no threads in
the same round, and the milliseconds of the server's answers to /ping meanwhile, of all rounds.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import numpy as np
import soundfile
from PIL import Image

from fakes.servers import serve_variants
from lib.command import add_json_option, command_parser, run_command
from lib.delays import pinging
from lib.report import Report, Spread, publish
from lib.speech_files import FLAC, Format, speech
from reelscribe import wire
from servers.torchserve import Serving
from synthetic.video_files import texture

DEVICE_BATCH = 8
SOUND_SECONDS = 60.0
STEREO = replace(FLAC, channels=2)
AT_MODEL_RATE = replace(FLAC, sample_rate=16_000)

Body = tuple[bytes, float]
"""A body, and how many units it has."""


@dataclass(frozen=True)
class Kind:
    """A kind of bodies."""

    handler: str
    """The file in fakes/ that answers them."""
    settings: dict[str, Any]
    """Its settings: the speed of the device."""
    unit: str
    """The unit that is counted for each second."""
    title: str
    bodies: Callable[[], list[Body]]
    """Makes some bodies, which are sent in turns."""


def flac_files(form: Format, lengths: list[float]) -> list[Body]:
    """FLAC files of these lengths, in seconds."""
    audio = speech(SOUND_SECONDS + 2, form).T
    bodies = []
    for k, seconds in enumerate(lengths):
        first = k * form.sample_rate // len(lengths)
        file = io.BytesIO()
        piece = audio[first : first + round(seconds * form.sample_rate)]
        soundfile.write(file, piece, form.sample_rate, format="FLAC", subtype="PCM_16")
        bodies.append((file.getvalue(), seconds))
    return bodies


def photos() -> list[Body]:
    """JPEG photos with detail of all scales."""
    picture = np.clip(texture(1920, 1080), 0, 255).astype(np.uint8)
    files = [io.BytesIO() for _ in range(4)]
    for k, file in enumerate(files):
        Image.fromarray(np.roll(picture, 100 * k, axis=1)).save(file, "JPEG", quality=90)
    return [(file.getvalue(), 1.0) for file in files]


def frames() -> list[Body]:
    """32 frames of the model's size."""
    return [(b"".join(wire.pack({"frames": np.zeros((32, 224, 224, 3), np.uint8)})), 32.0)]


KINDS = {
    "sounds": Kind(
        "emulated_speech_handler",
        {"speed": 2000},
        "RTFx",
        "FLAC files of 60 s, 44.1 kHz stereo",
        lambda: flac_files(STEREO, [SOUND_SECONDS] * 3),
    ),
    "short": Kind(
        "emulated_speech_handler",
        {"speed": 2000},
        "RTFx",
        "FLAC files of 1 to 2 s, 16 kHz mono",
        lambda: flac_files(AT_MODEL_RATE, [1 + k / 20 for k in range(20)]),
    ),
    "stills": Kind(
        "emulated_frames_handler", {"frames_per_second": 400}, "frames/s", "JPEG photos of 1920x1080", photos
    ),
    "arrays": Kind(
        "emulated_frames_handler", {"frames_per_second": 20_000}, "frames/s", "arrays of 32 frames of 224x224", frames
    ),
}


async def rate(serving: Serving, bodies: list[Body], in_flight: int, requests: int) -> float:
    """Units that are answered in a second, from the first request to the last answer."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {**serving.headers, "Content-Type": "application/octet-stream"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def send(body: bytes) -> None:
            async with session.post(serving.predictions, data=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

        async def keep_sending() -> None:
            for body, units in left:
                await send(body)
                answered.append(units)

        answered: list[float] = []
        left = islice(cycle(bodies), requests)
        began = monotonic()
        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        return sum(answered) / (monotonic() - began)


def variants(kind: Kind, threads: list[int], shared: list[int]) -> dict[str, dict[str, Any]]:
    """The settings of the workers that are compared, by the names of their models."""
    own = {f"own-{count}": {"read_threads": count} for count in threads}
    both = {f"shared-{count}": {"read_threads": count, "compute_in_read_threads": True} for count in shared}
    return {
        name: {**kind.settings, **settings, "device_batch": DEVICE_BATCH} for name, settings in (own | both).items()
    }


def measure(
    kind: Kind, settings: dict[str, dict[str, Any]], joined: int, requests: int, rounds: int
) -> dict[str, tuple[Spread, list[float]]]:
    """For each variant, units in a second in each round, and the milliseconds of all answers to /ping."""
    bodies = kind.bodies()
    rates: dict[str, list[float]] = defaultdict(list)
    milliseconds: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_variants(Path(folder), kind.handler, settings, batch_size=joined) as servings,
    ):
        for serving in servings.values():
            asyncio.run(rate(serving, bodies, joined, 2 * joined))  # warms up
        for k in range(rounds):
            # In reverse order every second time, so that none always follows the same other one.
            for name in servings if k % 2 == 0 else reversed(servings):
                serving = servings[name]
                with pinging(serving.url, token=serving.token) as pings:
                    rates[name].append(asyncio.run(rate(serving, bodies, 2 * joined, requests)))
                milliseconds[name] += pings
    return {name: (Spread(tuple(values)), milliseconds[name]) for name, values in rates.items()}


def table(kind: Kind, joined: int, results: dict[str, tuple[Spread, list[float]]]) -> Report:
    """The table of one kind of bodies."""
    report = Report(
        f"{kind.title}, up to {joined} in a call",
        ("threads", kind.unit, "ratio to the first", "ping p50, ms", "p99", "longest"),
    )
    first, _ = next(iter(results.values()))
    for name, (spread, pings) in results.items():
        report.add(name.replace("-", " "), spread, spread.over(first), *np.percentile(pings, [50, 99, 100]).tolist())
    return report


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--bodies", choices=KINDS, default="sounds")
    parser.add_argument("--joined", type=int, default=8, help="requests that TorchServe joins for a call")
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--shared", type=int, nargs="*", default=[], help="sizes of pools that also compute")
    parser.add_argument("--requests", type=int, default=48, help="requests of a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    add_json_option(parser)
    options = parser.parse_args()
    if options.shared and KINDS[options.bodies].handler != "emulated_speech_handler":
        parser.error("--shared: expected --bodies sounds or short")
    kind = KINDS[options.bodies]
    settings = variants(kind, options.threads, options.shared)
    results = measure(kind, settings, options.joined, options.requests, options.rounds)
    publish([table(kind, options.joined, results)], options.json)


if __name__ == "__main__":
    run_command(main)
