"""What a worker counts: by itself, and while requests go through the parts of a handler."""

import numpy as np
import pytest

from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract.frames import FrameCaption, InputSize
from reelscribe.errors import OutOfDeviceMemory
from runtime.device_batches import DeviceBatches
from runtime.metrics import Counters
from support.fake_context import FakeContext
from worker.request_batch import RequestBatch


def test_values_are_taken_once():
    counters = Counters()
    counters.add("frames", 3)
    counters.add("frames", 4)
    counters.add("errors", error="WireError")
    assert counters.take() == {("frames", ""): 7, ("errors", "WireError"): 1}
    assert counters.take() == {}


def test_the_time_of_a_failing_block_counts():
    counters = Counters()
    with pytest.raises(ValueError, match="broken"), counters.timed("device_seconds"):
        raise ValueError("broken")
    assert counters.take()["device_seconds", ""] > 0


def test_device_batches_and_items_are_counted_including_those_that_did_not_fit():
    def run(pieces: list[list[str]]) -> list[str]:
        items = [item for piece in pieces for item in piece]
        if len(items) > 2:
            raise MemoryError
        return items

    counters = Counters()
    assert DeviceBatches(run, size=4, counters=counters).map([["a", "b", "c"], ["d"]]) == [["a", "b", "c"], ["d"]]
    sums = counters.take()
    assert sums["device_batches", ""] == 3
    assert sums["device_items", ""] == 4 + 2 + 2
    assert sums["device_seconds", ""] > 0


def test_requests_and_errors_by_type_are_counted_but_not_requests_for_the_description():
    counters = Counters()
    frame = {"body": b"".join(wire.pack(np.zeros((4, 6, 3), np.uint8)))}
    context = FakeContext(headers=[{}, {}, {}, {"describe": "True"}])
    rows = [frame, {"body": b"noise"}, frame, {"body": b""}]
    requests = RequestBatch(rows, context, FrameReader(FrameLimits(6, 100), InputSize(8, 8)), counters)
    requests.responses([[FrameCaption("a caption")], OutOfDeviceMemory("too large")], {})
    sums = counters.take()
    assert sums.pop(("preprocess_seconds", "")) > 0
    assert sums == {("requests", ""): 3, ("errors", "WireError"): 1, ("errors", "OutOfDeviceMemory"): 1}
