import numpy as np
import pytest
import torch

from reelscribe.errors import OutOfDeviceMemory, PromptError, RequestFailed, StageFailed, StageLost
from runtime.device_batches import DeviceBatches


def request(*values: int, side: int = 2) -> np.ndarray:
    return np.stack([np.full((side, side, 3), value, np.uint8) for value in values])


def name(pieces: list[np.ndarray]) -> list[str]:
    return [str(frame[0, 0, 0]) for piece in pieces for frame in piece]


class Device:
    """Names frames by their value, as long as no more than `room` of them come at once, or none is `poison`."""

    def __init__(self, room: int, error: Exception | None = None, poison: str = "") -> None:
        self.room, self.error, self.poison = room, error or MemoryError(), poison
        self.sizes: list[int] = []

    def __call__(self, pieces: list[np.ndarray]) -> list[str]:
        names = name(pieces)
        self.sizes.append(len(names))
        if len(names) > self.room or self.poison in names:
            raise self.error
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
    slices = []

    def run(pieces: list[np.ndarray]) -> list[str]:
        slices.extend(pieces)
        return name(pieces)

    frames = request(1, 2, 3)
    assert DeviceBatches(run, size=8).map([frames, request(4)]) == [["1", "2", "3"], ["4"]]
    assert [len(piece) for piece in slices] == [3, 1]
    assert np.shares_memory(slices[0], frames)


def test_no_requests_give_no_results():
    assert DeviceBatches(Device(room=1), size=4).map([]) == []


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA failed with error out of memory"),  # CTranslate2
    ],
    ids=str,
)
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


SUBMITTED = ["submit 1", "submit 2", "submit 3"]


@pytest.mark.parametrize(
    ("failing", "steps"),
    [
        (["submit 3"], [*SUBMITTED, "run 1", "run 2"]),
        (["run 1"], [*SUBMITTED, "run 1", "run 2", "run 3"]),
        (["run 1", "run 2"], [*SUBMITTED, "run 1", "run 2", "run 3"]),
    ],
)
def test_when_a_stage_is_lost_those_in_flight_are_finished_before_its_error_is_raised(failing, steps):
    done = []

    def step(name: str) -> None:
        done.append(name)
        if name in failing:
            raise StageLost(name)

    def submit(slices: list[list[int]]) -> int:
        step(f"submit {slices[0][0]}")
        return slices[0][0]

    def run(number: int) -> list[int]:
        step(f"run {number}")
        return [number]

    with pytest.raises(StageLost, match=failing[0]):
        DeviceBatches(run, 1, submit=submit, in_flight=3).map([[1, 2, 3, 4]])
    assert done == steps


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA failed with error device-side assert triggered"),  # CTranslate2
        StageFailed("second stage: AcceleratorError: CUDA error: device-side assert triggered"),
        StageLost("the other stage has ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_device_that_is_lost_fails_the_call_at_once(error):
    device = Device(room=0, error=error)
    with pytest.raises(type(error), match=str(error)):
        DeviceBatches(device, size=4).map([request(1), request(2)])
    assert device.sizes == [2]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error, as the prompt says"),
        RuntimeError("shapes do not match"),
        IndexError(),
        AssertionError(),
        RecursionError(),
        StageFailed("second stage: KeyError: 5"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("stage", ["submit", "collect"])
def test_whatever_one_request_brings_costs_it_alone(error, stage, caplog):
    device = Device(room=8, error=error, poison="5")
    stages = {stage: device, {"submit": "collect", "collect": "submit"}[stage]: list}
    batches = DeviceBatches(stages["collect"], 4, submit=stages["submit"])
    results = batches.map([request(1, 2), request(4, *[5] * 50), request(7, 8)])
    assert results[::2] == [["1", "2"], ["7", "8"]]
    assert isinstance(results[1], RequestFailed)
    assert str(results[1]).startswith(f"{type(error).__name__}: expected to answer this request")
    assert len(device.sizes) == 4  # the first batch, each of its requests, and the rest of the others
    assert batches.size == 4
    assert caplog.records[-1].exc_info[1] is error


def test_a_refusal_by_the_model_is_that_of_its_request():
    results = DeviceBatches(Device(room=8, error=PromptError("no room"), poison="5"), 4).map([request(1), request(5)])
    assert results[0] == ["1"]
    assert (type(results[1]), str(results[1])) == (PromptError, "no room")


def test_a_model_that_answers_nothing_is_tried_once_more_for_each_request():
    device = Device(room=0, error=ValueError())
    results = DeviceBatches(device, size=8).map([request(1, 2, 3), request(4), request(5, 6)])
    assert [type(result) for result in results] == [RequestFailed] * 3
    assert device.sizes == [6, 3, 1, 2]


def test_an_item_that_cannot_be_measured_costs_its_request_alone():
    results = DeviceBatches(lambda parts: [len(item) for part in parts for item in part], 4, length=len).map(
        [["a", "bb"], ["a", None], ["ccc"]]
    )
    assert results[::2] == [[1, 2], [3]]
    assert isinstance(results[1], RequestFailed)


def test_batches_are_submitted_ahead_but_not_too_many_and_halved_at_either_stage():
    steps = []

    def submit(slices: list[list[int]]) -> list[int]:
        numbers = [number for part in slices for number in part]
        steps.append(("submit", *numbers))
        if len(numbers) > 3:
            raise MemoryError
        return numbers

    def run(numbers: list[int]) -> list[int]:
        steps.append(("run", *numbers))
        if 5 in numbers and len(numbers) > 1:
            raise MemoryError
        return numbers

    assert DeviceBatches(run, 2, submit=submit, in_flight=2).map([[0, 1, 2], [3, 4, 5]]) == [[0, 1, 2], [3, 4, 5]]
    ahead = [("submit", 0, 1), ("submit", 2, 3), ("run", 0, 1), ("submit", 4, 5), ("run", 2, 3), ("run", 4, 5)]
    halves = [("submit", 4), ("run", 4), ("submit", 5), ("run", 5)]
    assert steps == ahead + halves
    steps.clear()
    assert DeviceBatches(run, 4, submit=submit, in_flight=2).map([[0, 1, 2, 3]]) == [[0, 1, 2, 3]]
    assert steps == [("submit", 0, 1, 2, 3), ("submit", 0, 1), ("run", 0, 1), ("submit", 2, 3), ("run", 2, 3)]


def test_no_more_than_the_allowed_part_of_a_batch_is_padding():
    lengths = [100, 20, 90, 76, 74, 30, 100, 21]
    batches = []

    def answer(pieces: list[list[int]]) -> list[int]:
        batch = [length for piece in pieces for length in piece]
        batches.append(batch)
        return batch

    (results,) = DeviceBatches(answer, size=4, length=int, most_padding=0.25).map([lengths])
    assert results == lengths
    assert batches == [[100, 100, 90, 76], [74], [30], [21, 20]]
    assert all(sum(batch) >= 0.75 * max(batch) * len(batch) for batch in batches)
