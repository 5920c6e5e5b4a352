"""Runs with the packages of one tree, and prints or writes what the checks compare."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def print_options() -> None:
    """Print a line for each command, argument and option, without its help text."""
    from typer.main import get_command

    from reelscribe.cli import app

    def lines(command: Any, words: list[str]) -> Iterator[str]:
        arguments = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
        yield " ".join([*words, "arguments:", *arguments])
        for parameter in sorted(command.params, key=lambda parameter: parameter.opts):  # panels of --help have no order
            names = [*words, *parameter.opts, *parameter.secondary_opts]
            yield f"{' '.join(names)} {json.dumps(_properties(parameter))}"
        for name, subcommand in getattr(command, "commands", {}).items():
            yield " ".join([*words, name])
            yield from lines(subcommand, [*words, name])

    print(*lines(get_command(app), []), sep="\n")


def _properties(parameter: Any) -> dict[str, Any]:
    names = ("param_type_name", "metavar", "required", "multiple", "nargs", "envvar")
    # An argument has no `is_flag`. A type of reelscribe itself is printed without its module, because modules may move.
    optional = {name: getattr(parameter, name, None) for name in ("min", "max", "hidden", "is_flag")}
    optional["show_default"] = bool(getattr(parameter, "show_default", None))  # what a text says instead is wording
    kind = re.sub(r"\breelscribe[\w.]*\.", "", str(parameter.type_descriptor.annotation))
    known = {name: getattr(parameter, name) for name in names}
    return {**known, **optional, "default": repr(parameter.default), "type": kind}


def pack_bodies(folder: Path) -> None:
    """Write request bodies, one for each of some fixed trees of values."""
    from reelscribe import wire

    for name, tree in _trees().items():
        (folder / name).write_bytes(b"".join(map(bytes, wire.pack(tree))))


def _trees() -> dict[str, Any]:
    dtypes = ("?", "i1", "<u2", ">u2", "<i4", "<f2", ">f4", "<f8", "<c8", "<c16")
    return {
        "plain": {"a": [1, -2, 2**70, 0.5, True, None, "text ü 🎬", b"bytes"], "b": (), "c": {"d": ("e", [])}},
        "frames": {"frames": _ramp(3, 64, 64, 3), "size": [64, 64]},
        "chunks": {"chunks": [_ramp(40_000, dtype="<i2"), _ramp(3, dtype="<i2")], "task": "translate"},
        "dtypes": [_ramp(5, dtype=dtype) for dtype in dtypes],
        "orders": [np.asfortranarray(_ramp(90, 70)), _ramp(90, 70)[::2, ::3], _ramp(80, 80).T, _ramp(0, 4)],
        "shared": [_ramp(5000)] * 3,
    }


def _ramp(*shape: int, dtype: str = "u1") -> Any:
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


def print_unpacked(folder: Path) -> None:
    """Print what is read from the bodies in a folder, from others that clients may send, and from damaged ones."""
    bodies = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    array = _ramp(3, 4, dtype="<f4")
    bodies |= {f"pickle-{protocol}": pickle.dumps(array, protocol) for protocol in range(2, 6)}
    np.save(npy := io.BytesIO(), array)
    bodies |= {"npy": npy.getvalue(), "empty": b"", "text": b"hello", "class": pickle.dumps(Path("x"))}
    for name, body in bodies.items():
        damaged = {"cut": body[:-1], "longer": body + b"x", "other version": body[:7] + b"9" + body[8:]}
        for kind, changed in {"whole": body, **damaged}.items():
            print(name, kind, _unpacked(changed))


def _unpacked(body: bytes) -> Any:
    from reelscribe import wire

    try:
        return _outline(wire.unpack(body))
    except Exception as error:  # noqa: BLE001 - the type of any exception is compared
        return type(error).__name__


def _outline(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype.str} {tree.shape} {tree.strides} {hashlib.sha256(tree.tobytes()).hexdigest()}"
    if isinstance(tree, dict):
        return {name: _outline(value) for name, value in tree.items()}
    return type(tree)(map(_outline, tree)) if isinstance(tree, (list, tuple)) else tree


def parquet_to_text(folder: Path) -> None:
    """Replace each Parquet file by a text file with its schema and rows."""
    import pyarrow.parquet

    for path in folder.rglob("*.parquet"):
        table = pyarrow.parquet.read_table(path)
        rows = [json.dumps(row, default=str) for row in table.to_pylist()]
        path.with_suffix(".parquet.txt").write_text("\n".join([table.schema.to_string(), *rows]) + "\n")
        path.unlink()


def make_library(folder: Path, media: Path, tests: Path) -> None:
    """Make the odd library of the end-to-end tests with the module `odd_library`, wherever it is in `tests`."""
    from importlib import import_module

    (module,) = tests.rglob("odd_library.py")
    import_module(".".join(module.relative_to(tests).with_suffix("").parts)).make_library(folder, media)


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(Path, sys.argv[2:]))
