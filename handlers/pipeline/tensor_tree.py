"""A tree of tensors, taken apart into its tensors and a text that says what belongs where, and put together again.

The text is JSON, at most 16 MiB: {"version": 1, "tree": NODE}. A NODE is

    null, true, 7, 0.5, NaN, Infinity, "text"   itself
    [NODE, ...]                                 a list
    {"dict": {NAME: NODE, ...}}                 a dict
    {"tensor": [DTYPE, [LENGTH, ...]]}          the next tensor, of that shape

It is not pickle: reading it makes nothing but these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from reelscribe.errors import WireError

VERSION = 1
MAX_METADATA_BYTES = 16 << 20
MAX_TENSORS = 4096
MAX_DEPTH = 16
MAX_BYTES = 8 << 30
"""Of all tensors together; an encoded device batch of 512 frames is 0.4 GB."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is to become."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of its values."""
        return prod(self.shape) * self.dtype.itemsize


class Outline:
    """A tree whose tensors are still to come."""

    def __init__(self, metadata: bytes) -> None:
        """Read what `take_apart` made.

        Raises WireError for anything else.
        """
        try:
            message = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise _unknown(f"JSON ({error})", metadata) from None
        if not isinstance(message, dict) or message.keys() != {"version", "tree"} or message["version"] != VERSION:
            raise _unknown(f"version {VERSION} with a tree", message)
        self.specs: list[TensorSpec] = []
        """The tensors, in the order in which they come."""
        self._tree = self._read(message["tree"], 0)
        if not isinstance(self._tree, dict):
            raise _unknown("a dict at the top", message["tree"])
        _check_limits(self.specs)

    def filled(self, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """The tree with `tensors`, one for each of `specs`."""
        tree: dict[str, Any] = _fill(self._tree, iter(tensors))
        return tree

    def _read(self, node: Any, depth: int) -> Any:
        """The value of a node, with a TensorSpec for each tensor."""
        if depth > MAX_DEPTH:
            raise _unknown(f"at most {MAX_DEPTH} levels", "more")
        if isinstance(node, list):
            return [self._read(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        match node:
            case {"dict": dict(items)} if len(node) == 1:
                return {name: self._read(item, depth + 1) for name, item in items.items()}
            case {"tensor": [str(name), list(shape)]} if len(node) == 1 and name in DTYPES and all(map(_fits, shape)):
                self.specs.append(TensorSpec(DTYPES[name], tuple(shape)))
                return self.specs[-1]
        raise _unknown("a dict or a tensor", node)


def take_apart(tree: Mapping[str, Any]) -> tuple[bytes, list[Tensor]]:
    """The text that `Outline` reads, and the tensors, which it does not copy.

    Raises WireError for what is neither dict (with names), list, tensor, str, int (64 bits), float, bool nor None.
    """
    if not isinstance(tree, Mapping):
        raise WireError(f"stage: expected a dict of tensors, got {type(tree).__name__}")
    tensors: list[Tensor] = []
    message = {"version": VERSION, "tree": _node(tree, tensors, 0)}
    metadata = json.dumps(message, separators=(",", ":")).encode()
    if len(metadata) > MAX_METADATA_BYTES:
        raise WireError(
            f"stage: all but the tensors is {len(metadata)} bytes, and {MAX_METADATA_BYTES} are allowed;"
            " send large data as tensors"
        )
    _check_limits([TensorSpec(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
    return metadata, tensors


def _node(value: Any, tensors: list[Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise WireError(f"stage: a tree has at most {MAX_DEPTH} levels; send a flatter one")
    if isinstance(value, Tensor):
        if value.dtype not in _NAMES or value.layout != torch.strided:
            raise WireError(f"stage: expected a dense tensor of {', '.join(DTYPES)}, got {value.dtype}, {value.layout}")
        tensors.append(value)
        return {"tensor": [_NAMES[value.dtype], list(value.shape)]}
    if isinstance(value, Mapping):
        if not all(type(name) is str for name in value):
            raise WireError(f"stage: names in a dict are str, got {sorted(map(repr, value))}")
        return {"dict": {name: _node(item, tensors, depth + 1) for name, item in value.items()}}
    if type(value) is list:
        return [_node(item, tensors, depth + 1) for item in value]
    plain = value is None or type(value) in (str, float, bool)
    if plain or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    raise WireError(
        "stage: expected a dict, list, tensor, str, int of 64 bits, float, bool or None,"
        f" got {type(value).__name__} {str(value)[:60]}"
    )


def _fill(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, TensorSpec):
        return next(tensors)
    if isinstance(value, dict):
        return {name: _fill(item, tensors) for name, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, tensors) for item in value]
    return value


def _fits(length: Any) -> bool:
    return type(length) is int and 0 <= length <= MAX_BYTES


def _check_limits(specs: list[TensorSpec]) -> None:
    count, nbytes = len(specs), sum(spec.nbytes for spec in specs)
    if count > MAX_TENSORS or nbytes > MAX_BYTES:
        raise WireError(
            f"stage: {count} tensors of {nbytes} bytes, and {MAX_TENSORS} of {MAX_BYTES} are allowed;"
            " lower device_batch"
        )


def _unknown(expected: str, got: Any) -> WireError:
    return WireError(f"stage: expected {expected}, got {str(got)[:60]}; both stages run the same archive")
