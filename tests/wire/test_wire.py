"""Bodies: what is packed is read again, the bytes are those of the specification, and anything else is refused."""

import gc
import io
import pickle
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from reelscribe import wire
from reelscribe.errors import WireError
from support.memory import peak_memory
from support.trees import same

FRAMES = np.arange(2 * 40 * 30 * 3, dtype=np.uint8).reshape(2, 40, 30, 3)

GOLDEN = bytes.fromhex(
    "93 52 53 42 4f 44 59 01"  # magic, version
    " 3e000000 01000000"  # a pickle of 62 bytes, one buffer
    " 0010000000000000"  # 4,096 bytes in the buffer
    " 8005 95 3300000000000000"  # protocol 5, one frame
    " 8c0f 7265656c7363726962652e77697265 94 8c05 6172726179 94 93 94"  # reelscribe.wire array
    " 28 97 98 8c03 7c7531 94 4d0010 85 94 8c01 43 94 74 94 52 94 2e"  # (buffer, "|u1", (4096,), "C")
)


def body(tree):
    return b"".join(wire.pack(tree))


CYCLE: list = []
CYCLE.append(CYCLE)

DOUBLING: tuple = ()
for _ in range(40):
    DOUBLING = (DOUBLING, DOUBLING)

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
def test_every_tree_is_the_same_after_packing_and_unpacking(tree):
    assert same(tree, wire.unpack(body(tree)))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(array=arrays)
def test_plain_pickles_of_arrays_are_read(protocol, array):
    assert same(array, wire.unpack(pickle.dumps(array, protocol=protocol)))


def test_megabytes_of_data_that_protocol_2_writes_as_text_are_read():
    array = np.random.default_rng(0).integers(0, 256, 6_000_000, np.uint8)
    assert same(array, wire.unpack(pickle.dumps(array, protocol=2)))


@given(array=arrays)
def test_npy_files_are_read(array):
    file = io.BytesIO()
    np.save(file, array)
    assert same(array, wire.unpack(file.getvalue()))


def test_a_body_has_the_bytes_of_the_specification():
    array = np.zeros(4096, np.uint8)
    golden = GOLDEN + bytes(-len(GOLDEN) % 64) + bytes(4096)
    assert body(array) == golden
    assert same(array, wire.unpack(golden))


@pytest.mark.parametrize(("size", "buffers"), [(4095, 0), (4096, 1), (4097, 1)])
def test_arrays_below_4096_bytes_travel_in_the_pickle_and_others_beside_it(size, buffers):
    array = np.arange(size, dtype=np.uint8)
    packed = body({"array": array})
    assert struct.unpack_from(f"<I{buffers}Q", packed, 12) == (buffers, *[size] * buffers)
    assert packed.count(array.tobytes()) == 1
    assert same({"array": array}, wire.unpack(packed))


def test_neither_packing_nor_unpacking_copies_a_large_array():
    _, *segments = wire.pack({"frames": FRAMES})
    assert np.shares_memory(np.frombuffer(segments[-1], np.uint8), FRAMES)
    received = bytearray(body({"frames": FRAMES}))
    assert np.shares_memory(wire.unpack(received)["frames"], np.frombuffer(received, np.uint8))


def test_unpacking_a_large_body_takes_almost_no_memory():
    frames = np.zeros((200, 1000, 1000), np.uint8)
    received = bytearray().join(wire.pack({"frames": frames}))
    with peak_memory() as peak:
        tree = wire.unpack(received)
    assert tree["frames"].shape == frames.shape
    assert peak() < 10_000


def test_the_garbage_collector_survives_segments_in_a_cycle():
    gc.freeze()  # so that it need not go through all objects of other tests
    for _ in range(20):
        cycle: list = wire.pack({"frames": FRAMES})
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0
    gc.unfreeze()


def test_every_buffer_is_aligned():
    packed = body([FRAMES, FRAMES[:, ::-1]])
    first, second = wire.unpack(packed)
    start = np.frombuffer(packed, np.uint8).ctypes.data
    assert (first.ctypes.data - start) % wire.ALIGNMENT == (second.ctypes.data - start) % wire.ALIGNMENT == 0


LAYOUTS = {
    "strided": FRAMES[:, ::2],
    "backwards": FRAMES[:, :, ::-1],
    "Fortran": np.asfortranarray(FRAMES),
    "permuted": FRAMES.transpose(0, 3, 1, 2),
    "slice of permuted": FRAMES.transpose(0, 2, 3, 1)[:, 1:],
}


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
def test_arrays_of_other_layouts_are_the_same_after_packing_and_unpacking(array):
    received = wire.unpack(body(array))
    assert same(np.ascontiguousarray(array), np.ascontiguousarray(received))
    assert received.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
