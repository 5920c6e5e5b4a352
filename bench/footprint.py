"""What the client takes: memory by the number and length of sources, stalls of its loop, and what resuming decodes.

    .venv/bin/python bench/footprint.py

Runs the whole client, as a process of its own, against an emulated device of 1,000 frames a second. The first table
shows the peak of the resident memory of the client and of the largest of its decode processes, for 1, 10 and 100
sources of 10 seconds, for one of 30 minutes, and the longest and 99th percentile stall of the event loop. Then the run
of 30 minutes is killed when half of its frames are saved, and the rest done: how many frames does that decode?
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import psutil

from reelscribe.errors import OutputError
from reelscribe.results.ledger import LedgerReader
from resize import write_clip
from serving import ROOT, Serving, serve_emulated

FPS = 25
SHORT_SECONDS = 10
SIZE = (160, 90)


@dataclass
class Peak:
    """Of resident memory, in MB."""

    client: float = 0.0
    decoder: float = 0.0

    def look(self, process: psutil.Process) -> None:
        """Read what the kernel noted."""
        self.client = max(self.client, _peak_mb(process.pid))
        for child in process.children():
            with suppress(psutil.NoSuchProcess):
                # Before it runs a program of its own, a child is its parent, also by its memory.
                if "reelscribe.decode_pool.worker" in child.cmdline():
                    self.decoder = max(self.decoder, _peak_mb(child.pid))


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1000


def start(serving: Serving, source: Path, out: Path) -> subprocess.Popen[bytes]:
    """A client on its own, which tells of itself in JSON."""
    command = [sys.executable, "-m", "reelscribe.cli", "caption", str(source), "--out", str(out), "--json-log"]
    command += ["--server", serving.url, "--key-file", str(serving.instance.key_file), "--model", serving.model]
    out.mkdir(exist_ok=True)
    with (out / "log").open("w") as log:
        return subprocess.Popen(command, stderr=log)


def finish(run: subprocess.Popen[bytes], out: Path) -> tuple[Peak, dict[str, Any]]:
    """The peak of a run, and what it said last of its progress."""
    peak, process = Peak(), psutil.Process(run.pid)
    while run.poll() is None:
        peak.look(process)
        time.sleep(0.02)
    log = (out / "log").read_text()
    assert run.returncode == 0, log
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return peak, next(event for event in reversed(events) if event["event"] == "progress")


def saved(out: Path) -> int:
    """Frames in the ledger of a run with one source."""
    try:
        with LedgerReader(out) as ledger:
            return sum(1 for _ in ledger.frames(1))
    except OutputError:
        return 0  # it is being made


def resume(serving: Serving, source: Path, out: Path, frames: int) -> str:
    """Kill a run in its middle, do the rest, and tell what that decoded."""
    run = start(serving, source, out)
    while saved(out) < frames / 2:
        assert run.poll() is None, (out / "log").read_text()
        time.sleep(0.2)
    run.kill()
    run.wait()
    before = saved(out)
    _, progress = finish(start(serving, source, out), out)
    (lane,) = progress["lanes"]
    decoded = lane["decoded"]
    return f"{before} of {frames} frames were saved; the rest took {decoded:.0f} decoded ones, {decoded / frames:.1%}"


def repeat(clip: Path, path: Path, times: int) -> None:
    """The same pictures again and again, without encoding them again."""
    with av.open(str(path), "w") as target:
        stream = None
        for k in range(times):
            with av.open(str(clip)) as source:
                stream = stream or target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.dts is None or packet.pts is None:
                        continue  # the end of the stream
                    assert packet.time_base
                    shift = round(k * SHORT_SECONDS / packet.time_base)
                    packet.pts, packet.dts, packet.stream = packet.pts + shift, packet.dts + shift, stream
                    target.mux(packet)


def copies(clip: Path, folder: Path, count: int) -> Path:
    """A folder of so many clips that differ in their last bytes."""
    folder.mkdir()
    for k in range(count):
        (folder / f"{k:03}.mp4").write_bytes(
            clip.read_bytes() + (16).to_bytes(4, "big") + b"free" + k.to_bytes(8, "big")
        )
    return folder


def main() -> None:
    """Print both."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_clip(root / "short.mp4", *SIZE, SHORT_SECONDS * FPS)
        repeat(root / "short.mp4", root / "long.mp4", 180)
        sources = {f"{n} of 10 s": copies(root / "short.mp4", root / str(n), n) for n in (1, 10, 100)}
        sources["1 of 30 min"] = root / "long.mp4"
        with serve_emulated(root / "server", ROOT / "config.properties", frames_per_second=1000) as serving:
            print(f"{'sources':>12} {'client, MB':>11} {'decoder, MB':>12} {'longest stall, ms':>18} {'p99, ms':>8}")
            for name, source in sources.items():
                out = root / f"out-{source.stem}"
                peak, told = finish(start(serving, source, out), out)
                stalls = f"{told['stall_longest_ms']:18} {told['stall_p99_ms']:8}"
                print(f"{name:>12} {peak.client:11.1f} {peak.decoder:12.1f} {stalls}")
            print(resume(serving, root / "long.mp4", root / "out-resumed", 30 * 60 * FPS))


if __name__ == "__main__":
    main()
