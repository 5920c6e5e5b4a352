"""Makes files of several video and audio streams, as televisions, cameras and phones write them.

Each video stream has a width and each audio stream a frequency of its own, which tell what was read.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.stream import Disposition

from support.audio import frames, read, tone

RATE = 48_000
UNMARKED = Disposition(0)


class Sound(NamedTuple):
    """An audio stream; one of no seconds has no packets, and one that begins `again` has a pause before that."""

    hertz: float
    disposition: Disposition = UNMARKED
    bit_rate: int = 128_000
    seconds: float = 2
    start: float = 0
    again: float | None = None


class Pictures(NamedTuple):
    """A video stream of 10 frames a second."""

    width: int
    disposition: Disposition = UNMARKED
    frames: int = 20
    codec: str = "mpeg2video"


def write(path: Path, *streams: Sound | Pictures, codec: str = "mp2", **options: str) -> Path:
    """A file of these streams in this order, with options for the container."""
    with av.open(str(path), "w", options=options) as file:
        pending = []
        for wanted in streams:
            if isinstance(wanted, Sound):
                stream = file.add_stream(codec, rate=RATE, layout="mono")
                stream.bit_rate, stream.codec_context.time_base = wanted.bit_rate, Fraction(1, RATE)
                sound = tone(wanted.hertz, wanted.seconds, RATE)
                pieces = [(start, sound) for start in (wanted.start, wanted.again) if start is not None]
                parts = frames(pieces, RATE, "mono", stream.codec_context.format.name) if wanted.seconds else ()
            else:
                stream = file.add_stream(wanted.codec, rate=25, options={"g": "12"})
                stream.width, stream.height, stream.bit_rate = wanted.width, 48, 200_000
                stream.pix_fmt = "yuvj420p" if wanted.codec == "mjpeg" else "yuv420p"
                parts = map(_picture, [wanted.width] * wanted.frames, range(wanted.frames))
            stream.disposition = wanted.disposition
            pending += [(stream, part) for part in parts]
        for stream, part in sorted(pending, key=lambda each: each[1].time):
            file.mux(stream.encode(part))
        for stream in dict.fromkeys(stream for stream, _ in pending):
            file.mux(stream.encode())
    return path


def _picture(width: int, number: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(np.full((48, width, 3), 99, np.uint8))
    frame.pts, frame.time_base = number, Fraction(1, 10)
    return frame


def heard(path: Path) -> int:
    """The frequency of the audio that is read, in Hz."""
    samples = read(path).samples
    return round(int(np.argmax(np.abs(np.fft.rfft(samples)))) * 16_000 / len(samples), -1)


def join_programmes(path: Path, *programmes: Path) -> Path:
    """A transport stream of several, each written with a `service` of its own, whose packets alternate."""
    parts = [[part.read_bytes()[at : at + 188] for at in range(0, part.stat().st_size, 188)] for part in programmes]
    kept = [[packet for packet in part if _identifier(packet) >= 0x100] for part in parts]
    alternating = [part[at] for at in range(max(map(len, kept))) for part in kept if at < len(part)]
    path.write_bytes(_association_table(range(1, 1 + len(parts))) + b"".join(alternating))
    return path


def service(number: int) -> dict[str, str]:
    """Options with which a transport stream has other identifiers than those of other numbers."""
    return {
        "mpegts_service_id": str(number),
        "mpegts_pmt_start_pid": str(0x1000 + number),
        "mpegts_start_pid": str(0x100 * number),
    }


def _identifier(packet: bytes) -> int:
    return int.from_bytes(packet[1:3]) & 0x1FFF


def _association_table(numbers: Sequence[int]) -> bytes:
    """The packet that lists programmes: ISO/IEC 13818-1, section 2.4.4.3."""
    programmes = b"".join(n.to_bytes(2) + (0xE000 | 0x1000 + n).to_bytes(2) for n in numbers)
    section = b"\0" + (0xB000 | len(programmes) + 9).to_bytes(2) + b"\0\1\xc1\0\0" + programmes
    checksum = 0xFFFFFFFF
    for byte in section:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = checksum << 1 & 0xFFFFFFFF ^ (0x04C11DB7 if checksum >> 31 else 0)
    return (b"\x47\x40\0\x10\0" + section + checksum.to_bytes(4)).ljust(188, b"\xff")
