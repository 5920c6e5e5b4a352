"""Requests that say where in shared memory their bodies are."""

import os
import struct
import subprocess
import sys
import tempfile
from subprocess import PIPE

import numpy as np
import pytest

from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract import shared_memory
from reelscribe.contract.frames import InputSize
from reelscribe.contract.shared_memory import MAGIC, MAX_BYTES, SharedMemory, machine, refer, resolve
from reelscribe.errors import MemoryNotShared, WireError
from support.fake_context import FakeContext
from worker.request_batch import RequestBatch

INSIDE = 2**64 - 1
NOT_SHARED = "expected memory of reelscribe, with its secret, that the server's user may read; send the frames"
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


def reference(*pieces, fd=0, pid=None, inside=b"", of=None, secret=bytes(16)):
    pid = os.getpid() if pid is None else pid
    head = struct.pack("<8s16s16sIII", MAGIC, (of or machine()).encode(), secret, pid, fd, len(pieces))
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
        (reference((0, MAX_BYTES + 1)), "at most 16777216 bytes, got a longer one"),
        (reference((0, 2**64 - 1)), "at most 16777216 bytes"),
        (reference((INSIDE, 4), inside=b"123"), "that it announces and nothing else, got 71 bytes"),
        (reference((INSIDE, 4), inside=b"12345"), "that it announces and nothing else, got 73 bytes"),
        (reference(*[(0, 0)] * 16_385), "at most 16384 pieces, got more"),
    ],
    ids=range(7),  # the bytes have the process id
)
def test_a_malformed_reference_is_refused(body, message):
    with pytest.raises(WireError, match=message):
        resolve(body)


@pytest.mark.parametrize("offset", [999_999, 1_000_000, 2**63 - 1, 2**64 - 2])
def test_a_reference_beyond_the_memory_is_refused(memory, offset):
    with pytest.raises(WireError, match="expected pieces inside of the memory, got one beyond its end"):
        resolve(reference((offset, 2), fd=memory.fd, secret=memory.secret))


def test_nobody_can_change_the_size_of_a_memory(memory):
    for size in (1000, 2_000_000):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)


def test_nothing_but_shared_memory_of_reelscribe_is_opened(tmp_path):
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for its other end
    other = os.memfd_create("another-program")
    secret = os.open(tmp_path / "secret", os.O_RDONLY)
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    reading, writing = os.pipe()
    for fd in (other, secret, pipe, reading, writing):
        with pytest.raises(MemoryNotShared, match=NOT_SHARED):
            resolve(reference((0, 6), fd=fd))
        os.close(fd)
    for pid, fd in ((os.getpid(), 2**32 - 1), (2**32 - 1, 0)):
        with pytest.raises(MemoryNotShared, match=NOT_SHARED):
            resolve(reference((0, 6), pid=pid, fd=fd))


@pytest.mark.parametrize("folder", ["/dev/shm", None], ids=["tmpfs", "disk"])
def test_a_file_that_is_named_like_a_memory_is_none(folder, tmp_path, monkeypatch):
    """One may be at the root of a container's file system; /proc would show it as it shows a memory."""
    with tempfile.NamedTemporaryFile(dir=folder or tmp_path) as file:
        file.write(b"secret")
        file.flush()
        name = f"/memfd:{shared_memory.NAME}-{bytes(16).hex()} (deleted)"
        monkeypatch.setattr(os, "readlink", lambda path: name)
        with pytest.raises(MemoryNotShared, match=NOT_SHARED):
            resolve(reference((0, 6), fd=file.fileno()))


VICTIM = """
import os, sys
from reelscribe.contract.shared_memory import SharedMemory
memory = SharedMemory(1_000_000)
memory.view[:1200] = b"a private frame " * 75
print(memory.fd, flush=True)
sys.stdin.read()
"""


def test_a_client_that_guesses_a_process_and_a_descriptor_learns_nothing_of_the_memory():
    """It lets the worker read a bad header of .npy out of the memory of another run, whose end an error then tells."""
    victim = subprocess.Popen([sys.executable, "-c", VICTIM], stdin=PIPE, stdout=PIPE)
    fd = int(victim.stdout.readline())
    start = b"\x93NUMPY\1\0\xff\0"
    address = struct.pack("<IIIQQQQ", victim.pid, fd, 2, INSIDE, len(start), 0, 1000) + start
    of = machine().encode()
    guesses = [b"\x93RSMEM\0\1" + of + address, *(MAGIC + of + secret + address for secret in (bytes(16), of))]
    context = FakeContext()
    requests = RequestBatch(
        [{"body": guess} for guess in guesses], context, FrameReader(FrameLimits(8, 100), InputSize(8, 8))
    )
    answers = requests.responses([], {})
    victim.communicate()
    assert all("private" not in answer for answer in answers)
    assert context.statuses == {0: 400, 1: 421, 2: 421}


def test_memory_of_another_machine_is_not_read_here(memory):
    array_in(memory)
    with pytest.raises(MemoryNotShared, match="expected memory of this machine and user; send the frames"):
        resolve(reference((0, 6), fd=memory.fd, of="another machine!"))


def test_processes_with_another_version_of_references_share_nothing(monkeypatch):
    known = machine()
    monkeypatch.setattr(shared_memory, "MAGIC", MAGIC[:-1] + b"\3")
    assert machine.__wrapped__() not in (known, "")


def test_processes_of_a_user_on_a_machine_know_each_other():
    code = "from reelscribe.contract.shared_memory import machine; print(machine())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == machine() != ""
