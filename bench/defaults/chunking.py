"""Where are chunks of running speech cut, what counts as silence, and how fast is audio read?

    scripts/bench defaults/chunking [--minutes 30] [--noise -50] [--rounds 3]

There are three tables:

- Cuts: the percentage of cuts inside a word and inside a phrase, by how far back a pause is searched for and how long
  the quiet window is. The phrases have pauses of 0.2 to 1 s, and there is noise of so many decibels (-200: no noise).
- Silence: the percentage of chunks of 10 s that count as silent, by threshold.
- Speed: seconds of audio per second of process CPU on one core, from opening a file to its last chunk, as median and,
  in brackets, smallest and largest.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from lib.command import command_parser, run_command
from lib.report import Spread
from reelscribe.contract.chunking import Chunker, Cutting
from reelscribe.contract.speech import SampleArray
from reelscribe.decode.audio import Audio, AudioTask, is_silent
from synthetic.phrases import SAMPLE_RATE, random_utterance

LIMITS = (10, 30)
SEARCHES = (0, 1, 2, 3, 5)
WINDOWS = (0.02, 0.05, 0.1, 0.2, 0.3)
PAUSES = (0.2, 1.0)
STARTS = 4
"""The recording is cut from several starting points, as one would give few cuts."""
BOUNDARY_SECONDS = 0.08
"""A cut so near to the start of a word counts as between words."""
THRESHOLDS = (-80, -70, -60, -50, -40)
FILE_SECONDS = 120
"""Length of the files of the third table."""


@dataclass(frozen=True)
class Speech:
    """Running speech, and the samples at which its phrases begin and end and its words begin."""

    samples: SampleArray
    phrases: list[tuple[int, int]]
    word_starts: list[int]

    def is_in_phrase(self, at: int) -> bool:
        """Return whether sample `at` is in a phrase."""
        k = bisect_right(self.phrases, (at, len(self.samples))) - 1
        return k >= 0 and at < self.phrases[k][1]

    def is_in_word(self, at: int) -> bool:
        """Return whether sample `at` is in the middle of a word."""
        k = bisect_right(self.word_starts, at)
        nearest = min(abs(at - start) for start in self.word_starts[max(0, k - 1) : k + 1])
        return self.is_in_phrase(at) and nearest > BOUNDARY_SECONDS * SAMPLE_RATE


def running_speech(minutes: float, noise_db: float) -> Speech:
    """Phrases by voices that training never used, with pauses, in white noise."""
    rng = random.Random(0)  # noqa: S311 - no secret
    stretches: list[SampleArray] = []
    phrases, words, at = [], [], 0
    while at < minutes * 60 * SAMPLE_RATE:
        utterance = random_utterance(rng, held_out=True)
        pause = np.zeros(round(rng.uniform(*PAUSES) * SAMPLE_RATE), np.int16)
        phrases.append((at, at + len(utterance.samples)))
        words += [at + start for start in utterance.word_starts]
        stretches += [utterance.samples, pause]
        at += len(utterance.samples) + len(pause)
    noise = np.random.default_rng(0).normal(0, 32768 * 10 ** (noise_db / 20), at)
    samples = np.clip(np.concatenate(stretches) + noise, -32768, 32767).astype(np.int16)
    return Speech(samples, phrases, words)


def cuts(speech: Speech, limit: int, cutting: Cutting) -> Iterator[int]:
    """Yield the samples at which the speech is cut, from several starting points."""
    for start in range(STARTS):
        at = start * limit * SAMPLE_RATE // STARTS
        chunker = Chunker(limit * SAMPLE_RATE, SAMPLE_RATE, cutting)
        for chunk in chunker.push(speech.samples[at:]):
            at += len(chunk)
            yield at


def print_cuts(speech: Speech) -> None:
    """Print the first table."""
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


def print_silence(speech: Speech) -> None:
    """Print the second table."""
    rng, ten = np.random.default_rng(1), 10 * SAMPLE_RATE
    clean = running_speech(2, -200).samples
    signals = {
        "digital silence": np.zeros(ten),
        "dither (triangular, 1 step)": np.rint(rng.random(ten) - rng.random(ten)),
        "hum, 50 Hz at -66 dB": 23 * np.sin(2 * np.pi * 50 * np.arange(ten) / SAMPLE_RATE),
        **{f"noise at {db} dB": rng.normal(0, 32768 * 10 ** (db / 20), 6 * ten) for db in (-75, -65, -55)},
        **{f"speech at {db} dB": clean * 10 ** (db / 20) for db in (0, -20, -30, -40)},
        "speech as above": speech.samples[: 6 * ten],
    }
    print(f"\nsilent chunks (%)\n{'':30}" + "".join(f"{f'{threshold} dB':>9}" for threshold in THRESHOLDS))
    for name, signal in signals.items():
        chunks = np.split(np.rint(signal).astype(np.int16), range(ten, len(signal), ten))
        shares = [np.mean([is_silent(chunk, SAMPLE_RATE, threshold) for chunk in chunks]) for threshold in THRESHOLDS]
        print(f"{name:30}" + "".join(f"{100 * share:>9.0f}" for share in shares))


def write(path: Path, codec: str, rate: int, layout: str, with_video: bool) -> None:
    """Write a file with noise whose volume changes as that of speech does, and perhaps a video stream of noise."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        audio = file.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(audio, av.AudioStream)
        if with_video:
            video = file.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
            assert isinstance(video, av.VideoStream)
            file.mux(noisy_frames(video))
        convert = av.AudioResampler(format=audio.codec_context.format.name, layout=layout, rate=rate)
        loudness = 0.1 * np.sin(np.arange(rate) / rate * 8 * np.pi) ** 2
        for second in range(FILE_SECONDS):
            samples = (rng.normal(0, 1, (len(audio.codec_context.layout.channels), rate)) * loudness).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, second * rate, Fraction(1, rate)
            for converted in convert.resample(frame):
                file.mux(audio.encode(converted))
        file.mux(audio.encode())


