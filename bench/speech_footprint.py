"""What the client takes for long recordings, and whether all of them is heard.

    .venv/bin/python bench/speech_footprint.py [--minutes 1 10 180] [--kinds flac mp4]

Runs the whole client, as a process of its own, against an emulated speech model of 2,000 seconds of sound a second. The
table shows, for one recording of each length and kind, the peak of the resident memory of the client and of its decode
process. Then samples, at the model's rate: how many were encoded; how many more or fewer of them are in the record's
`audio.seconds`; how many the model got, how many the record calls silent, and what their sum lacks. Every tenth minute
of a recording is silent. Exit status 1 if anything is missing.

AAC in MP4 may have more: its encoder fills the last packet of 1,024 samples, and decoders give all of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from footprint import Peak, finish
from serving import ROOT, Serving, serve_emulated_speech
from speech_sources import FLAC, MP4, Format, Sound, speech, write

SPEED = 2000
RATE = 16_000
"""Of the emulated model."""
PACKET = 1024

KINDS = {"flac": FLAC, "mp4": MP4}


def minutes_of(form: Format, count: int) -> Iterator[Sound]:
    """A minute of speech again and again, but every tenth is silent."""
    sound = speech(60, form)
    silence = np.zeros_like(sound)
    for k in range(1, count + 1):
        yield sound if k % 10 else silence


def start(serving: Serving, source: Path, out: Path) -> subprocess.Popen[bytes]:
    """A client on its own, which tells of itself in JSON."""
    command = [sys.executable, "-m", "reelscribe.cli", "transcribe", str(source), "--out", str(out), "--json-log"]
    command += ["--server", serving.url, "--key-file", str(serving.instance.key_file), "--model", serving.model]
    out.mkdir()
    with (out / "log").open("w") as log:
        return subprocess.Popen(command, stderr=log)


def samples_of(record: dict[str, Any]) -> tuple[int, int, int]:
    """All that could be decoded, what the model got, what is silent."""
    assert record["status"] == "ok", record
    heard = sum(int(said["text"].removesuffix(" samples")) for said in record["transcript"])
    silent = sum(round((silence["end"] - silence["start"]) * RATE) for silence in record["silences"])
    return round(record["audio"]["seconds"] * RATE), heard, silent


def show(name: str, peak: Peak, seconds: float, encoded: int, record: dict[str, Any], most_filled: int) -> bool:
    """A row; returns whether all is there."""
    decoded, heard, silent = samples_of(record)
    more, lacking = decoded - encoded, decoded - heard - silent
    print(
        f"{name:>13} {peak.client:11.1f} {peak.decoder:12.1f} {encoded / RATE / seconds:6.0f}"
        f" {encoded:12,} {more:+13,} {heard:12,} {silent:11,} {lacking:8,}",
        flush=True,
    )
    return 0 <= more <= most_filled and lacking == 0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, nargs="+", default=[1, 10, 180])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    whole = True
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        config = ROOT / "config.properties"
        with serve_emulated_speech(root / "server", config, speed=SPEED) as serving:
            print(
                f"{'recording':>13} {'client, MB':>11} {'decoder, MB':>12} {'RTFx':>6}"
                f" {'encoded':>12} {'decoded: more':>13} {'heard':>12} {'silent':>11} {'lacking':>8}"
            )
            for kind in arguments.kinds:
                for minutes in arguments.minutes:
                    form, name = KINDS[kind], f"{kind} {minutes} min"
                    source, out = root / f"{minutes}.{form.suffix}", root / name
                    write(source, minutes_of(form, minutes), form)
                    began = time.monotonic()
                    peak, _ = finish(start(serving, source, out), out)
                    seconds = time.monotonic() - began
                    record = json.loads((out / "annotations.jsonl").read_text())
                    # Of the last packet, at the model's rate, and one for rounding.
                    filled = PACKET * RATE // form.sample_rate + 1 if form is MP4 else 0
                    whole &= show(name, peak, seconds, minutes * 60 * RATE, record, filled)
                    source.unlink()
    print("nothing is missing" if whole else "SOMETHING IS MISSING")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
