"""Where chunks of running speech are cut, what counts as silence, and how fast sound is read.

    .venv/bin/python bench/chunking.py [--minutes 30] [--noise -50] [--rounds 3]

Three tables. Cuts: the share that falls inside a word, and inside a phrase, by how far back a pause is searched for and
how long the quiet window is; phrases with pauses of 0.2 to 1 s, in noise of so many decibels (-200: none). Silence: the
share of 10 s chunks that count as silent, by threshold. Speed: seconds of sound per second of process CPU on one core,
from opening a file to its last chunk, as median and, in brackets, smallest and largest.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from reelscribe.contract.chunking import Chunker, Cutting, is_silent
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import Audio, AudioTask

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))
from phrases import SAMPLE_RATE, random_utterance

LIMITS = (10, 30)
SEARCHES = (0, 1, 2, 3, 5)
WINDOWS = (0.02, 0.05, 0.1, 0.2, 0.3)
PAUSES = (0.2, 1.0)
STARTS = 4
"""So many beginnings of one recording are tried, or there would be few cuts."""
BOUNDARY_SECONDS = 0.08
"""So near to the start of a word, a cut is between words."""
THRESHOLDS = (-80, -70, -60, -50, -40)
SOUND_SECONDS = 120

Sound = NDArray[np.float32]


@dataclass(frozen=True)
class Speech:
    """Running speech, and the samples at which its phrases and words begin and end."""

    samples: SampleArray
    phrases: list[tuple[int, int]]
    word_starts: list[int]

    def is_in_phrase(self, at: int) -> bool:
        """Whether someone is speaking."""
        k = bisect_right(self.phrases, (at, len(self.samples))) - 1
        return k >= 0 and at < self.phrases[k][1]

    def is_in_word(self, at: int) -> bool:
        """Whether it is in the middle of a word."""
        k = bisect_right(self.word_starts, at)
        nearest = min(abs(at - start) for start in self.word_starts[max(0, k - 1) : k + 1])
        return self.is_in_phrase(at) and nearest > BOUNDARY_SECONDS * SAMPLE_RATE


def running_speech(minutes: float, noise_db: float) -> Speech:
    """Phrases in held-out voices, with pauses, in white noise."""
    rng = random.Random(0)  # noqa: S311 - no secret
    parts: list[SampleArray] = []
    phrases, words, at = [], [], 0
    while at < minutes * 60 * SAMPLE_RATE:
        utterance = random_utterance(rng, held_out=True)
        pause = np.zeros(round(rng.uniform(*PAUSES) * SAMPLE_RATE), np.int16)
        phrases.append((at, at + len(utterance.samples)))
        words += [at + start for start in utterance.word_starts]
        parts += [utterance.samples, pause]
        at += len(utterance.samples) + len(pause)
    noise = np.random.default_rng(0).normal(0, 32768 * 10 ** (noise_db / 20), at)
    samples = np.clip(np.concatenate(parts) + noise, -32768, 32767).astype(np.int16)
    return Speech(samples, phrases, words)


def cuts(speech: Speech, limit: int, cutting: Cutting) -> Iterator[int]:
    """Samples at which it is cut, from several beginnings."""
    for start in range(STARTS):
        at = start * limit * SAMPLE_RATE // STARTS
        chunker = Chunker(limit * SAMPLE_RATE, SAMPLE_RATE, cutting)
        for chunk in chunker.push(speech.samples[at:]):
            at += len(chunk)
            yield at


def show_cuts(speech: Speech) -> None:
    """The first table."""
    header = "".join(f"{f'{window} s':>16}" for window in WINDOWS)
    print(f"cuts in a word / in a phrase (%)\n{'limit':>6}{'search':>8}{'cuts':>7}{header}")
    for limit in LIMITS:
        for search in SEARCHES:
            cells, count = "", 0
            for window in WINDOWS:
                found = list(cuts(speech, limit, Cutting(search, window)))
                count = len(found)
                in_words, in_phrases = sum(map(speech.is_in_word, found)), sum(map(speech.is_in_phrase, found))
                cells += f"{f'{100 * in_words / count:.1f} / {100 * in_phrases / count:.1f}':>16}"
            print(f"{limit:>4} s{search:>6} s{count:>7}{cells}")


def show_silence(speech: Speech) -> None:
    """The second table."""
    rng, ten = np.random.default_rng(1), 10 * SAMPLE_RATE
    clean = running_speech(2, -200).samples
    sounds = {
        "digital silence": np.zeros(ten),
        "dither (triangular, 1 step)": np.rint(rng.random(ten) - rng.random(ten)),
        "hum, 50 Hz at -66 dB": 23 * np.sin(2 * np.pi * 50 * np.arange(ten) / SAMPLE_RATE),
        **{f"noise at {db} dB": rng.normal(0, 32768 * 10 ** (db / 20), 6 * ten) for db in (-75, -65, -55)},
        **{f"speech at {db} dB": clean * 10 ** (db / 20) for db in (0, -20, -30, -40)},
        "speech as above": speech.samples[: 6 * ten],
    }
    print(f"\nsilent chunks (%)\n{'':30}" + "".join(f"{f'{threshold} dB':>9}" for threshold in THRESHOLDS))
    for name, sound in sounds.items():
        chunks = np.split(np.rint(sound).astype(np.int16), range(ten, len(sound), ten))
        shares = [np.mean([is_silent(chunk, SAMPLE_RATE, threshold) for chunk in chunks]) for threshold in THRESHOLDS]
        print(f"{name:30}" + "".join(f"{100 * share:>9.0f}" for share in shares))


def write(path: Path, codec: str, rate: int, layout: str, pictures: bool) -> None:
    """Noise that comes and goes as speech does, and pictures of grain, if any."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        sound = file.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(sound, av.AudioStream)
        if pictures:
            video = file.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
            assert isinstance(video, av.VideoStream)
            file.mux(grain(video))
        convert = av.AudioResampler(format=sound.codec_context.format.name, layout=layout, rate=rate)
        loudness = 0.1 * np.sin(np.arange(rate) / rate * 8 * np.pi) ** 2
        for second in range(SOUND_SECONDS):
            samples = (rng.normal(0, 1, (len(sound.codec_context.layout.channels), rate)) * loudness).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, second * rate, Fraction(1, rate)
            for converted in convert.resample(frame):
                file.mux(sound.encode(converted))
        file.mux(sound.encode())


