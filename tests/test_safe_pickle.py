"""Hostile pickles: whatever they ask for, a WireError is all that happens."""

import functools
import os
import pickle
import struct
import time
import tracemalloc

import numpy as np
import pytest

from reelscribe.errors import WireError
from reelscribe.safe_pickle import load


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def nested(opcode: bytes, close: bytes, levels: int) -> bytes:
    return b"\x80\x05" + opcode * levels + close * (levels - 1) + b"."


ARRAY = pickle.dumps(np.arange(10, dtype="<i4"), protocol=4)

HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, ("touch /tmp/owned",))),
    "eval": pickle.dumps(Calls(eval, ("1+1",))),
    "getattr": b"\x80\x02cbuiltins\ngetattr\n.",
    "import": pickle.dumps(Calls(__import__, ("os",))),
    "partial": pickle.dumps(functools.partial(print, "x")),
    "numpy's load": b"\x80\x02cnumpy\nload\nX\x01\x00\x00\x00x\x85R.",
    "numpy's testing": b"\x80\x02cnumpy.testing._private.utils\nrunstring\nX\x01\x00\x00\x00x}\x86R.",
    "a method of ndarray": b"\x80\x05\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "the format's own module": b"\x80\x05\x8c\x0freelscribe.wire\x8c\x06pickle\x93.",
    "codecs other than latin1": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x03\x00\x00\x00hex\x86R.",
    "a name that is left over": b"\x80\x02cnumpy\nndarray\n.",
    "ndarray called": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85R.",
    "an array without state": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R.",
    "objects in an array": pickle.dumps(np.array([print, "x"], dtype=object)),
    "a void dtype": pickle.dumps(np.zeros(2, "V8")),
    "a structured dtype": pickle.dumps(np.zeros(2, [("a", "i4")])),
    "dates": pickle.dumps(np.zeros(2, "M8[s]")),
    "a numpy scalar": pickle.dumps(np.float32(1)),
    "a subclass of ndarray": b"\x80\x02cnumpy\nmatrix\n.",
    "too little data": ARRAY.replace(b"K\n\x85", b"K\x0b\x85"),
    "too much data": ARRAY.replace(b"K\n\x85", b"K\x09\x85"),
    "a negative length": ARRAY.replace(b"K\n\x85", b"J\xf6\xff\xff\xff\x85"),
    "lengths that overflow": ARRAY.replace(b"K\n\x85", b"\x8a\x0a" + b"\xff" * 9 + b"\x00\x85"),
    "a million million bytes claimed": b"\x80\x05\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "a bytearray of as many": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "text of as many": b"\x80\x05\x8d" + struct.pack("<Q", 2**40) + b"x.",
    "a huge integer": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "deep nesting": nested(b"]", b"a", 10_000),
    "deep tuples": b"\x80\x02)" + b"\x85" * 10_000 + b".",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "doubling lists": b"\x80\x02]" + b"".join(b"q%c]h%ch%c\x86a" % (i, i, i) for i in range(40)) + b".",
    "a memo index out of the blue": b"\x80\x02j\xff\xff\xff\xff.",
    "many opcodes": b"\x80\x02(" + b"N" * 900_000 + b"t.",
    "nothing on the stack": b"\x80\x02.",
    "pops from an empty stack": b"\x80\x02a.",
    "a tuple of nothing": b"\x80\x02\x87.",
    "a mark that is missing": b"\x80\x02t.",
    "two values": b"\x80\x02NN.",
    "bytes after the end": b"\x80\x02N.N",
    "a dict key that is a list": b"\x80\x02}]Ns.",
    "a list as a call": b"\x80\x02])R.",
    "a state for a list": b"\x80\x02]}b.",
    "protocol 0": pickle.dumps([1], protocol=0),
    "protocol 9": b"\x80\x09N.",
    "an instance": b"\x80\x02c__main__\nX\n)\x81.",
    "a persistent id": b"\x80\x02X\x01\x00\x00\x00xQ.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a set": pickle.dumps({1}),
    "a buffer that is not there": b"\x80\x05\x97.",
    "text that is no UTF-8": b"\x80\x05\x8c\x01\xff.",
    "no end": b"\x80\x02N",
    "nothing": b"",
    "a dict key that is a doubling tuple": b"\x80\x02})" + b"q\x00h\x00\x86" * 40 + b"Ns.",
    "a shape that is a deep tuple": b"\x80\x05\x8c\x0freelscribe.wire\x8c\x05array\x93(C\x01x\x8c\x03|u1)"
    + b"\x85" * 5000
    + b"\x8c\x01CtR.",
    "text encoded again and again": b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x01\x00"
    + b"x" * 65536
    + b"X\x06\x00\x00\x00latin1\x86q\x01R"
    + b"h\x00h\x01R" * 30_000
    + b".",
    "integers that collide": b"\x80\x02}("
    + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(60_000))
    + b"u.",
    "a dtype's state with arrays": b"\x80\x05cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R(K\x03"
    + ARRAY[13:-1].replace(b"\x94", b"")
    + b"NNNNNNtb.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pickles_are_refused_soon_and_cheaply(data):
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(WireError):
        load(memoryview(data))
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(data) + 64e6
    assert seconds < 5  # tracing is slow; the point is that it is not minutes


def test_the_corpus_is_hostile():
    """Guards the test above: the same bytes do make the standard library call what they name."""
    assert pickle.loads(pickle.dumps(Calls(len, ((1, 2),)))) == 2
    with pytest.raises(WireError):
        load(memoryview(pickle.dumps(Calls(len, ((1, 2),)))))


def test_messages_stay_short():
    with pytest.raises(WireError) as error:
        load(memoryview(pickle.dumps(Calls(os.system, ("x" * 1000,)))))
    assert len(str(error.value)) < 200
