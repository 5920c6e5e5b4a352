"""Bodies that would keep a library busy, and bodies whose content an error must not tell."""

import io
import pickle
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image

import fuzz_time
from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract.frames import InputSize
from reelscribe.contract.shots import Windowing
from reelscribe.errors import LimitExceeded
from shots.window_requests import WindowReader
from support.fake_context import FakeContext, parsed
from transcripts.audio_requests import AudioLimits, AudioReader
from worker.body_file import limited_time
from worker.request_batch import RequestBatch

MEBIBYTE = 2**20
FRAME = np.zeros((40, 60, 3), np.uint8)


class English:
    sample_rate, languages, tasks, word_times, beams, aligns = 16_000, ("en",), ("transcribe",), False, 1, False


def frames_reader() -> FrameReader:
    return FrameReader(FrameLimits(8, 1000), InputSize(8, 8))


def audio_reader() -> AudioReader:
    return AudioReader(AudioLimits(chunks=8, chunk_seconds=30), English())


def windows_reader() -> WindowReader:
    return WindowReader(8, Windowing(60, 40, 100, 25))


def still(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(FRAME).save(file, kind)
    return file.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


FILL = b"\xff\xd8" + b"\xff" * 4 * MEBIBYTE
EMPTY_CHUNKS = still("PNG")[:33] + chunk(b"abCd", b"") * (4 * MEBIBYTE // 12) + still("PNG")[33:]
EMPTY_MARKERS = b"\xff\xd8" + b"\xff\xfe\0\2" * MEBIBYTE


@pytest.mark.parametrize(
    ("good", "slow"),
    [(still("JPEG"), FILL), (still("PNG"), EMPTY_CHUNKS), (still("WEBP"), EMPTY_MARKERS)],
    ids=["fill", "empty chunks", "empty markers"],
)
def test_a_body_that_would_take_long_is_refused_early_and_the_others_of_its_call_go_on(good, slow):
    context, start = FakeContext(), time.process_time()
    requests = RequestBatch([{"body": body} for body in (good, slow, good)], context, frames_reader())
    seconds = time.process_time() - start
    assert len(requests.items) == 2
    requests.responses([LimitExceeded("-")] * 2, {})
    assert context.statuses[1] == 413
    assert 1000 * seconds < fuzz_time.MOST_MS * len(slow) / MEBIBYTE


@pytest.mark.parametrize("body", [still(kind) for kind in ("JPEG", "PNG", "WEBP")])
def test_what_takes_longer_than_a_body_may_is_refused_and_never_read_in_part(body, monkeypatch):
    monkeypatch.setattr("worker.body_file.MAX_SECONDS", 0)
    context = FakeContext()
    (answer,) = parsed(RequestBatch([{"body": body}], context, frames_reader()).responses([], {}))
    assert context.statuses == {0: 413}
    assert "at most 0 s of processor time to read it" in answer["error"]["message"]


def test_the_time_of_a_body_begins_anew_for_the_next_one():
    for body in (still("PNG"), still("PNG")):
        with limited_time():
            request = frames_reader()({"body": body}, {})
        assert request.read().items.shape == (1, 8, 8, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz_time.FORMATS)
def test_a_short_search_finds_no_body_that_takes_long(name):
    """It is always the same; tests/fuzz_time.py says how to start a long one."""
    cost, body, _ = fuzz_time.search(fuzz_time.FORMATS[name], 1, lambda tried: tried < 30)
    assert cost < fuzz_time.MOST_MS, body[:100]


SECRET = b"qXzWvKj7"
"""What stands for the memory of another run: in the places of a body that could be told."""
NPY = b"\x93NUMPY\1\0\x40\0"
TEXT = SECRET.decode()
PLACES = {
    "first bytes": SECRET,
    "header of npy": NPY + SECRET * 8,
    "dtype": pickle.dumps(np.zeros(3, np.uint8)).replace(b"\x8c\x02u1", b"\x8c\x08" + SECRET),
    "name in a pickle": b"\x80\x02c" + SECRET + b"\n" + SECRET + b"\n.",
    "key": wire.pack({TEXT: FRAME})[0],
    "a text": wire.pack({"frames": TEXT})[0],
    "language": b"".join(wire.pack({"chunks": np.zeros(100, np.int16), "language": TEXT})),
    "shape of no data": b"\x80\x02creelscribe.wire\narray\n(C\0X\2\0\0\0u1K\0J" + SECRET[:4] + b"\x86X\1\0\0\0CtR.",
    "chunk of PNG": still("PNG")[:33] + b"\0\0\0\1" + SECRET * 4,
    "segment of JPEG": b"\xff\xd8\xff\xe0\0\x0a" + SECRET + b"\xff\xc0\0\x08" + SECRET * 4,
    "chunk of WAV": b"RIFF\x40\0\0\0WAVE" + SECRET * 4,
    "size of WAV": b"RIFF" + SECRET[:4] + b"WAVEfmt ",
}


@pytest.mark.parametrize("body", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("reader", [frames_reader, audio_reader, windows_reader])
def test_an_error_tells_nothing_that_a_body_holds(reader, body):
    context = FakeContext()
    requests = RequestBatch([{"body": bytes(body)}], context, reader())
    (answer,) = parsed(requests.responses([], {}))
    message = answer["error"]["message"]
    assert context.statuses[0] in (400, 415, 422)
    numbers = [str(int.from_bytes(SECRET[:4], order)) for order in ("big", "little")]
    numbers.append(str(int(numbers[1]) + 8))
    assert not any(told in message for told in (*(TEXT[k : k + 3] for k in range(6)), *numbers)), message
