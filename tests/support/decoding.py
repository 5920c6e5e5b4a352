"""What the tests of decode processes share: finding them, making them misbehave, and running a worker without one."""

import io
import json
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest

from reelscribe.decode_pool.child_channel import ChildChannel
from reelscribe.decode_pool.child_main import serve
from support.audio import wav

MISBEHAVING = str(Path(__file__).parent / "misbehaving_decoder")
"""A folder for PYTHONPATH: its sitecustomize.py makes decode processes crash or hang over files with telling names."""


def decode_processes() -> list[psutil.Process]:
    """The decode processes of this test that are running."""
    return [child for child in psutil.Process().children() if is_decode_process(child)]


def is_decode_process(process: psutil.Process) -> bool:
    try:
        return "reelscribe.decode_pool.child_main" in process.cmdline()
    except psutil.NoSuchProcess:  # it has just exited
        return False


def run_worker(*commands: dict, slot_bytes: int, slots: int) -> tuple[list[dict], mmap.mmap]:
    """Run a worker in the test's own process, with all slots granted after the commands.

    Returns its replies, without heartbeats, and the memory of the slots.
    """
    memory = mmap.mmap(-1, slots * slot_bytes)
    granted = [{"slot": slot} for slot in range(slots)]
    lines = "".join(json.dumps(command) + "\n" for command in [*commands, *granted])
    output = io.StringIO()
    with pytest.raises(SystemExit):  # at the end of the commands
        serve(ChildChannel(memory, slot_bytes, io.StringIO(lines), output))
    replies = [reply for line in output.getvalue().splitlines() for reply in json.loads(line)]
    return [reply for reply in replies if "heartbeat" not in reply], memory


def write_levels(path: Path, levels: Iterable[int], rate: int) -> Path:
    """Write a WAV file in which every sample of a second has the level that is listed for it."""
    path.write_bytes(wav(np.repeat(np.array(levels, "<i2"), rate).tobytes(), rate=rate))
    return path
