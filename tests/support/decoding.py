"""What the tests of decode processes share: which run now, how they are made to misbehave, and what they answer."""

import io
import json
import mmap
from pathlib import Path

import psutil
import pytest

from reelscribe.decode_pool.channel import WorkerChannel
from reelscribe.decode_pool.worker import follow

MISBEHAVING = str(Path(__file__).parent / "misbehaving_decoder")
"""Its sitecustomize.py says what a decode process does with a file of a telling name."""

STALL_SECONDS = 3.0
"""Longer than a process takes to start on a busy machine."""


def decoders() -> list[psutil.Process]:
    """The decode processes of this test that run now."""
    return [child for child in psutil.Process().children() if is_decoder(child)]


def is_decoder(process: psutil.Process) -> bool:
    try:
        return "reelscribe.decode_pool.worker" in process.cmdline()
    except psutil.NoSuchProcess:  # it has just died
        return False


def talk(*told: dict, slot_bytes: int, slots: int) -> tuple[list[dict], mmap.mmap]:
    """What a decode process answers to orders, here in the test's own, and the memory. It has all slots at once."""
    memory = mmap.mmap(-1, slots * slot_bytes)
    lines = "".join(json.dumps(order) + "\n" for order in [*told, *({"slot": slot} for slot in range(slots))])
    said = io.StringIO()
    with pytest.raises(SystemExit):  # when there are no more orders
        follow(WorkerChannel(memory, slot_bytes, io.StringIO(lines), said))
    answers = [json.loads(line) for line in said.getvalue().splitlines()]
    return [answer for answer in answers if "heartbeat" not in answer], memory
