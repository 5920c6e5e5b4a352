"""How much faster is a worker whose threads read requests while its device computes, and how many should they be?

    scripts/bench reader_threads [--bodies sounds] [--joined 1 8] [--threads 0 1 2 4 8 16] [--speed 1500]
                          [--requests 48] [--rounds 5] [--json FILE]

A real TorchServe with one worker for each number of threads, and clients that keep its queue full. The models of the
workers only sleep, as long as a device of the speed below or of --speed would compute, in device batches of 4 chunks
or frames. Each thread has a decode process for media files. With 0 threads, a worker reads all requests of a call
before it computes. --joined is how many requests TorchServe joins for a call, with a table for each number; calls
follow each other, and with 1, each has one request.

    sounds   FLAC of 60 s, 44.1 kHz stereo; 1,500 s of audio in a second
    short    FLAC of 1 to 2 s, 16 kHz mono; likewise
    mixed    one of the long ones for each four of the short ones
    videos   H.264 of 10 s and 640x360; 100 frames in a second, of 10 that are taken of each
    stills   JPEG photos of 1920x1080; 400 frames in a second
    arrays   32 frames of 224x224, as our own client sends them, with nothing to decode; 20,000 frames in a second, so
             that reading would show

Every round runs each number of threads once. The tables show what was answered in a second, the ratio to no threads in
the same round, and of all rounds the median milliseconds until the shortest bodies were answered, and the milliseconds
of the server's answers to /ping meanwhile.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from time import monotonic

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
from synthetic.video_files import FRAMES_PER_SECOND, texture, write_video

DEVICE_BATCH = 4
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
    speed: float
    """Units that the device does in a second."""
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


def mixed_files() -> list[Body]:
    """A long file, and then four short ones."""
    (long,) = flac_files(STEREO, [SOUND_SECONDS])
    return [long, *flac_files(AT_MODEL_RATE, [1.0, 1.2, 1.4, 1.6])]


def videos() -> list[Body]:
    """H.264 files, of which a frame for each second is taken."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        write_video(path, 640, 360, 10 * FRAMES_PER_SECOND)
        return [(path.read_bytes(), 10.0)]


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
        1500,
        "RTFx",
        "FLAC files of 60 s, 44.1 kHz stereo",
        lambda: flac_files(STEREO, [SOUND_SECONDS] * 3),
    ),
    "short": Kind(
        "emulated_speech_handler",
        1500,
        "RTFx",
        "FLAC files of 1 to 2 s, 16 kHz mono",
        lambda: flac_files(AT_MODEL_RATE, [1 + k / 20 for k in range(20)]),
    ),
    "mixed": Kind(
        "emulated_speech_handler", 1500, "RTFx", "FLAC files of 60 s, and four times as many of 1 to 2 s", mixed_files
    ),
    "videos": Kind("emulated_frames_handler", 100, "frames/s", "H.264 files of 10 s, 640x360", videos),
    "stills": Kind("emulated_frames_handler", 400, "frames/s", "JPEG photos of 1920x1080", photos),
    "arrays": Kind("emulated_frames_handler", 20_000, "frames/s", "arrays of 32 frames of 224x224", frames),
}


@dataclass
class Measured:
    """What was measured of one number of threads."""

    rates: list[float] = field(default_factory=list)
    """Units that were answered in a second, in each round."""
    short: list[float] = field(default_factory=list)
    """Milliseconds from a request with one of the shortest bodies to its answer."""
    pings: list[float] = field(default_factory=list)
    """Milliseconds of the answers to /ping."""


async def post_all(serving: Serving, bodies: list[Body], in_flight: int, requests: int, measured: Measured) -> None:
    """Send requests, and add what was measured, from the first request to the last answer."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {**serving.headers, "Content-Type": "application/octet-stream"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def send(body: bytes) -> None:
            async with session.post(serving.predictions, data=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

        async def keep_sending() -> None:
            for body, units in left:
                sent = monotonic()
                await send(body)
                answered.append(units)
                if units < 2 * shortest:
                    measured.short.append(1000 * (monotonic() - sent))

        answered: list[float] = []
        shortest = min(units for _, units in bodies)
        left = islice(cycle(bodies), requests)
        began = monotonic()
        await asyncio.gather(*(keep_sending() for _ in range(in_flight)))
        measured.rates.append(sum(answered) / (monotonic() - began))


def measure(
    kind: Kind, threads: list[int], speed: float, joined: int, requests: int, rounds: int
) -> dict[int, Measured]:
    """What was measured of each number of threads."""
    bodies = kind.bodies()
    settings = {
        f"threads-{count}": {"speed": speed, "read_threads": count, "device_batch": DEVICE_BATCH} for count in threads
    }
    measured = {count: Measured() for count in threads}
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_variants(Path(folder), kind.handler, settings, batch_size=joined) as servings,
    ):
        served = dict(zip(threads, servings.values(), strict=True))
        for serving in served.values():
            asyncio.run(post_all(serving, bodies, joined, 2 * joined, Measured()))  # warms up
        for k in range(rounds):
            # In reverse order every second time, so that none always follows the same other one.
            for count in threads if k % 2 == 0 else reversed(threads):
                serving, one = served[count], measured[count]
                with pinging(serving.url, token=serving.token) as pings:
                    asyncio.run(post_all(serving, bodies, 2 * joined, requests, one))
                one.pings += pings
    return measured


def table(kind: Kind, joined: int, results: dict[int, Measured]) -> Report:
    """The table of one kind of bodies."""
    report = Report(
        f"{kind.title}, up to {joined} in a call",
        ("threads", kind.unit, "ratio to the first", "shortest p50, ms", "ping p50, ms", "p99", "longest"),
    )
    first = Spread(tuple(next(iter(results.values())).rates))
    for count, one in results.items():
        spread = Spread(tuple(one.rates))
        pings = np.percentile(one.pings, [50, 99, 100]).tolist()
        report.add(str(count), spread, spread.over(first), float(np.median(one.short)), *pings)
    return report


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--bodies", choices=KINDS, default="sounds")
    parser.add_argument("--joined", type=int, nargs="+", default=[8], help="requests that TorchServe joins for a call")
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--speed", type=float, help="units that the device does in a second; the default is above")
    parser.add_argument("--requests", type=int, default=48, help="requests of a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    add_json_option(parser)
    options = parser.parse_args()
    kind = KINDS[options.bodies]
    speed = options.speed or kind.speed
    tables = []
    for joined in options.joined:
        results = measure(kind, options.threads, speed, joined, options.requests, options.rounds)
        tables.append(table(kind, joined, results))
    publish(tables, options.json)


if __name__ == "__main__":
    run_command(main)
