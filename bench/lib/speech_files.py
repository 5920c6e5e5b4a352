"""Media files with speech, as other programs write them: AAC beside a video stream, MP3, WAV, FLAC."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from synthetic.phrases import SAMPLE_RATE, recording
from synthetic.video_files import FRAMES_PER_SECOND, empty_box, texture

WIDTH, HEIGHT = 160, 90
NOISE = 0.003
"""Standard deviation of the noise, full scale 1. It makes codecs work above the 8 kHz of the voices, too."""

AudioArray = NDArray[np.float32]
"""(channels, N), full scale 1."""


@dataclass(frozen=True)
class Format:
    """How a file stores its audio."""

    suffix: str
    codec: str
    sample_rate: int
    channels: int
    bit_rate: int | None = None
    video: bool = False
    """True if there is a video stream, too."""


MP4 = Format("mp4", "aac", 48_000, 2, 128_000, video=True)
MP3 = Format("mp3", "libmp3lame", 44_100, 2, 128_000)
WAV = Format("wav", "pcm_s16le", 44_100, 1)
FLAC = Format("flac", "flac", 44_100, 1)


def speech(seconds: float, form: Format, seed: int = 0) -> AudioArray:
    """Exactly `seconds` seconds of phrases in changing voices, with independent noise in each channel."""
    samples = recording(random.Random(seed), seconds).samples  # noqa: S311 - a seed, no secret
    resampled = soxr.resample(samples.astype(np.float32) / 32768, SAMPLE_RATE, form.sample_rate)
    voices = resampled[: round(seconds * form.sample_rate)]
    noise = np.random.default_rng(seed).normal(0, NOISE, (form.channels, len(voices)))
    audio: AudioArray = np.clip(voices + noise, -1, 1).astype(np.float32)
    return audio


def write(path: Path, stretches: Iterable[AudioArray], form: Format) -> None:
    """Encode stretches of audio, one after the other, into the file `path`."""
    with av.open(str(path), "w") as file:
        video = _Video(file) if form.video else None
        layout = "stereo" if form.channels == 2 else "mono"
        stream: Any = file.add_stream(form.codec, rate=form.sample_rate, layout=layout)
        if form.bit_rate:
            stream.bit_rate = form.bit_rate
        convert = av.AudioResampler(stream.format.name, layout, form.sample_rate, frame_size=stream.frame_size or 4096)
        written = 0
        for second in _seconds(stretches, form.sample_rate):
            frame = av.AudioFrame.from_ndarray(second, format="fltp", layout=layout)
            frame.sample_rate, frame.time_base, frame.pts = form.sample_rate, Fraction(1, form.sample_rate), written
            written += frame.samples
            for converted in convert.resample(frame):
                file.mux(stream.encode(converted))
            if video:
                video.write_second()
        for converted in convert.resample(None):
            file.mux(stream.encode(converted))
        file.mux(stream.encode())
        if video:
            file.mux(video.stream.encode())


def _seconds(stretches: Iterable[AudioArray], sample_rate: int) -> Iterator[AudioArray]:
    for audio in stretches:
        for at in range(0, audio.shape[1], sample_rate):
            yield np.ascontiguousarray(audio[:, at : at + sample_rate])


class _Video:
    """A video stream that shows a small, moving texture."""

    def __init__(self, file: Any) -> None:
        self.stream = file.add_stream("libx264", rate=FRAMES_PER_SECOND, options={"preset": "ultrafast"})
        self.stream.width, self.stream.height, self.stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        self._file, self._written = file, 0
        canvas = texture(WIDTH + FRAMES_PER_SECOND, HEIGHT).clip(0, 255).astype(np.uint8)
        images = (np.ascontiguousarray(canvas[:, k : k + WIDTH]) for k in range(FRAMES_PER_SECOND))
        self._second = [av.VideoFrame.from_ndarray(image).reformat(format="yuv420p") for image in images]

    def write_second(self) -> None:
        """Write the frames of one more second."""
        for frame in self._second:
            frame.pts, frame.time_base = self._written, Fraction(1, FRAMES_PER_SECOND)
            self._file.mux(self.stream.encode(frame))
            self._written += 1


def copies(path: Path, count: int) -> None:
    """Write `count - 1` files beside `path` that differ in what follows the audio: equal files are transcribed once."""
    for k in range(1, count):
        tail = b"TAG" + str(k).encode().ljust(125, b"\0") if path.suffix == ".mp3" else empty_box(k)  # ID3v1
        path.with_name(f"{path.stem}-{k}{path.suffix}").write_bytes(path.read_bytes() + tail)


def long_library(folder: Path, files: int, seconds: float) -> Path:
    """Write `files` files of `seconds` seconds each into a new folder, one half MP4, the other MP3."""
    folder.mkdir(parents=True)
    for form in (MP4, MP3):
        path = folder / f"{form.suffix}.{form.suffix}"
        write(path, [speech(seconds, form)], form)
        copies(path, files // 2)
    return folder


def short_library(folder: Path, files: int) -> Path:
    """Write WAV and MP3 files into a new folder: 80 % of them of 1 to 10 seconds, the others of 10 to 60."""
    folder.mkdir(parents=True)
    rng = random.Random(0)  # noqa: S311 - a seed, no secret
    audio = speech(600, WAV)
    for k, seconds in enumerate(_lengths(rng, files)):
        form = rng.choice((WAV, MP3))
        first = rng.randrange(audio.shape[1] - round(seconds * form.sample_rate))
        cut = audio[:, first : first + round(seconds * form.sample_rate)]
        write(folder / f"{k:03}.{form.suffix}", [np.repeat(cut, form.channels, axis=0)], form)
    return folder


def _lengths(rng: random.Random, files: int) -> Iterator[float]:
    for _ in range(files):
        yield rng.uniform(1, 10) if rng.random() < 0.8 else rng.uniform(10, 60)
