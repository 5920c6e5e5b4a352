"""Makes and reads audio for tests."""

import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

from reelscribe.contract.source import AudioInfo
from reelscribe.decode.audio import Audio, AudioChunk, AudioTask

RATE = 16_000
"""Sample rate of the models, in Hz; audio is read at this rate."""

CHUNK = 10 * RATE


class Read(NamedTuple):
    """A file, read to its end."""

    info: AudioInfo | None
    chunks: list[AudioChunk]
    samples: np.ndarray
    why_incomplete: str | None


def read(path: Path, first: int = 0, chunk_samples: int = CHUNK, **options) -> Read:
    """All chunks from sample `first` on; `samples` are those of all chunks, one after the other."""
    with Audio(AudioTask(str(path), RATE, chunk_samples, **options)) as audio:
        chunks = list(audio.chunks(first))
        samples = np.concatenate([np.empty(0, np.int16), *(chunk.samples for chunk in chunks)])
        return Read(audio.info, chunks, samples, audio.why_incomplete)


def tone(hertz: float, seconds: float, rate: int = RATE, level: float = 0.5) -> np.ndarray:
    """(N,) float32, full scale 1."""
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def noise(seconds: float, seed: int) -> np.ndarray:
    """Return noise that swells and fades, (N,) float32, at RATE."""
    rng = np.random.default_rng(seed)
    swell = np.sin(np.arange(round(seconds * RATE)) / 3000 * (1 + seed))
    return (0.1 * swell * rng.standard_normal(len(swell))).astype(np.float32)


def sweep(seconds: float, rate: int = RATE, level: float = 0.5) -> np.ndarray:
    """From 200 to 2000 Hz, as `tone`."""
    at = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * (200 + 900 * at / seconds) * at)).astype(np.float32)


def decibels(samples: np.ndarray) -> float:
    """RMS of int16 samples; 0 is full scale."""
    return 20 * float(np.log10(np.sqrt(np.mean(samples.astype(np.float64) ** 2)) / 32768 + 1e-9))


def write(
    path: Path,
    samples: np.ndarray,
    rate: int = RATE,
    codec: str = "pcm_s16le",
    layout: str = "mono",
    *,
    start: float = 0,
    container: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    file_format: str | None = None,
) -> None:
    """A file with `samples`, (N,) or (channels, N) float32, whose presentation times begin with `start` seconds."""
    pieces = [(start, samples)]
    write_pieces(path, pieces, rate, codec, layout, container=container, options=options, file_format=file_format)


def write_pieces(
    path: Path,
    pieces: Iterable[tuple[float, np.ndarray]],
    rate: int = RATE,
    codec: str = "pcm_s16le",
    layout: str = "mono",
    *,
    container: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    file_format: str | None = None,
) -> None:
    """As `write`, of pieces with a start each, which need not follow from one another."""
    with av.open(str(path), "w", format=file_format, options=container or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout, options=options or {})
        stream.codec_context.time_base = Fraction(1, rate)
        for frame in frames(pieces, rate, layout, stream.codec_context.format.name):
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def frames(
    pieces: Iterable[tuple[float, np.ndarray]], rate: int, layout: str, sample_format: str
) -> Iterable[av.AudioFrame]:
    """Frames of 1152 samples at most."""
    convert = av.AudioResampler(format=sample_format, layout=layout, rate=rate)
    for start, samples in pieces:
        for at in range(0, samples.shape[-1], 1152):
            part = np.atleast_2d(samples)[:, at : at + 1152].T.reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), format="flt", layout=layout)
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = round(start * rate) + at
            yield from convert.resample(frame)


def wav(data: bytes, channels: int = 1, rate: int = RATE, bits: int = 16, kind: int = 1) -> bytes:
    """A WAV file whose header says just that; `kind` 1: integers, 3: floating point."""
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * block % 2**32, block % 2**16, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def caf(samples: np.ndarray, labels: Iterable[int], rate: int = RATE) -> bytes:
    """A Core Audio file of (N, channels) int16 that says by Apple's numbers which speaker each channel is for."""
    labels = list(labels)
    chunks = {
        b"desc": struct.pack(">d4sIIIII", rate, b"lpcm", 2, 2 * len(labels), 1, len(labels), 16),
        b"chan": struct.pack(">III", 0, 0, len(labels)) + b"".join(struct.pack(">II3f", n, 0, 0, 0, 0) for n in labels),
        b"data": struct.pack(">I", 0) + samples.astype("<i2").tobytes(),
    }
    return b"caff\0\1\0\0" + b"".join(name + struct.pack(">q", len(body)) + body for name, body in chunks.items())
