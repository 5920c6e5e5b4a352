"""Do decode processes bring sound to a fast speech model sooner than the event loop alone would, and what do they cost?

    .venv/bin/python bench/speech_delivery.py [--short] [--speed 2000] [--processes 0 1 2 4] [--files 12]
                                              [--seconds 300] [--rounds 5]

Serves an emulated speech model that hears so many seconds of sound in a second, and transcribes a library with the
whole client: half of the files AAC, 48 kHz stereo, in MP4 beside pictures; the others MP3, 44.1 kHz stereo. 0 processes
decode in the event loop. Every round runs each number of processes once. The table shows seconds of sound per second of
the whole run (RTFx), the 99th percentile of the server's answers to /ping meanwhile, the stalls of the client's event
loop, and who used how many seconds of the CPU. Median and, in brackets, smallest and largest.

Below are the ratios of the times in the same round. With --short the library is 500 files, 80 % of them under 10
seconds, as WAV and MP3, and by default 0 and 1 processes are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from collections import defaultdict
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from loop_pool import InTheLoop
from pings import pinging
from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.run.bulk import BulkRun, Summary, Transcripts
from reelscribe.run.options import SpeechOptions
from serving import ROOT, Serving, serve_emulated_speech
from speech_sources import long_library, short_library

COLUMNS = (
    *("seconds", "RTFx", "ping p99, ms", "longest stall, ms", "p99 stall, ms"),
    *("CPU s: client", "decoders", "java", "worker"),
)


@dataclass(frozen=True)
class Figures:
    """Of one run, as in `COLUMNS`."""

    seconds: float
    rtfx: float
    ping_p99_ms: float
    stall_longest_ms: float
    stall_p99_ms: float
    client_cpu: float
    decoders_cpu: float
    java_cpu: float
    worker_cpu: float


async def transcribe(serving: Serving, folder: Path, out: Path, options: SpeechOptions) -> Summary:
    """The whole run."""
    async with SpeechClient([Server(serving.url, serving.token)], serving.model) as client:
        return await BulkRun([Transcripts(client, options)], out).run([str(folder)])


def measure(serving: Serving, folder: Path, out: Path, processes: int) -> Figures:
    """Of a run with so many decode processes; 0: in the event loop."""
    options = SpeechOptions(audio_workers=processes) if processes else InTheLoop()
    with pinging(serving.url) as pings:
        before, began = _cpu_seconds(serving), time.monotonic()
        summary = asyncio.run(transcribe(serving, folder, out, options))
        seconds = time.monotonic() - began
        cpu = [now - then for now, then in zip(_cpu_seconds(serving), before, strict=True)]
    snapshot = summary.snapshot
    assert summary.failed == summary.replaced_decoders == 0, str(summary)
    return Figures(
        seconds,
        snapshot.sound_seconds / seconds,
        float(np.percentile(pings, 99)),
        snapshot.stall_longest_ms,
        snapshot.stall_p99_ms,
        *cpu,
    )


def _cpu_seconds(serving: Serving) -> list[float]:
    """Of the client, its decode processes that have ended, and the server's Java process and worker."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    pids = serving.processes()
    times = [[psutil.Process(pid).cpu_times() for pid in pids[kind]] for kind in ("java", "workers")]
    server = [sum(each.user + each.system for each in kind) for kind in times]
    return [time.process_time(), ended.ru_utime + ended.ru_stime, *server]


def spread(values: list[float]) -> str:
    """Median [smallest-largest]."""
    digits = 2 if median(values) < 10 else 0
    return f"{median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def show(rows: dict[int, list[Figures]]) -> None:
    """The table."""
    print(f"{'processes':>9}", *(f"{name:>18}" for name in COLUMNS))
    for processes, figures in rows.items():
        columns = [list(column) for column in zip(*map(astuple, figures), strict=True)]
        print(f"{processes or 'none':>9}", *(f"{spread(column):>18}" for column in columns))
    first, *others = rows
    for other in others:
        pairs = zip(rows[other], rows[first], strict=True)
        ratios = [now.seconds / then.seconds for now, then in pairs]
        print(f"time with {other} / time with {first or 'none'}: {spread(ratios)}")


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="many short files")
    parser.add_argument("--speed", type=float, default=2000, help="seconds of sound that the model hears in a second")
    parser.add_argument("--processes", type=int, nargs="+", help="that decode; 0: the event loop does")
    parser.add_argument("--files", type=int, help="12, or 500 short ones")
    parser.add_argument("--seconds", type=float, default=300, help="of each file that is not short")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    processes = arguments.processes or ([0, 1] if arguments.short else [0, 1, 2, 4])
    rows: dict[int, list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        library = root / "library"
        if arguments.short:
            short_library(library, arguments.files or 500)
        else:
            long_library(library, arguments.files or 12, arguments.seconds)
        config = ROOT / "config.properties"
        with serve_emulated_speech(root / "server", config, speed=arguments.speed) as serving:
            for k in range(arguments.rounds):
                # In the other direction every second time, so that neither always follows the other.
                for n in processes if k % 2 == 0 else reversed(processes):
                    rows[n].append(measure(serving, library, root / f"out-{k}-{n}", n))
    print(f"{len(os.sched_getaffinity(0))} cores, a model of {arguments.speed:.0f} seconds of sound a second")
    show({n: rows[n] for n in processes})


if __name__ == "__main__":
    main()
