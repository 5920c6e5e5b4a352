"""Requests that say where in shared memory their bodies are."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from reelscribe import wire
from reelscribe.contract.shared_memory import MAGIC, MAX_BYTES, SharedMemory, machine, refer, resolve
from reelscribe.errors import MemoryNotShared, WireError

INSIDE = 2**64 - 1
RESOLVE = """
import sys
from reelscribe.contract.shared_memory import resolve
sys.stdout.buffer.write(resolve(sys.stdin.buffer.read()))
"""


@pytest.fixture
def memory():
    memory = SharedMemory(1_000_000)
    yield memory
    memory.close()


def array_in(memory, shape=(2, 100, 50, 3), offset=777):
    array = np.ndarray(shape, np.uint8, memory.view, offset=offset)
    array[:] = np.random.default_rng(offset).integers(0, 255, shape, np.uint8)
    return array


def reference(*pieces, fd=0, pid=None, inside=b"", of=None):
    pid = os.getpid() if pid is None else pid
    head = struct.pack("<8s16sIII", MAGIC, (of or machine()).encode(), pid, fd, len(pieces))
    return head + b"".join(struct.pack("<QQ", *piece) for piece in pieces) + inside


def whole(body):
    return b"".join(bytes(segment) for segment in body)


def test_a_body_is_read_from_memory_as_it_would_have_been_sent(memory):
    clips = [{"frames": array_in(memory), "times": [0.0, 0.5]}, {"frames": array_in(memory, offset=70_000)}]
    elsewhere = np.ones((100, 100), np.uint8)
    body = wire.pack({"clips": clips, "mask": elsewhere})
    referred = refer(body, [SharedMemory(1), memory])
    assert len(referred) < 11_000 < len(whole(body))
    assert resolve(referred) == whole(body)


def test_another_process_reads_the_memory(memory):
    body = wire.pack(array_in(memory))
    read = subprocess.run([sys.executable, "-c", RESOLVE], input=refer(body, [memory]), capture_output=True, check=True)
    assert read.stdout == whole(body)


def test_a_body_that_lies_elsewhere_or_is_too_large_is_not_referred_to(memory):
    assert refer(wire.pack(np.zeros(10_000)), [memory]) is None
    assert refer(wire.pack(array_in(memory)), []) is None
    large = SharedMemory(MAX_BYTES + 1)
    assert refer([memoryview(large.view)], [large]) is None
    large.close()


def test_every_other_body_stays_as_it_is():
    for body in (b"", b"\x93RSBODY\1", bytearray(b"RIFF")):
        assert resolve(body) is body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (MAGIC + b"1234", "cut short"),
        (reference((0, 1), (0, 1))[:-1], "cut short"),
        (reference((0, MAX_BYTES + 1)), "at most 16777216 bytes, got 16777217"),
        (reference((0, 2**64 - 1)), "at most 16777216 bytes"),
        (reference((INSIDE, 4), inside=b"123"), "expected 56 bytes, got 55"),
        (reference((INSIDE, 4), inside=b"12345"), "expected 56 bytes, got 57"),
        (reference(*[(0, 0)] * 16_385), "at most 16384 pieces, got 16385"),
    ],
    ids=range(7),  # the bytes have the process id
)
def test_a_malformed_reference_is_refused(body, message):
    with pytest.raises(WireError, match=message):
        resolve(body)


@pytest.mark.parametrize("offset", [999_999, 1_000_000, 2**63 - 1, 2**64 - 2])
def test_a_reference_beyond_the_memory_is_refused(memory, offset):
    with pytest.raises(WireError, match="expected memory of at least"):
        resolve(reference((offset, 2), fd=memory.fd))


def test_memory_that_shrinks_meanwhile_is_an_error_and_no_crash(memory):
    body = refer(wire.pack(array_in(memory)), [memory])
    os.ftruncate(memory.fd, 1000)
    with pytest.raises(WireError, match="got less"):
        resolve(body)


def test_nothing_but_shared_memory_of_reelscribe_is_opened(tmp_path):
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for its other end
    other = os.memfd_create("another-program")
    secret = os.open(tmp_path / "secret", os.O_RDONLY)
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    reading, writing = os.pipe()
    for fd in (other, secret, pipe, reading, writing):
        with pytest.raises(MemoryNotShared, match="expected shared memory of reelscribe"):
            resolve(reference((0, 6), fd=fd))
        os.close(fd)
    for pid, fd in ((os.getpid(), 2**32 - 1), (2**32 - 1, 0)):
        with pytest.raises(MemoryNotShared, match=r"cannot be opened: No such file or directory; send the frames"):
            resolve(reference((0, 6), pid=pid, fd=fd))


def test_memory_of_another_machine_is_not_read_here(memory):
    array_in(memory)
    with pytest.raises(MemoryNotShared, match="expected memory of this machine and user; send the frames"):
        resolve(reference((0, 6), fd=memory.fd, of="another machine!"))


def test_processes_of_a_user_on_a_machine_know_each_other():
    code = "from reelscribe.contract.shared_memory import machine; print(machine())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == machine() != ""
