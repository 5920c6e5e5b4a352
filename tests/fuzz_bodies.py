"""Coverage-guided fuzzing of everything that reads a request's body; a finding ends it with a traceback.

    PYTHONPATH=handlers .venv/bin/python tests/fuzz_bodies.py -max_total_time=600 [OPTIONS OF LIBFUZZER] [FOLDER]

New inputs are kept in FOLDER, if it is given.

Of each input: nothing but our own errors is raised, nothing but plain values and arrays comes out and can be packed
again, no file, process, module or code is touched, and Python's memory and time stay bounded.
"""

import io
import os
import pickle
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import atheris
import numpy as np
from PIL import Image

with atheris.instrument_imports(include=["reelscribe", "captions", "worker"]):
    from captions.frame_requests import FrameLimits, FrameReader
    from reelscribe import wire
    from reelscribe.contract.frames import InputSize
    from reelscribe.errors import ReelscribeError
    from support.hostile_pickles import DANGEROUS_NAMES, HOSTILE
    from support.trees import same
    from worker.request_batch import Unread
    from worker.still_image import is_still

LONGEST = 2**16
FRAME = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
LIMITS, SIZE = FrameLimits(frames=512, side=4096), InputSize(32, 32)
HARMLESS_EVENTS = {"builtins.id", "array.__new__"}

reading = False


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if reading and event not in HARMLESS_EVENTS:
        sys.stderr.write(f"an input led to {event} {arguments}\n")
        os.abort()


def read_still(body: bytes) -> None:
    request = FrameReader(LIMITS, SIZE)({"body": body}, {})
    assert isinstance(request, Unread)
    request.read()


def read(body: bytes) -> object:
    """What the server does with `body`, watched: the tree in it, or None if it is refused or a still."""
    global reading
    reading = True
    try:
        if is_still(body):
            read_still(body)
            return None
        return wire.unpack(body)
    except ReelscribeError as error:
        reading = False
        assert len(str(error)) < 500, error
        return None
    finally:
        reading = False


def test_one_input(body: bytes) -> None:
    tracemalloc.start()
    start = time.process_time()
    tree = read(body)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 30, seconds  # a hostile body takes one at most; tracing and counting coverage slow it down
    assert peak < 2 * len(body) + 64e6, peak
    assert same(wire.unpack(b"".join(wire.pack(tree))), tree)


def good_bodies() -> list[bytes]:
    arrays = [FRAME, FRAME.astype(">f4"), np.asfortranarray(FRAME), np.zeros((2, 0)), np.zeros((40, 50, 3), np.uint8)]
    trees = [*arrays, {"frames": FRAME, "n": [1, 2.5, "text", b"bytes", None, True, (2**70,)]}]
    files = [io.BytesIO() for _ in range(5)]
    np.save(files[0], FRAME)
    for file, kind in zip(files[1:], ["JPEG", "PNG", "WEBP", "PNG"], strict=True):
        Image.fromarray(FRAME).convert("P" if file is files[-1] else "RGB").save(file, kind)
    turned = Image.Exif()
    turned[0x0112] = 6
    files.append(io.BytesIO())
    Image.fromarray(FRAME).save(files[-1], "JPEG", exif=turned)
    bodies = [b"".join(wire.pack(tree)) for tree in trees]
    bodies += [pickle.dumps(tree, protocol) for tree in trees for protocol in range(2, 6)]
    return bodies + [file.getvalue() for file in files]


def main() -> None:
    bodies = good_bodies()
    for body in bodies:  # what is imported when first needed, before anything is watched
        read_still(body) if is_still(body) else wire.unpack(body)
    with tempfile.TemporaryDirectory() as folder:
        seeds, words = Path(folder) / "seeds", Path(folder) / "words"
        seeds.mkdir()
        for i, body in enumerate([*bodies, *(body for group in HOSTILE.values() for body in group.values())]):
            if len(body) <= LONGEST:
                (seeds / str(i)).write_bytes(body)
        spellings = {"reelscribe.wire", "array", "_codecs", "encode", "latin1", *" ".join(DANGEROUS_NAMES).split()}
        words.write_text("".join(f'"{word}"\n' for word in sorted(spellings)))
        options = [f"-max_len={LONGEST}", f"-dict={words}", f"-artifact_prefix={tempfile.gettempdir()}/"]
        sys.addaudithook(watch)
        atheris.Setup([sys.argv[0], *options, *sys.argv[1:], str(seeds)], test_one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