def grain(video: av.VideoStream) -> list[av.Packet[Any]]:
    """Pictures for as long as there is sound."""
    rng = np.random.default_rng(0)
    video.width, video.height, video.pix_fmt = 640, 360, "yuv420p"
    packets: list[av.Packet[Any]] = []
    for number in range(25 * SOUND_SECONDS):
        picture = rng.integers(0, 256, (36, 64, 3), np.uint8).repeat(10, 0).repeat(10, 1)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        packets += video.encode(frame)
    return [*packets, *video.encode()]


def seconds_per_second(path: Path) -> float:
    """Of process CPU."""
    start = time.process_time()
    with Audio(AudioTask(str(path), SAMPLE_RATE, 30 * SAMPLE_RATE)) as audio:
        for _ in audio.chunks():
            pass
        return audio.read_seconds / (time.process_time() - start)


def show_speed(rounds: int) -> None:
    """The third table."""
    print(f"\n{'seconds of sound per CPU second':34}")
    with tempfile.TemporaryDirectory() as folder:
        for name, codec, rate, layout, pictures in (
            ("44.1 kHz stereo.mp3", "libmp3lame", 44_100, "stereo", False),
            ("48 kHz stereo, with pictures.mp4", "aac", 48_000, "stereo", True),
            ("16 kHz mono.wav", "pcm_s16le", 16_000, "mono", False),
            ("96 kHz 24 bits stereo.flac", "flac", 96_000, "stereo", False),
        ):
            path = Path(folder) / name
            write(path, codec, rate, layout, pictures)
            speeds = [seconds_per_second(path) for _ in range(rounds)]
            print(f"{name:34}{f'{median(speeds):.0f} [{min(speeds):.0f}-{max(speeds):.0f}]':>18}", flush=True)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--noise", type=float, default=-50, help="decibels; 0 is full scale")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    speech = running_speech(options.minutes, options.noise)
    show_cuts(speech)
    show_silence(speech)
    show_speed(options.rounds)


if __name__ == "__main__":
    main()
