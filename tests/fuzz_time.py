"""Searches for stills that take long to read, and prints the worst of each format.

    PYTHONPATH=handlers:tests .venv/bin/python tests/fuzz_time.py [--seconds 60] [--seed 1] [--keep FOLDER]

It grows good files to a mebibyte by repeating their parts, changes bytes in them, and mends sizes and checksums, so
that libraries do not give up early. Then it goes on from the slowest that it has found. What counts is processor time
in milliseconds for each mebibyte of the body and of what came of it: pixels, for each scan. FOLDER gets
the slowest body of each format.
"""

from __future__ import annotations

import argparse
import io
import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from captions.frame_requests import FrameLimits, FrameReader
from reelscribe.contract.frames import InputSize
from reelscribe.errors import RequestError
from worker.body_file import limited_time
from worker.request_batch import Unread

MEBIBYTE = 2**20
MOST_MS = 200
"""The promise: milliseconds for each mebibyte."""
KEPT = 12
"""The slowest bodies of a format that the search goes on from."""


@dataclass(frozen=True)
class Format:
    """How to make good files, how to cut them into parts, and how to mend what was changed."""

    seeds: Callable[[], list[bytes]]
    parts: Callable[[bytes], Iterator[tuple[int, int]]]
    mend: Callable[[bytes], bytes] = bytes
    words: tuple[bytes, ...] = ()


def jpeg_parts(body: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while at + 4 <= len(body) and body[at] == 0xFF:
        end = at + 2 + int.from_bytes(body[at + 2 : at + 4], "big")
        yield at, end
        at = end


def png_parts(body: bytes) -> Iterator[tuple[int, int]]:
    at = 8
    while at + 12 <= len(body):
        end = at + 12 + int.from_bytes(body[at : at + 4], "big")
        yield at, end
        at = end


def riff_parts(body: bytes) -> Iterator[tuple[int, int]]:
    at = 12
    while at + 8 <= len(body):
        size = int.from_bytes(body[at + 4 : at + 8], "little")
        yield at, at + 8 + size + size % 2
        at += 8 + size + size % 2


def png_mended(body: bytes) -> bytes:
    mended = bytearray(body)
    for begin, end in png_parts(body):
        if end <= len(body):
            mended[end - 4 : end] = struct.pack(">I", zlib.crc32(body[begin + 4 : end - 4]))
    return bytes(mended)


def riff_mended(body: bytes) -> bytes:
    return body[:4] + struct.pack("<I", max(0, len(body) - 8)) + body[8:]


def stills(kind: str, *options: dict[str, object]) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6
        made = []
        for option in options:
            file = io.BytesIO()
            picture.save(file, kind, exif=exif, **option)
            made.append(file.getvalue())
        return made

    return make


TWO = {"save_all": True, "append_images": [Image.new("RGB", (120, 90))]}
FORMATS = {
    "JPEG": Format(
        stills("JPEG", {}, {"progressive": True}, {"icc_profile": bytes(500), "comment": b"x"}),
        jpeg_parts,
        words=(b"\xff", b"\0", b"\xff\xd0", b"\xff\xfe\0\2", b"\xff\xe1\0\x0aExif\0\0II", b"\xff\xda", b"\xff\xca"),
    ),
    "PNG": Format(
        stills("PNG", {}, {"icc_profile": bytes(500)}, TWO),
        png_parts,
        png_mended,
        words=tuple(bytes(4) + name + bytes(4) for name in (b"IDAT", b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf")),
    ),
    "WEBP": Format(
        stills("WEBP", {}, {"lossless": True}, TWO),
        riff_parts,
        riff_mended,
        words=tuple(name + bytes(4) for name in (b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANMF", b"EXIF")),
    ),
}


def grown(rng: random.Random, of: Format, body: bytes, others: list[bytes]) -> bytes:
    """A change of a body: a part, a word or any slice is repeated, left out, or comes from another body."""
    source = rng.choice(others) if rng.random() < 0.3 else body
    parts = [(a, b) for a, b in list(of.parts(source))[:1000] if b <= len(source)]
    begin, end = rng.choice(parts) if parts and rng.random() < 0.7 else sorted(rng.choices(range(len(source) + 1), k=2))
    piece = rng.choice(of.words) if of.words and rng.random() < 0.3 else source[begin:end] or b"\0"
    at = min(rng.choice([begin, end, len(body)]), len(body))
    kind = rng.random()
    if kind < 0.5:
        return body[:at] + piece * max(1, (MEBIBYTE - len(body)) // len(piece)) + body[at:]
    if kind < 0.6:
        return body[:begin] + body[end:]
    if kind < 0.7:
        return body[:at] + piece * rng.choice([1, 2, 100, 1000]) + body[at:]
    changed = bytearray(body)
    for _ in range(rng.choice([1, 2, 8])):
        k = rng.randrange(min(len(changed), rng.choice([64, 1024, MEBIBYTE])))
        changed[k] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(changed)


def milliseconds(body: bytes) -> float:
    """Processor time to read a body as a worker does, for each mebibyte of it and of what came of it."""
    values = 0
    reader = FrameReader(FrameLimits(8, 1024), InputSize(32, 32))
    start = time.thread_time()
    try:
        with limited_time():
            request = reader({"body": body}, {})
        if isinstance(request, Unread):
            with limited_time():
                request.read()
            values = request.values * 3 * max(1, body.count(b"\xff\xda"))
    except RequestError:
        pass
    return 1000 * (time.thread_time() - start) / (max(MEBIBYTE, len(body) + values) / MEBIBYTE)


def search(of: Format, seed: int, go_on: Callable[[int], bool]) -> tuple[float, bytes, int]:
    """Search among bodies of a format.

    Args:
        of: The format.
        seed: Seed of all chances.
        go_on: Whether to try one more, of how many there were.

    Returns:
        Milliseconds a mebibyte of the slowest body, the body, and how many were tried.
    """
    rng, seeds, tried = random.Random(seed), of.seeds(), 0
    found = sorted(((milliseconds(body), body) for body in seeds), reverse=True)
    while go_on(tried):
        tried += 1
        body = rng.choice([*seeds, *(body for _, body in found)])
        for _ in range(rng.choice([1, 1, 2, 3])):
            body = grown(rng, of, body, seeds)
        body = of.mend(body[: 2 * MEBIBYTE])
        cost = milliseconds(body)
        if len(found) < KEPT or cost > found[-1][0]:
            cost = min(cost, milliseconds(body), milliseconds(body))  # others may have used the caches
            found = sorted([*found, (cost, body)], reverse=True)[:KEPT]
    return *found[0], tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    for name, of in FORMATS.items():
        end = time.monotonic() + args.seconds
        cost, body, tried = search(of, args.seed, lambda _, end=end: time.monotonic() < end)
        print(f"{name:5} {cost:6.1f} ms/MiB, the worst of {tried} bodies; it has {len(body)} bytes", flush=True)
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / name.lower()).write_bytes(body)


if __name__ == "__main__":
    main()
