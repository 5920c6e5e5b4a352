"""Media files with speech for benchmarks, as other programs make them: AAC beside pictures, MP3, WAV, FLAC."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from resize import texture
from serving import ROOT

sys.path.insert(0, str(ROOT / "demo"))
from phrases import SAMPLE_RATE, recording

WIDTH, HEIGHT, FPS = 160, 90, 25
NOISE = 0.003
"""Of full scale, so that codecs have to work above the 8 kHz of the voices too."""

Sound = NDArray[np.float32]
"""(channels, N), full scale 1."""


@dataclass(frozen=True)
class Format:
    """How sound is stored."""

    suffix: str
    codec: str
    sample_rate: int
    channels: int
    bit_rate: int | None = None
    pictures: bool = False


MP4 = Format("mp4", "aac", 48_000, 2, 128_000, pictures=True)
MP3 = Format("mp3", "libmp3lame", 44_100, 2, 128_000)
WAV = Format("wav", "pcm_s16le", 44_100, 1)
FLAC = Format("flac", "flac", 44_100, 1)


def speech(seconds: float, form: Format, seed: int = 0) -> Sound:
    """Exactly so many seconds of phrases in changing voices, with noise that is different in each channel."""
    spoken = recording(random.Random(seed), seconds).samples  # noqa: S311 - a seed, no secret
    loud = soxr.resample(spoken.astype(np.float32) / 32768, SAMPLE_RATE, form.sample_rate)[
        : round(seconds * form.sample_rate)
    ]
    noise = np.random.default_rng(seed).normal(0, NOISE, (form.channels, len(loud)))
    sound: Sound = np.clip(loud + noise, -1, 1).astype(np.float32)
    return sound


def write(path: Path, pieces: Iterable[Sound], form: Format) -> None:
    """Encode the pieces, one after the other."""
    with av.open(str(path), "w") as file:
        pictures = _Pictures(file) if form.pictures else None
        layout = "stereo" if form.channels == 2 else "mono"
        stream: Any = file.add_stream(form.codec, rate=form.sample_rate, layout=layout)
        if form.bit_rate:
            stream.bit_rate = form.bit_rate
        convert = av.AudioResampler(stream.format.name, layout, form.sample_rate, frame_size=stream.frame_size or 4096)
        written = 0
        for second in _seconds(pieces, form.sample_rate):
            frame = av.AudioFrame.from_ndarray(second, format="fltp", layout=layout)
            frame.sample_rate, frame.time_base, frame.pts = form.sample_rate, Fraction(1, form.sample_rate), written
            written += frame.samples
            for piece in convert.resample(frame):
                file.mux(stream.encode(piece))
            if pictures:
                pictures.write_second()
        for piece in convert.resample(None):
            file.mux(stream.encode(piece))
        file.mux(stream.encode())
        if pictures:
            file.mux(pictures.stream.encode())


def _seconds(pieces: Iterable[Sound], sample_rate: int) -> Iterator[Sound]:
    for sound in pieces:
        for at in range(0, sound.shape[1], sample_rate):
            yield np.ascontiguousarray(sound[:, at : at + sample_rate])


class _Pictures:
    """A small texture that moves."""

    def __init__(self, file: Any) -> None:
        self.stream = file.add_stream("libx264", rate=FPS, options={"preset": "ultrafast"})
        self.stream.width, self.stream.height, self.stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        self._file, self._shown = file, 0
        canvas = texture(WIDTH + FPS, HEIGHT).clip(0, 255).astype(np.uint8)
        pictures = (np.ascontiguousarray(canvas[:, k : k + WIDTH]) for k in range(FPS))
        self._second = [av.VideoFrame.from_ndarray(picture).reformat(format="yuv420p") for picture in pictures]

    def write_second(self) -> None:
        """25 more of them."""
        for picture in self._second:
            picture.pts, picture.time_base = self._shown, Fraction(1, FPS)
            self._file.mux(self.stream.encode(picture))
            self._shown += 1


def copies(path: Path, count: int) -> None:
    """So many files beside it that differ from it in what follows the sound: copies are transcribed once."""
    for k in range(1, count):
        tail = (16).to_bytes(4, "big") + b"free" + k.to_bytes(8, "big")
        if path.suffix == ".mp3":
            tail = b"TAG" + str(k).encode().ljust(125, b"\0")  # ID3v1
        path.with_name(f"{path.stem}-{k}{path.suffix}").write_bytes(path.read_bytes() + tail)


def long_library(folder: Path, files: int, seconds: float) -> Path:
    """So many files of so many seconds each, one half MP4, the other MP3."""
    folder.mkdir(parents=True)
    for form in (MP4, MP3):
        path = folder / f"{form.suffix}.{form.suffix}"
        write(path, [speech(seconds, form)], form)
        copies(path, files // 2)
    return folder


def short_library(folder: Path, files: int) -> Path:
    """WAV or MP3, 80 % of them of 1 to 10 seconds, the others of up to a minute, cut out of one recording."""
    folder.mkdir(parents=True)
    rng = random.Random(0)  # noqa: S311 - a seed, no secret
    sound = speech(600, WAV)
    for k, seconds in enumerate(_lengths(rng, files)):
        form = rng.choice((WAV, MP3))
        first = rng.randrange(sound.shape[1] - round(seconds * form.sample_rate))
        cut = sound[:, first : first + round(seconds * form.sample_rate)]
        write(folder / f"{k:03}.{form.suffix}", [np.repeat(cut, form.channels, axis=0)], form)
    return folder


def _lengths(rng: random.Random, files: int) -> Iterator[float]:
    for _ in range(files):
        yield rng.uniform(1, 10) if rng.random() < 0.8 else rng.uniform(10, 60)
