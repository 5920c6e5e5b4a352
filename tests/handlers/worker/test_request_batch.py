import io
import pickle

import numpy as np
import pytest
from PIL import Image

from captions import frame_requests
from captions.frame_requests import FrameLimits, FrameReader
from reelscribe import wire
from reelscribe.contract.frames import FrameCaption, InputSize
from reelscribe.errors import OutOfDeviceMemory
from support.fake_context import FakeContext, parsed
from worker.request_batch import RequestBatch

ONE = np.zeros((4, 6, 3), np.uint8)
MANY = np.ones((2, 4, 6, 3), np.uint8)

LIMITS = FrameLimits(frames=6, side=100)


def reader() -> FrameReader:
    return FrameReader(LIMITS, InputSize(8, 8))


def captions(*texts: str) -> list[FrameCaption]:
    return [FrameCaption(text, -0.5) for text in texts]


def json_of(*texts: str) -> list[dict]:
    return [{"text": text, "avg_logprob": -0.5} for text in texts]


def row(tree) -> dict[str, bytes]:
    return {"body": b"".join(wire.pack(tree))}


def test_requests_are_answered_in_the_shape_of_what_was_sent():
    context = FakeContext()
    rows = [row({"frames": ONE}), row(MANY), {"data": pickle.dumps(ONE)}, {"body": bytearray(pickle.dumps(MANY))}]
    requests = RequestBatch(rows, context, reader())
    assert [frames.shape for frames in requests.items] == [(1, 4, 6, 3), (2, 4, 6, 3)] * 2
    results = [captions("a"), captions("b", "c"), captions("d"), captions("e", "f")]
    answers = parsed(requests.responses(results, {}))
    assert answers == [*json_of("a"), json_of("b", "c"), *json_of("d"), json_of("e", "f")]
    assert set(context.content_types.values()) == {"application/json"}
    assert context.statuses == {}


@pytest.mark.parametrize(
    ("bad", "status", "kind", "reason"),
    [
        ({"body": b""}, 400, "WireError", "got 0 bytes"),
        ({"body": b"noise"}, 400, "WireError", "got 5 bytes that start like none of them"),
        ({"body": {"json": 1}}, 415, "UnsupportedFormat", "application/octet-stream"),
        ({"body": b'{"json": 1}'}, 415, "UnsupportedFormat", "got JSON"),
        ({"body": b"GIF89a"}, 415, "UnsupportedFormat", "got a GIF image"),
        ({"body": b"\0\0\0\x18ftypheic"}, 415, "UnsupportedFormat", "got an MP4 video, or a HEIC"),
        (
            {},
            415,
            "UnsupportedFormat",
            "got a form without a field named data; send a file by curl -T FILE, or as a form by",
        ),
        (row("text"), 422, "FramesError", "expected an array"),
        (row({"samples": ONE}), 422, "FramesError", 'under "frames"'),
        (row(ONE.astype(np.float32)), 422, "FramesError", "expected uint8"),
        (row(ONE[..., 0]), 422, "FramesError", "RGB"),
        (row(MANY.transpose(0, 3, 1, 2)), 422, "FramesError", "(2, 3, 4, 6)"),
        (row(MANY[:0]), 422, "FramesError", "at least one pixel"),
        (row(np.zeros((7, 4, 6, 3), np.uint8)), 413, "LimitExceeded", "at most 6 a request, got 7"),
        (row(np.zeros((101, 50, 3), np.uint8)), 413, "LimitExceeded", "sides of at most 100 pixels, got a longer one"),
        (row(np.zeros((2, 66, 3), np.uint8)), 422, "FramesError", "32 times the other"),
        ({"body": pickle.dumps(print)}, 400, "WireError", "it names another class or function"),
    ],
)
def test_a_bad_request_has_its_own_error_and_its_neighbours_none(bad, status, kind, reason):
    context = FakeContext()
    requests = RequestBatch([row(ONE), bad, row(MANY)], context, reader())
    first, error, last = parsed(requests.responses([captions("a"), captions("b", "c")], {}))
    assert [first, last] == [*json_of("a"), json_of("b", "c")]
    assert context.statuses == {1: status}
    assert error["error"]["type"] == kind
    assert reason in error["error"]["message"]


def test_a_result_may_be_an_error():
    context = FakeContext()
    (answer,) = parsed(RequestBatch([row(ONE)], context, reader()).responses([OutOfDeviceMemory("too large")], {}))
    assert context.statuses == {0: 507}
    assert answer == {"error": {"type": "OutOfDeviceMemory", "message": "too large"}}


def test_a_call_takes_as_many_frames_as_one_request_may_hold_and_refuses_the_rest():
    context = FakeContext()
    rows = [row(MANY), row(MANY), row(np.zeros((3, 4, 6, 3), np.uint8)), row(ONE), row(ONE), row(ONE)]
    requests = RequestBatch(rows, context, reader())
    assert [len(frames) for frames in requests.items] == [2, 2, 1, 1]
    answers = parsed(requests.responses([captions("a", "b"), captions("c", "d"), captions("e"), captions("f")], {}))
    assert context.statuses == {2: 503, 5: 503}
    assert answers[5]["error"] == {
        "type": "CallFull",
        "message": "call: too many frames in the requests that were joined with this one; try again",
    }


def test_the_pixels_of_stills_in_a_call_are_limited(monkeypatch):
    monkeypatch.setattr(frame_requests, "STILL_PIXELS_PER_CALL", 50)
    file = io.BytesIO()
    Image.new("RGB", (4, 6)).save(file, "PNG")
    context = FakeContext()
    requests = RequestBatch([{"body": file.getvalue()}] * 3, context, reader())
    assert [frames.shape for frames in requests.items] == [(1, 8, 8, 3)] * 2
    assert parsed(requests.responses([captions("a"), captions("b")], {}))[:2] == json_of("a", "b")
    assert context.statuses == {2: 503}


def test_describe_is_answered_among_other_requests():
    context = FakeContext(headers=[{}, {"Describe": "True"}])
    requests = RequestBatch([row(ONE), {"body": b""}], context, reader())
    assert len(requests.items) == 1
    assert parsed(requests.responses([captions("a")], {"name": "m"})) == [*json_of("a"), {"name": "m"}]


def test_each_caption_is_in_a_line_of_its_own():
    (answer,) = RequestBatch([row(MANY)], FakeContext(), reader()).responses([captions("a", "b")], {})
    assert answer.splitlines() == ['[{"text": "a", "avg_logprob": -0.5},', ' {"text": "b", "avg_logprob": -0.5}]']