def test_plain_pickles_of_other_layouts_are_read(array, protocol):
    assert np.array_equal(array, wire.unpack(pickle.dumps(array, protocol=protocol)))


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        np.float32(1),
        {1: 2},
        np.array([object()]),
        np.array(["text"]),
        np.zeros(2, "M8[s]"),
        wire,
        "\U0001f600" * 2**21,
        [str(k) for k in range(99_990)],
        CYCLE,
        DOUBLING,
        {(lambda: 0): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_pack_refuses_values_that_a_body_cannot_hold(value):
    with pytest.raises(WireError, match=r"expected|hold one of|allowed|keys of|over|more than|at most"):
        body([value])


def nested(levels):
    return [nested(levels - 1)] if levels else None


def large_arrays(count):
    return [np.zeros(4096, np.uint8) for _ in range(count)]


@pytest.mark.parametrize(
    ("largest", "larger"),
    [
        ([None] * 99_999, [None] * 100_000),
        (nested(32), nested(33)),
        (2**255 - 1, 2**255),
        (-(2**255), -(2**255) - 1),
        (np.zeros((1,) * 32), np.zeros((1,) * 33)),
        (large_arrays(4096), large_arrays(4097)),
    ],
    ids=["values", "levels", "int", "negative int", "dimensions", "buffers"],
)
def test_a_limit_admits_what_reaches_it_and_nothing_larger(largest, larger):
    assert same(largest, wire.unpack(body(largest)))
    with pytest.raises(WireError, match=r"over|more than|up to 32|at most"):
        body(larger)


@pytest.mark.parametrize("size", [0, 7, 8, 15, 20, 60, 100, 1000, len(body(FRAMES)) - 1])
def test_a_truncated_body_is_refused(size):
    with pytest.raises(WireError, match=r"expected|take|announce"):
        wire.unpack(body(FRAMES)[:size])


def test_bytes_after_the_end_are_refused():
    with pytest.raises(WireError, match="announces"):
        wire.unpack(body(FRAMES) + b"x")


def test_padding_that_is_not_zero_is_refused():
    packed = bytearray(body(FRAMES))
    start = len(packed) - FRAMES.nbytes
    assert packed[start - 1] == 0
    packed[start - 1] = 1
    with pytest.raises(WireError, match="expected zeros between its parts, got others"):
        wire.unpack(packed)


def test_a_buffer_that_the_pickle_does_not_use_is_refused():
    unused = wire.MAGIC + struct.pack("<BIIQ", wire.VERSION, 4, 1, 0) + b"\x80\x05N." + bytes(36)
    with pytest.raises(WireError, match="uses all buffers"):
        wire.unpack(unused)


NONE = b"\x80\x05N."
CLAIMS = {
    "a pickle of 4 GB": (
        struct.pack("<BII", wire.VERSION, 2**32 - 1, 0) + NONE,
        "expected the header and pickle that it announces",
    ),
    "a buffer of 2**40 bytes": (struct.pack("<BIIQ", wire.VERSION, 4, 1, 2**40) + NONE, "announces"),
    "buffers of 2**64 bytes": (struct.pack("<BIIQQ", wire.VERSION, 4, 2, 2**64 - 1, 2**64 - 1) + NONE, "announces"),
    "4,097 buffers": (struct.pack("<BII4097Q", wire.VERSION, 4, 4097, *[0] * 4097) + NONE, "at most 4096 buffers fit"),
    "2**32 - 1 buffers": (struct.pack("<BII", wire.VERSION, 4, 2**32 - 1) + NONE, "at most 4096 buffers fit"),
}


@pytest.mark.parametrize(("claim", "reason"), CLAIMS.values(), ids=CLAIMS)
def test_a_short_body_that_announces_a_large_one_takes_no_memory(claim, reason):
    with peak_memory() as peak, pytest.raises(WireError, match=reason):
        wire.unpack(wire.MAGIC + claim)
    assert peak() < 100_000


def npy_file(header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    size = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + header + data


NPY_HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x93NUMPY", "version"),
        (npy_file(NPY_HEADER % b"1,", b"x", b"\3\0"), "expected format version 1.0 or 2.0, got another one"),
        (npy_file(NPY_HEADER % b"1,"), "as its dtype and shape take, got 0"),
        (npy_file(NPY_HEADER % b"1,", b"xx"), "as its dtype and shape take, got 2"),
        (npy_file(NPY_HEADER % b"-1,", b"x"), "header of a plain numeric array"),
        (npy_file(NPY_HEADER % b"1099511627776,"), "as its dtype and shape take, got 0"),
        (npy_file(NPY_HEADER % (b"1, " * 33), b"x"), "up to 32 lengths"),
        (npy_file(NPY_HEADER % (b"9" * 20 + b", ") * 2), "header of a plain"),
        (npy_file((NPY_HEADER % b"1,").replace(b"|u1", b"|O8"), b"x" * 8), "array dtype: expected one of"),
        (npy_file((NPY_HEADER % b"1,").replace(b"'|u1'", b"[('a', '|u1')]"), b"x"), "header of a plain"),
        (npy_file(b"__import__('os').system('x')"), "header of a plain"),
        (npy_file(b"(" * 1900), "header of a plain"),
        (npy_file(NPY_HEADER % b"1,", b"x")[:20], "header of a plain"),
        (npy_file(NPY_HEADER % b"0,")[:-1], "header of a plain"),
        (npy_file(NPY_HEADER % b"1," + b" " * 2000, b"x"), "header of a plain"),
    ],
)
def test_npy_files_without_a_plain_array_are_refused(body, reason):
    with pytest.raises(WireError, match=re.escape(reason)):
        wire.unpack(body)


def test_numpy_reads_the_npy_file_that_the_refused_ones_are_made_from():
    body = npy_file(NPY_HEADER % b"1,", b"x", b"\2\0")
    assert np.load(io.BytesIO(body)) == wire.unpack(body) == [120]


def test_an_unknown_version_is_refused():
    newer = bytearray(body(FRAMES))
    newer[7] = 2
    with pytest.raises(WireError, match="expected format version 1, got another one; use the newer"):
        wire.unpack(newer)


def test_bytes_of_an_unknown_format_are_refused():
    with pytest.raises(WireError, match="got 14 bytes that start like none of them"):
        wire.unpack(b"GIF89a and on.")
