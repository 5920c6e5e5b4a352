"""What a tree of tensors may hold, and what is refused on either side."""

import json

import pytest
import torch

from pipeline import tensor_tree
from pipeline.tensor_tree import TreeSpec, flatten
from reelscribe.errors import WireError


def nested(levels):
    return {"a": nested(levels - 1)} if levels else 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((1, 2), "got tuple"),
        ({1, 2}, "got set"),
        (b"bytes", "got bytes"),
        (1 << 63, "int of 64 bits"),
        ({1: 2}, "names in a dict are str"),
        (torch.tensor(1j), "torch.complex64"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (nested(16), "at most 16 levels"),
        ([torch.empty(0)] * 4097, "4097 tensors"),
        (torch.empty(1).expand(1 << 33), "lower device_batch"),
        ("x" * (16 << 20), "send large data as tensors"),
    ],
)
def test_values_that_cannot_be_sent_are_refused(value, reason):
    with pytest.raises(WireError, match=reason):
        flatten({"value": value})


def test_a_tree_is_a_dict():
    with pytest.raises(WireError, match="expected a dict of tensors, got list"):
        flatten([1])


def encoded(tree, **others):
    return json.dumps({"version": 1, "tree": tree, **others}).encode()


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x80\x04K\x01.",
        b'{"version": 1, "tree": {"dict": {}}',
        b"[" * 100_000,
        b"[]",
        encoded({"dict": {}}, version=2),
        encoded({"dict": {}}, more=1),
        encoded([]),
        encoded({"dict": []}),
        encoded({"dict": {}, "tensor": ["int8", [1]]}),
        encoded({"dict": {"a": {"set": []}}}),
        encoded({"dict": {"a": {"tensor": ["complex64", [1]]}}}),
        encoded({"dict": {"a": {"tensor": ["load", [1]]}}}),
        encoded({"dict": {"a": {"tensor": ["int8", [-1]]}}}),
        encoded({"dict": {"a": {"tensor": ["int8", [1.0]]}}}),
        encoded({"dict": {"a": {"tensor": ["int8", [True]]}}}),
        encoded({"dict": {"a": {"tensor": ["int8", ["1"]]}}}),
        encoded({"dict": {"a": {"tensor": ["int8", 1]}}}),
        encoded({"dict": {"a": {"tensor": ["int8"]}}}),
        encoded({"dict": {"a": {"tensor": ["int64", [1 << 33]]}}}),
        encoded({"dict": {"a": {"tensor": ["int64", [1 << 20, 1 << 20, 1 << 20]]}}}),
        encoded({"dict": {"a": [{"tensor": ["int8", [0]]}] * (tensor_tree.MAX_TENSORS + 1)}}),
    ],
)
def test_a_damaged_description_is_refused(metadata):
    with pytest.raises(WireError):
        TreeSpec(metadata)


def test_a_description_that_was_cut_anywhere_is_refused():
    metadata, _ = flatten({"a": torch.ones(2, 3), "b": [1.5, None, "é"]})
    for end in range(len(metadata)):
        with pytest.raises(WireError):
            TreeSpec(metadata[:end])
