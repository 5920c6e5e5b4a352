import gc
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from reelscribe import wire
from reelscribe.errors import WireError

FRAMES = np.arange(2 * 40 * 30 * 3, dtype=np.uint8).reshape(2, 40, 30, 3)

GOLDEN = bytes.fromhex(
    "93 52 53 42 4f 44 59 01"  # magic, version
    " 3e000000 01000000"  # the pickle's 62 bytes, one buffer
    " 0010000000000000"  # of 4,096 bytes
    " 8005 95 3300000000000000"  # protocol 5, one frame
    " 8c0f 7265656c7363726962652e77697265 94 8c05 6172726179 94 93 94"  # reelscribe.wire array
    " 28 97 98 8c03 7c7531 94 4d0010 85 94 8c01 43 94 74 94 52 94 2e"  # (buffer, "|u1", (4096,), "C")
)


def body(tree):
    return b"".join(wire.pack(tree))


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


plain = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary()
dtypes = npst.boolean_dtypes() | npst.integer_dtypes(endianness="?") | npst.unsigned_integer_dtypes(endianness="?")
dtypes |= npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)) | npst.complex_number_dtypes(sizes=(64, 128))
arrays = npst.arrays(dtypes, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=40))
trees = st.recursive(
    plain | arrays,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(st.text(), child, max_size=4) | st.tuples(child, child),
    max_leaves=12,
)


@given(trees)
def test_any_tree_survives(tree):
    assert same(tree, wire.unpack(body(tree)))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(array=arrays)
def test_plain_pickles_of_arrays_are_read(protocol, array):
    assert same(array, wire.unpack(pickle.dumps(array, protocol=protocol)))


def test_golden_bytes():
    array = np.zeros(4096, np.uint8)
    golden = GOLDEN + bytes(-len(GOLDEN) % 64) + bytes(4096)
    assert body(array) == golden
    assert same(array, wire.unpack(golden))


def test_large_arrays_are_neither_copied_on_the_way_out_nor_on_the_way_in():
    _, *segments = wire.pack({"frames": FRAMES})
    assert np.shares_memory(np.frombuffer(segments[-1], np.uint8), FRAMES)
    received = bytearray(body({"frames": FRAMES}))
    assert np.shares_memory(wire.unpack(received)["frames"], np.frombuffer(received, np.uint8))


def test_segments_in_a_cycle_can_be_collected():
    for _ in range(20):
        cycle: list = wire.pack({"frames": FRAMES})
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0


def test_buffers_are_aligned():
    packed = body([FRAMES, FRAMES[:, ::-1]])
    first, second = wire.unpack(packed)
    start = np.frombuffer(packed, np.uint8).ctypes.data
    assert (first.ctypes.data - start) % wire.ALIGNMENT == (second.ctypes.data - start) % wire.ALIGNMENT == 0


@pytest.mark.parametrize("array", [FRAMES[:, ::2], np.asfortranarray(FRAMES), FRAMES.transpose(0, 3, 1, 2)])
def test_other_layouts_survive(array):
    received = wire.unpack(body(array))
    assert same(np.ascontiguousarray(array), np.ascontiguousarray(received))
    assert received.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        np.float32(1),
        2**300,
        {1: 2},
        [None] * 100_000,
        np.zeros((1,) * 40),
        np.array([object()]),
        np.array(["text"]),
        np.zeros(2, "M8[s]"),
        wire,
    ],
)
def test_what_no_body_can_hold_is_refused_by_the_sender(value):
    with pytest.raises(WireError, match=r"expected|hold one of|at most|keys are|over"):
        body([value])


@pytest.mark.parametrize("size", [0, 7, 8, 15, 20, 60, 100, 1000, len(body(FRAMES)) - 1])
def test_a_body_that_was_cut_is_refused(size):
    with pytest.raises(WireError, match=r"expected|take|announce"):
        wire.unpack(body(FRAMES)[:size])


def test_bytes_after_the_end_are_refused():
    with pytest.raises(WireError, match="announces"):
        wire.unpack(body(FRAMES) + b"x")


def test_a_newer_version_is_named():
    newer = bytearray(body(FRAMES))
    newer[7] = 2
    with pytest.raises(WireError, match="expected format version 1, got 2"):
        wire.unpack(newer)


def test_something_else_is_shown_by_its_first_bytes():
    with pytest.raises(WireError, match="JFIF"):
        wire.unpack(b"\xff\xd8JFIF and so on")
