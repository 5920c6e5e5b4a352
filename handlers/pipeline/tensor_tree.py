"""Splits a tree of tensors into its tensors and a description of the rest, and restores it.

The description is JSON of at most 16 MiB: {"version": 1, "tree": NODE}. A NODE is

    null, true, 7, 0.5, NaN, Infinity, "text"   a plain value
    [NODE, ...]                                 a list
    {"dict": {NAME: NODE, ...}}                 a dict
    {"tensor": [DTYPE, [LENGTH, ...]]}          the next tensor, of that dtype and shape

It is not pickle: reading it creates nothing but these values.
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
"""Limit for the description."""
MAX_TENSORS = 4096
MAX_DEPTH = 16
"""Limit for nested lists and dicts."""
MAX_BYTES = 8 << 30
"""Limit for all tensors of a tree together. An encoded device batch of 512 frames has 0.4 GB."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    )
}
"""The dtypes of tensors in a tree, by name."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's values in bytes."""
        return prod(self.shape) * self.dtype.itemsize


class TreeSpec:
    """A tree whose tensors are still missing.

    Attributes:
        tensors: Dtype and shape of each missing tensor, in order.
    """

    def __init__(self, metadata: bytes) -> None:
        """Read a description that `flatten` returned.

        Raises:
            WireError: `metadata` is not such a description.
        """
        try:
            message = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            raise _malformed(f"JSON ({error})", metadata) from None
        if not isinstance(message, dict) or message.keys() != {"version", "tree"} or message["version"] != VERSION:
            raise _malformed(f"version {VERSION} with a tree", message)
        self.tensors: list[TensorSpec] = []
        self._tree = self._read(message["tree"], 0)
        if not isinstance(self._tree, dict):
            raise _malformed("a dict at the top", message["tree"])
        _check_limits(self.tensors)

    def unflatten(self, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """Restore the tree.

        Args:
            tensors: Its tensors, in the order of `self.tensors`.
        """
        tree: dict[str, Any] = _fill(self._tree, iter(tensors))
        return tree

    def _read(self, node: Any, depth: int) -> Any:
        """The value of a node, with a TensorSpec in place of each tensor."""
        if depth > MAX_DEPTH:
            raise _malformed(f"at most {MAX_DEPTH} levels", "more")
        if isinstance(node, list):
            return [self._read(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        match node:
            case {"dict": dict(items)} if len(node) == 1:
                return {name: self._read(item, depth + 1) for name, item in items.items()}
            case {"tensor": [str(name), list(shape)]} if (
                len(node) == 1 and name in DTYPES and all(map(_is_length, shape))
            ):
                self.tensors.append(TensorSpec(DTYPES[name], tuple(shape)))
                return self.tensors[-1]
        raise _malformed("a dict or a tensor", node)


def flatten(tree: Mapping[str, Any]) -> tuple[bytes, list[Tensor]]:
    """Split a tree into a description, which `TreeSpec` reads, and its tensors.

    Args:
        tree: A dict, with names of type str, of dicts, lists, dense tensors, str, int (64 bits), float, bool and None.

    Returns:
        The description, and the tensors themselves, not copies.

    Raises:
        WireError: The tree holds other values, or exceeds a limit.
    """
    if not isinstance(tree, Mapping):
        raise WireError(f"stage: expected a dict of tensors, got {type(tree).__name__}")
    tensors: list[Tensor] = []
    message = {"version": VERSION, "tree": _node(tree, tensors, 0)}
    metadata = json.dumps(message, separators=(",", ":")).encode()
    if len(metadata) > MAX_METADATA_BYTES:
        raise WireError(
            f"stage: at most {MAX_METADATA_BYTES} bytes besides tensors, got {len(metadata)}; send large data as"
            " tensors"
        )
    _check_limits([TensorSpec(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
    return metadata, tensors


def _node(value: Any, tensors: list[Tensor], depth: int) -> Any:
    """The node of a value; its tensors are appended to `tensors`."""
    if depth > MAX_DEPTH:
        raise WireError(f"stage: a tree has at most {MAX_DEPTH} levels, got more; send a flatter one")
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


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def _check_limits(specs: list[TensorSpec]) -> None:
    count, nbytes = len(specs), sum(spec.nbytes for spec in specs)
    if count > MAX_TENSORS or nbytes > MAX_BYTES:
        raise WireError(
            f"stage: at most {MAX_TENSORS} tensors of together {MAX_BYTES} bytes, got {count} tensors of {nbytes}"
            " bytes; lower device_batch"
        )


def _malformed(expected: str, got: Any) -> WireError:
    return WireError(f"stage: expected {expected}, got {str(got)[:60]}; both stages must run the same archive")
