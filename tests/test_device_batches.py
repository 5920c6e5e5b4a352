import numpy as np
import pytest
import torch

from device_batches import DeviceBatches
from reelscribe.errors import OutOfDeviceMemory


def request(*values: int, side: int = 2) -> np.ndarray:
    return np.stack([np.full((side, side, 3), value, np.uint8) for value in values])


def name(pieces: list[np.ndarray]) -> list[str]:
    return [str(frame[0, 0, 0]) for piece in pieces for frame in piece]


class Device:
    """Names frames by their value, as long as no more than `room` of them come at once, or none is `poison`."""

    def __init__(self, room: int, error: type[Exception] = torch.cuda.OutOfMemoryError, poison: str = "") -> None:
        self.room, self.error, self.poison = room, error, poison
        self.sizes: list[int] = []

    def __call__(self, pieces: list[np.ndarray]) -> list[str]:
        names = name(pieces)
        self.sizes.append(len(names))
        if len(names) > self.room or self.poison in names:
            raise self.error("DefaultCPUAllocator: can't allocate memory")
        return names


def test_requests_are_joined_and_split_into_device_batches():
    device = Device(room=4)
    requests = [request(1), request(2, 3, 4, 5, 6), request(7, side=3), request(8, 9)]
    results = DeviceBatches(device, size=4).map(requests)
    assert results == [["1"], ["2", "3", "4", "5", "6"], ["7"], ["8", "9"]]
    assert device.sizes == [4, 4, 1]


def test_the_longest_come_first_and_answers_stay_in_their_places():
    batches = []

    def run(pieces: list[list[str]]) -> list[str]:
        batches.append([item for piece in pieces for item in piece])
        return [item.upper() for item in batches[-1]]

    requests = [["a", "bbb"], [], ["cc", "dddd", "eeeee"]]
    assert DeviceBatches(run, size=2, length=len).map(requests) == [["A", "BBB"], [], ["CC", "DDDD", "EEEEE"]]
    assert batches == [["eeeee", "dddd"], ["bbb", "cc"], ["a"]]


def test_items_that_follow_each_other_are_one_view():
    seen = []

    def run(pieces: list[np.ndarray]) -> list[str]:
        seen.extend(pieces)
        return name(pieces)

    frames = request(1, 2, 3)
    assert DeviceBatches(run, size=8).map([frames, request(4)]) == [["1", "2", "3"], ["4"]]
    assert [len(piece) for piece in seen] == [3, 1]
    assert np.shares_memory(seen[0], frames)


def test_no_requests_give_no_results():
    assert DeviceBatches(Device(room=1), size=4).map([]) == []


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, MemoryError, RuntimeError])
def test_too_little_memory_halves_the_device_batch(error):
    device = Device(room=3, error=error)
    batches = DeviceBatches(device, size=8)
    assert batches.map([request(*range(9))]) == [[str(n) for n in range(9)]]
    assert batches.size == 2
    assert device.sizes == [8, 4, 2, 2, 4, 2, 2, 1]
    assert batches.map([request(*range(9))]) == [[str(n) for n in range(9)]]
    assert max(device.sizes[8:]) == 2


def test_a_frame_that_never_fits_costs_its_request_alone():
    device = Device(room=8, poison="5")
    batches = DeviceBatches(device, size=4)
    results = batches.map([request(1, 2), request(4, *[5] * 50), request(7)])
    assert results[0] == ["1", "2"]
    assert isinstance(results[1], OutOfDeviceMemory)
    assert results[2] == ["7"]
    assert batches.size == 4  # it was not the number of frames
    assert len(device.sizes) < 10  # the rest of a lost request is not tried


def test_other_errors_are_not_hidden():
    def broken(pieces: list[np.ndarray]) -> list[str]:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        DeviceBatches(broken, size=4).map([request(1)])
