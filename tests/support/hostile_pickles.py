"""Pickles that ask for what they must not get."""

import functools
import os
import pickle
import struct

import numpy as np
import pytest


class Calls:
    """Pickles as a call of anything."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def nested(opcode: bytes, close: bytes, levels: int) -> bytes:
    return b"\x80\x05" + opcode * levels + close * (levels - 1) + b"."


ARRAY = pickle.dumps(np.arange(10, dtype="<i4"), protocol=4)


def calling(module: str, name: str) -> bytes:
    """A pickle that calls what it names, with one text."""
    return b"\x80\x02c%s\n%s\nX\x01\x00\x00\x00x\x85R." % (module.encode(), name.encode())


def array_call(data: bytes, shape: bytes) -> bytes:
    """An array as the format has it, of one byte an item."""
    return b"\x80\x05\x8c\x0freelscribe.wire\x8c\x05array\x93(" + data + b"\x8c\x03|u1" + shape + b"\x8c\x01CtR."


def from_numpy(shape: bytes, axes: bytes) -> bytes:
    """An array of two bytes as numpy spells one whose axes were permuted."""
    start = b"\x80\x05cnumpy._core.numeric\n_frombuffer\n(C\x02xy\x8c\x03|u1"
    return start + shape + b"\x8c\x01K" + axes + b"tR."


DANGEROUS_NAMES = [
    *[
        "builtins exec",
        "builtins compile",
        "builtins getattr",
        "builtins open",
        "builtins bytearray",
        "builtins object",
    ],
    *["__builtin__ eval", "nt system", "posix system", "pty spawn", "subprocess Popen", "subprocess check_output"],
    *["importlib import_module", "importlib.util spec_from_file_location", "runpy run_path", "pkgutil resolve_name"],
    *["functools partial", "functools reduce", "operator attrgetter", "operator methodcaller", "types FunctionType"],
    *["copyreg _reconstructor", "copyreg __newobj__", "pickle loads", "_pickle Unpickler", "marshal loads"],
    *["ctypes CDLL", "mmap mmap", "socket create_connection", "shutil rmtree", "webbrowser open", "codecs decode"],
    *[
        "numpy load",
        "numpy fromfile",
        "numpy memmap",
        "numpy loadtxt",
        "numpy frombuffer",
        "numpy empty",
        "numpy matrix",
    ],
    *["numpy ndarray.tofile", "numpy dtype.type", "numpy.ctypeslib load_library", "numpy.f2py compile"],
    *["numpy.core.multiarray scalar", "numpy._core.multiarray scalar", "numpy._core.multiarray fromfile"],
    *[
        "numpy.core._internal _ctypes",
        "numpy._core.numeric ones",
        "numpy.lib.npyio load",
        "numpy.random._pickle __bit_generator_ctor",
    ],
    *["numpy.testing._private.utils runstring", "numpy.distutils.exec_command exec_command"],
    *["torch load", "torch.storage _load_from_bytes", "torch._utils _rebuild_tensor_v2", "pandas read_pickle"],
    *[
        "reelscribe.wire pickle",
        "reelscribe.wire unpack",
        "reelscribe.wire array.__globals__",
        "reelscribe.server stop",
    ],
]

HOSTILE = {
    "it names": {
        **{name: calling(*name.split()) for name in DANGEROUS_NAMES},
        "os.system": pickle.dumps(Calls(os.system, ("touch /tmp/owned",))),
        "eval": pickle.dumps(Calls(eval, ("1+1",))),
        "import": pickle.dumps(Calls(__import__, ("os",))),
        "partial": pickle.dumps(functools.partial(print, "x")),
        "numpy's testing": b"\x80\x02cnumpy.testing._private.utils\nrunstring\nX\x01\x00\x00\x00x}\x86R.",
        "a method of ndarray": b"\x80\x05\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        "the format's own module": b"\x80\x05\x8c\x0freelscribe.wire\x8c\x06pickle\x93.",
        "a numpy scalar": pickle.dumps(np.float32(1)),
        "a subclass of ndarray": b"\x80\x02cnumpy\nmatrix\n.",
        "an instance": b"\x80\x02c__main__\nX\n)\x81.",
        "an old object": b"\x80\x02(cos\nsystem\no.",
        "a frame within a frame": b"\x80\x04\x95\x0b" + bytes(7) + b"\x95\xff" + bytes(7) + b"cos\nsystem\n.",
        "a pickle in a pickle": b"\x80\x02cpickle\nloads\nU\x05\x80\x02N.\x85R.",
    },
    "for latin1 text only": {
        "codecs other than latin1": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x03\x00\x00\x00hex\x86R.",
    },
    "what is left is neither": {
        "a name that is left over": b"\x80\x02cnumpy\nndarray\n.",
        "an array without state": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy"
        b"\nndarray\nK\x00\x85C\x01b\x87R.",
    },
    "ndarray is not called": {
        "ndarray called": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85R.",
        "a chain of calls": b"\x80\x02cnumpy\nndarray\n)R)R)R.",
        "a memo that holds a name": b"\x80\x04cnumpy\nndarray\n\x94h\x00)R.",
    },
    "array dtype: expected": {
        "objects in an array": pickle.dumps(np.array([print, "x"], dtype=object)),
        "a void dtype": pickle.dumps(np.zeros(2, "V8")),
        "a structured dtype": pickle.dumps(np.zeros(2, [("a", "i4")])),
        "dates": pickle.dumps(np.zeros(2, "M8[s]")),
        "a dtype that is an object's": ARRAY.replace(b"\x8c\x02i4", b"\x8c\x02O8"),
        "a dtype with a long tail": ARRAY.replace(b"\x8c\x02i4", b"\x8c\x02i9"),
    },
    "array data: ": {
        "too little data": ARRAY.replace(b"K\n\x85", b"K\x0b\x85"),
        "too much data": ARRAY.replace(b"K\n\x85", b"K\x09\x85"),
        "lengths that overflow": ARRAY.replace(b"K\n\x85", b"\x8a\x0a" + b"\xff" * 9 + b"\x00\x85"),
        "an array of an array's data": b"\x80\x04cnumpy._core.numeric\n_frombuffer\n("
        + ARRAY[11:-1]
        + b"X\x03\x00\x00\x00|u1K\x01\x85X\x01\x00\x00\x00CtR.",
        "shape times item is 2**64": array_call(b"C\x00", b"\x8a\x09" + bytes(8) + b"\x01\x85"),
    },
    "array shape: ": {
        "a negative length": ARRAY.replace(b"K\n\x85", b"J\xf6\xff\xff\xff\x85"),
        "a shape that is a deep tuple": b"\x80\x05\x8c\x0freelscribe.wire\x8c\x05array\x93(C\x01x\x8c\x03|u1)"
        + b"\x85" * 5000
        + b"\x8c\x01CtR.",
        "33 dimensions": array_call(b"C\x00", b"(" + b"K\x00" * 33 + b"t"),
        "a shape of true": array_call(b"C\x01x", b"\x88\x85"),
        "a shape of floats": array_call(b"C\x01x", b"G" + struct.pack(">d", 1.0) + b"\x85"),
        "lengths that overflow beside none": array_call(
            b"C\x00", b"\x8a\x08" + b"\xff" * 7 + b"\x7f\x8a\x08" + b"\xff" * 7 + b"\x7fK\x00\x87"
        ),
    },
    "bytes are announced": {
        "a million million bytes claimed": b"\x80\x05\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "a bytearray of as many": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
        "text of as many": b"\x80\x05\x8d" + struct.pack("<Q", 2**40) + b"x.",
        "nothing": b"",
        "a frame as long as the world": b"\x80\x04\x95" + b"\xff" * 8 + b"\x8e" + b"\xff" * 8 + b".",
    },
    "more than 32 bytes": {
        "a huge integer": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    },
    "over 100000 values or 32 levels": {
        "deep nesting": nested(b"]", b"a", 10_000),
        "deep tuples": b"\x80\x02)" + b"\x85" * 10_000 + b".",
        "a list in itself": b"\x80\x02]q\x00h\x00a.",
        "doubling tuples": b"\x80\x02)" + b"q\x00h\x00\x86" * 30 + b".",
        "a view, referred to by the hundred thousand": b"\x80\x02(B\x10\x27\x00\x00"
        + b"x" * 10_000
        + b"q\x00"
        + b"h\x00" * 100_000
        + b"t.",
        "a dict in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00kh\x00s.",
        "views by the hundred thousand": b"\x80\x02(" + b"C\x00" * 199_000 + b"t.",
        "dicts by the ten thousand": b"\x80\x02(X\x01\x00\x00\x00kq\x00" + b"}h\x00Ns" * 49_000 + b"N" * 3000 + b"t.",
    },
    "that it never stored": {
        "a memo index out of the blue": b"\x80\x02j\xff\xff\xff\xff.",
    },
    "more than 200000 opcodes": {
        "many opcodes": b"\x80\x02(" + b"N" * 900_000 + b"t.",
    },
    "expected one value": {
        "nothing on the stack": b"\x80\x02.",
        "two values": b"\x80\x02NN.",
        "bytes after the end": b"\x80\x02N.N",
        "two pickles": b"\x80\x02N.\x80\x02N.",
        "arrays by the ten thousand": b"\x80\x05\x8c\x0freelscribe.wire\x8c\x05array\x93q\x00(C"
        b"\x00X\x03\x00\x00\x00|u1(" + b"K\x00" * 32 + b"tX\x01\x00\x00\x00Ctq\x01(" + b"h\x00h\x01R" * 60_000 + b".",
    },
    "it ends early": {
        "pops from an empty stack": b"\x80\x02a.",
        "a tuple of nothing": b"\x80\x02\x87.",
        "a mark that is missing": b"\x80\x02t.",
        "no end": b"\x80\x02N",
    },
    "dict keys are text": {
        "a dict key that is a list": b"\x80\x02}]Ns.",
        "a dict key that is a doubling tuple": b"\x80\x02})" + b"q\x00h\x00\x86" * 40 + b"Ns.",
        "integers that collide": b"\x80\x02}("
        + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(60_000))
        + b"u.",
    },
    "a call of something": {
        "a list as a call": b"\x80\x02])R.",
        "a call of an array": ARRAY[:-1] + b")R.",
    },
    "a state for something": {
        "a state for a list": b"\x80\x02]}b.",
        "a state for a name": b"\x80\x02cnumpy\nndarray\n}b.",
    },
    "expected protocol 2 to 5": {
        "protocol 0": pickle.dumps([1], protocol=0),
        "protocol 9": b"\x80\x09N.",
    },
    "expected opcodes": {
        "a persistent id": b"\x80\x02X\x01\x00\x00\x00xQ.",
        "an extension code": b"\x80\x02\x82\x01.",
        "a set": pickle.dumps({1}),
        "a call of a call's result": ARRAY[:-1] + b")\x81.",
        "keyword arguments": b"\x80\x04cnumpy\nndarray\n)}\x92.",
        "an old instance": b"\x80\x02(ios\nsystem\n.",
    },
    "more buffers than the body has": {
        "a buffer that is not there": b"\x80\x05\x97.",
    },
    "text that is not UTF-8": {
        "text that is no UTF-8": b"\x80\x05\x8c\x01\xff.",
    },
    "more bytes than it holds": {
        "text encoded again and again": b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x01\x00"
        + b"x" * 65536
        + b"X\x06\x00\x00\x00latin1\x86q\x01R"
        + b"h\x00h\x01R" * 30_000
        + b".",
    },
    "expected the state of": {
        "a dtype's state with arrays": b"\x80\x05cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R(K\x03"
        + array_call(b"C\x01x", b"K\x01\x85")[2:-1]
        + b"NNNNNNtb.",
        "a dtype's state with fields": b"\x80\x05cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R(K\x03"
        b"\x8c\x01|N\x8c\x01a\x85}NNNtb.",
        "a state for a finished array": ARRAY[:-1] + b"}b.",
    },
    "items for a list": {
        "a memo index that is overwritten": b"\x80\x02]q\x00}q\x00h\x00h\x00a.",
    },
    "array order: ": {
        "axes that are none": from_numpy(b"K\x01K\x02\x86", b"K\x01K\x00K\x02\x87"),
        "axes as a list": from_numpy(b"K\x01K\x02\x86", b"](K\x01K\x00e"),
    },
    "array axes: ": {
        "axes twice": from_numpy(b"K\x01K\x02\x86", b"K\x01K\x01\x86"),
        "axes that are true": from_numpy(b"K\x01K\x02\x86", b"\x89\x88\x86"),
    },
    "a dtype is made of 3 values": {
        "one dtype of a long tuple, often": b"\x80\x02cnumpy\ndtype\nq\x00X\x02\x00\x00\x00u1q\x01(h\x01"
        + b"N" * 60_000
        + b"tq\x02"
        + b"h\x00h\x02R" * 40_000
        + b".",
    },
    "bytes of text": {
        "letters beside an emoji, often": b"\x80\x02("
        + (b"X\x00\x00\x10\x00" + b"x" * (2**20 - 4) + "\U0001f600".encode()) * 9
        + b"t.",
    },
}
"""By the reason for which they are refused, then by name."""

CASES = [pytest.param(body, reason, id=name) for reason, bodies in HOSTILE.items() for name, body in bodies.items()]
