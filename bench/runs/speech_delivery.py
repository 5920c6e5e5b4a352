"""How much faster do decode processes deliver audio to a fast speech model than the event loop, and what do they cost?

    scripts/bench speech_delivery [--short] [--speed 2000] [--processes 0 1 2 4] [--files 12] [--seconds 300]
                                  [--rounds 5]

The whole client transcribes a library with an emulated speech model of that speed. Half of the files are AAC, 48 kHz
stereo, in MP4 beside a video stream; the others are MP3, 44.1 kHz stereo. With 0 processes, the event loop decodes.
Every round runs each number of processes once. The table shows seconds of audio per second of the whole run (RTFx), the
99th percentile of the server's answers to /ping meanwhile, the stalls of the client's event loop, and the CPU seconds
by process. Figures are medians and, in brackets, smallest and largest.

Below the table are the ratios of the times in the same round. With --short, the library has 500 WAV and MP3 files, 80 %
of them under 10 seconds, and 0 and 1 processes are compared by default.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections import defaultdict
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import psutil

from fakes.servers import serve_emulated_speech
from lib.command import command_parser, run_command
from lib.delays import Stalls, pinging
from lib.loop_pool import LoopOptions
from lib.report import Spread
from lib.speech_files import long_library, short_library
from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.transcripts import SpeechOptions, TranscriptTrack
from servers.torchserve import Serving

COLUMNS = (
    *("seconds", "RTFx", "ping p99, ms", "longest stall, ms", "p99 stall, ms"),
    *("CPU s: client", "decoders", "java", "worker"),
)


@dataclass(frozen=True)
class Figures:
    """Figures of one run, in the order of `COLUMNS`."""

    seconds: float
    rtfx: float
    ping_p99_ms: float
    stall_longest_ms: float
    stall_p99_ms: float
    client_cpu: float
    decoders_cpu: float
    java_cpu: float
    worker_cpu: float


async def transcribe(serving: Serving, folder: Path, out: Path, options: SpeechOptions) -> tuple[Summary, Stalls]:
    """Transcribe a folder with the whole client, and measure the stalls of its event loop."""
    server = Server(serving.url, serving.token)
    async with SpeechClient([server], serving.model) as client, Stalls.measured() as stalls:
        return await Run([TranscriptTrack(client, options)], out).run([str(folder)]), stalls


def measure(serving: Serving, folder: Path, out: Path, processes: int) -> Figures:
    """Figures of a run with `processes` decode processes; with 0, the event loop decodes."""
    options = SpeechOptions(audio_workers=processes) if processes else LoopOptions()
    with pinging(serving.url) as pings:
        before, began = _cpu_seconds(serving), time.monotonic()
        summary, stalls = asyncio.run(transcribe(serving, folder, out, options))
        seconds = time.monotonic() - began
        cpu = [now - then for now, then in zip(_cpu_seconds(serving), before, strict=True)]
    assert summary.failed == summary.replaced_processes == 0, str(summary)
    return Figures(
        seconds,
        summary.snapshot.audio_seconds / seconds,
        float(np.percentile(pings, 99)),
        stalls.longest_ms,
        stalls.p99_ms,
        *cpu,
    )


def _cpu_seconds(serving: Serving) -> list[float]:
    """CPU seconds of the client, its ended decode processes, and the server's Java process and worker."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    pids = serving.processes()
    times = [[psutil.Process(pid).cpu_times() for pid in pids[kind]] for kind in ("java", "workers")]
    server = [sum(each.user + each.system for each in kind) for kind in times]
    return [time.process_time(), ended.ru_utime + ended.ru_stime, *server]


def print_table(rows: dict[int, list[Figures]]) -> None:
    """Print the table."""
    print(f"{'processes':>9}", *(f"{name:>18}" for name in COLUMNS))
    for processes, figures in rows.items():
        columns = [list(column) for column in zip(*map(astuple, figures), strict=True)]
        print(f"{processes or 'none':>9}", *(f"{Spread(tuple(column))!s:>18}" for column in columns))
    first, *others = rows
    for other in others:
        pairs = zip(rows[other], rows[first], strict=True)
        ratios = [now.seconds / then.seconds for now, then in pairs]
        print(f"time with {other} / time with {first or 'none'}: {Spread(tuple(ratios))}")


def main() -> None:
    """Print the table."""
    parser = command_parser(__doc__)
    parser.add_argument("--short", action="store_true", help="many short files")
    parser.add_argument(
        "--speed", type=float, default=2000, help="seconds of audio that the model transcribes in a second"
    )
    parser.add_argument(
        "--processes", type=int, nargs="+", help="numbers of decode processes; with 0, the event loop decodes"
    )
    parser.add_argument("--files", type=int, help="12, or 500 short ones")
    parser.add_argument("--seconds", type=float, default=300, help="length of each file, without --short")
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
        with serve_emulated_speech(root / "server", speed=arguments.speed) as serving:
            for k in range(arguments.rounds):
                # In reverse order every second time, so that none always follows the same other one.
                for n in processes if k % 2 == 0 else reversed(processes):
                    rows[n].append(measure(serving, library, root / f"out-{k}-{n}", n))
    print(f"{len(os.sched_getaffinity(0))} cores, {arguments.speed:.0f} seconds of audio transcribed in a second")
    print_table({n: rows[n] for n in processes})


if __name__ == "__main__":
    run_command(main)