def noisy_frames(video: av.VideoStream) -> list[av.Packet[Any]]:
    """Packets of a video stream as long as the audio."""
    rng = np.random.default_rng(0)
    video.width, video.height, video.pix_fmt = 640, 360, "yuv420p"
    packets: list[av.Packet[Any]] = []
    for number in range(25 * FILE_SECONDS):
        image = rng.integers(0, 256, (36, 64, 3), np.uint8).repeat(10, 0).repeat(10, 1)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        packets += video.encode(frame)
    return [*packets, *video.encode()]


def seconds_per_second(path: Path) -> float:
    """Seconds of audio that a second of process CPU reads."""
    start = time.process_time()
    with Audio(AudioTask(str(path), SAMPLE_RATE, 30 * SAMPLE_RATE)) as audio:
        for _ in audio.chunks():
            pass
        return audio.read_seconds / (time.process_time() - start)


def print_speed(rounds: int) -> None:
    """Print the third table."""
    print(f"\n{'seconds of audio per CPU second':34}")
    with tempfile.TemporaryDirectory() as folder:
        for name, codec, rate, layout, with_video in (
            ("44.1 kHz stereo.mp3", "libmp3lame", 44_100, "stereo", False),
            ("48 kHz stereo, with video.mp4", "aac", 48_000, "stereo", True),
            ("16 kHz mono.wav", "pcm_s16le", 16_000, "mono", False),
            ("96 kHz 24 bits stereo.flac", "flac", 96_000, "stereo", False),
        ):
            path = Path(folder) / name
            write(path, codec, rate, layout, with_video)
            speeds = [seconds_per_second(path) for _ in range(rounds)]
            print(f"{name:34}{Spread(tuple(speeds))!s:>18}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = command_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--noise", type=float, default=-50, help="decibels; 0 is full scale")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    speech = running_speech(options.minutes, options.noise)
    print_cuts(speech)
    print_silence(speech)
    print_speed(options.rounds)


if __name__ == "__main__":
    run_command(main)
