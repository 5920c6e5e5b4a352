"""How much memory does the client take, by number and length of sources, and is everything in its records?

    scripts/bench footprint
    scripts/bench footprint --audio [--minutes 1 10 180] [--kinds flac mp4]

Both run the whole client, as a process of its own, against an emulated model, and print the peak of the resident memory
of the client and of the largest of its decode processes.

Without --audio: 1, 10 and 100 videos of 10 seconds and one of 30 minutes, for an emulated device of 1,000 frames/s.
Then the run of 30 minutes is killed when half of its frames are saved, and resumed: how many frames does the rest
decode?

--audio: one recording of each length and kind, for an emulated model that transcribes 2,000 seconds in a second. The
other columns count samples at the model's rate: those that were encoded; how many more or fewer are in the record's
`audio.seconds`; those that the model got; those that the record calls silent; and those missing in the sum of the last
two. Every tenth minute of a recording is silent. Exit status 1 if anything is missing. AAC in MP4 may have more than
was encoded: its encoder fills the last packet of 1,024 samples, and decoders return all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fakes.servers import serve_emulated_speech
from lib.command import command_parser, killed_at_end, run_command
from lib.speech_files import FLAC, MP4, AudioArray, Format, speech, write
from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from servers.emulated import serve_emulated
from servers.torchserve import CONFIG, Serving
from synthetic.video_files import FRAMES_PER_SECOND, repeat_video, write_library

SHORT_SECONDS, LONG_MINUTES = 10, 30
SIZE = (160, 90)
DEVICE = 1000.0
"""Frames per second of the emulated device."""

SPEED = 2000.0
"""Seconds of audio that the emulated speech model transcribes in a second."""
RATE = 16_000
"""Samples per second of the emulated speech model."""
PACKET = 1024
"""Samples in a packet of AAC."""
KINDS = {"flac": FLAC, "mp4": MP4}


@dataclass
class Peak:
    """Peak of resident memory in MB."""

    client: float = 0.0
    decoder: float = 0.0

    def measure(self, process: psutil.Process) -> None:
        """Read the peaks that the kernel has recorded for a client and its decode processes."""
        self.client = max(self.client, _peak_mb(process.pid))
        for child in process.children():
            with suppress(psutil.NoSuchProcess):
                # Until it executes a program of its own, a child is a copy of its parent, also of its memory.
                if "reelscribe.decode_pool.child_main" in child.cmdline():
                    self.decoder = max(self.decoder, _peak_mb(child.pid))


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1000


def start(command: str, serving: Serving, source: Path, out: Path) -> subprocess.Popen[str]:
    """Start `reelscribe COMMAND` as a process of its own, which logs its progress as JSON to `out`/log."""
    words = [sys.executable, "-m", "reelscribe.cli", command, str(source), "--out", str(out), "--json-log"]
    words += ["--server", serving.url, "--key-file", str(serving.instance.key_file), "--model", serving.model]
    words += ["--all-frames"] if command == "caption" else []
    out.mkdir(exist_ok=True)
    with (out / "log").open("w") as log:
        return subprocess.Popen(words, stderr=log, text=True)


def finish(run: subprocess.Popen[str], out: Path) -> tuple[Peak, dict[str, Any]]:
    """Wait for the end of a run, and return its peak and its last report of progress."""
    peak, process = Peak(), psutil.Process(run.pid)
    with killed_at_end(run):
        while run.poll() is None:
            peak.measure(process)
            time.sleep(0.02)
    log = (out / "log").read_text()
    assert run.returncode == 0, log
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return peak, next(event for event in reversed(events) if event["event"] == "progress")


def saved_frames(out: Path) -> int:
    """Number of frames in the ledger of a run with one source."""
    try:
        with LedgerReader(out) as ledger:
            return sum(1 for _ in ledger.frame_results(1))
    except OutputError:
        return 0  # the ledger is just being made


def kill_and_resume(serving: Serving, source: Path, out: Path, frames: int) -> str:
    """Kill a run when half of its frames are saved, resume it, and return how many frames the rest decoded."""
    with killed_at_end(start("caption", serving, source, out)) as run:
        while saved_frames(out) < frames / 2:
            assert run.poll() is None, (out / "log").read_text()
            time.sleep(0.2)
    before = saved_frames(out)
    _, progress = finish(start("caption", serving, source, out), out)
    (track,) = progress["tracks"]
    decoded = track["decoded"]
    return f"{before} of {frames} frames were saved; the rest decoded {decoded:.0f}, {decoded / frames:.1%} of all"


def captioning(root: Path) -> int:
    """Print the table of videos."""
    frames = SHORT_SECONDS * FRAMES_PER_SECOND
    sources = {}
    for count in (1, 10, 100):
        sources[f"{count} of {SHORT_SECONDS} s"] = root / str(count)
        write_library(root / str(count), *SIZE, clips=count, frames=frames)
    long = sources[f"1 of {LONG_MINUTES} min"] = root / "long.mp4"
    repeat_video(root / "1" / "clip-0.mp4", long, LONG_MINUTES * 60 // SHORT_SECONDS)
    with serve_emulated(root / "server", CONFIG, frames_per_second=DEVICE) as serving:
        print(f"{'sources':>12} {'client, MB':>11} {'decoder, MB':>12}")
        for name, source in sources.items():
            out = root / f"out-{source.stem}"
            peak, _ = finish(start("caption", serving, source, out), out)
            print(f"{name:>12} {peak.client:11.1f} {peak.decoder:12.1f}", flush=True)
        print(kill_and_resume(serving, long, root / "out-resumed", LONG_MINUTES * 60 * FRAMES_PER_SECOND))
    return 0


def minutes_of(form: Format, count: int) -> Iterator[AudioArray]:
    """Yield the same minute of speech `count` times, but every tenth minute is silent."""
    minute = speech(60, form)
    silence = np.zeros_like(minute)
    for k in range(1, count + 1):
        yield minute if k % 10 else silence


def samples_of(record: dict[str, Any]) -> tuple[int, int, int]:
    """Numbers of samples that were decoded, that the model got, and that are silent."""
    assert record["status"] == "ok", record
    transcribed = sum(int(utterance["text"].removesuffix(" samples")) for utterance in record["segments"])
    silent = sum(round((silence["end"] - silence["start"]) * RATE) for silence in record["silences"])
    return round(record["audio"]["seconds"] * RATE), transcribed, silent


def print_row(name: str, peak: Peak, seconds: float, encoded: int, record: dict[str, Any], padding: int) -> bool:
    """Print a row, and return whether nothing is missing; up to `padding` samples more than were encoded are right."""
    decoded, transcribed, silent = samples_of(record)
    more, missing = decoded - encoded, decoded - transcribed - silent
    print(
        f"{name:>13} {peak.client:11.1f} {peak.decoder:12.1f} {encoded / RATE / seconds:6.0f}"
        f" {encoded:12,} {more:+13,} {transcribed:12,} {silent:11,} {missing:8,}",
        flush=True,
    )
    return 0 <= more <= padding and missing == 0


def transcribing(root: Path, kinds: Sequence[str], minutes: Sequence[int]) -> int:
    """Print the table of recordings; returns 1 if anything is missing."""
    complete = True
    with serve_emulated_speech(root / "server", speed=SPEED) as serving:
        print(
            f"{'recording':>13} {'client, MB':>11} {'decoder, MB':>12} {'RTFx':>6}"
            f" {'encoded':>12} {'decoded: more':>13} {'transcribed':>12} {'silent':>11} {'missing':>8}"
        )
        for kind in kinds:
            for count in minutes:
                form, name = KINDS[kind], f"{kind} {count} min"
                source, out = root / f"{count}.{form.suffix}", root / name
                write(source, minutes_of(form, count), form)
                began = time.monotonic()
                peak, _ = finish(start("transcribe", serving, source, out), out)
                seconds = time.monotonic() - began
                record = json.loads((out / "annotations.jsonl").read_text())
                # The rest of the last packet, at the model's rate, and one sample for rounding.
                padding = PACKET * RATE // form.sample_rate + 1 if form is MP4 else 0
                complete &= print_row(name, peak, seconds, count * 60 * RATE, record, padding)
                source.unlink()
    print("nothing is missing" if complete else "SOMETHING IS MISSING")
    return 0 if complete else 1


def main() -> int:
    """Print the table; returns 1 if anything is missing."""
    parser = command_parser(__doc__)
    parser.add_argument("--audio", action="store_true", help="recordings instead of videos")
    parser.add_argument("--minutes", type=int, nargs="+", default=[1, 10, 180], help="lengths of the recordings")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="formats of the recordings")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        return transcribing(root, arguments.kinds, arguments.minutes) if arguments.audio else captioning(root)


if __name__ == "__main__":
    run_command(main)
