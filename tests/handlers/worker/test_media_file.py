"""Media files in bodies: which are known as such, and what damaged, hostile and odd ones cost."""

import io
import json
import random

import av
import psutil
import pytest

import caption_handler
from support.fake_context import FakeContext
from worker.media_file import is_media_file

RNG = random.Random(0)
WHOLE = "same-480x270.mp4"


@pytest.fixture(scope="module")
def captioner(demo_model):
    handler = caption_handler.CaptionHandler()
    handler.handle(None, FakeContext({"model": demo_model}))
    return handler


def post(captioner, *bodies: bytes, **headers: str) -> list[tuple[int, dict]]:
    """Status and answer of each of the requests, which are one call."""
    names = {f"X-Reelscribe-{name}": value for name, value in headers.items()}
    context = FakeContext(headers=[names for _ in bodies])
    answers = captioner.handle([{"body": body} for body in bodies], context)
    return [(context.statuses.get(i, 200), json.loads(answer)) for i, answer in enumerate(answers)]


def video(width: int, height: int, frames: int) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        frame = av.VideoFrame(width, height, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        for i in range(frames):
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["mkv", "avi", "ogg", "webm", "mp4"])
def test_media_files_are_known_by_their_first_bytes(media, suffix):
    assert all(is_media_file(path.read_bytes()) for path in media.glob(f"*.{suffix}"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xd8\xff\xe0 a JPEG",
        b"RIFF\0\0\0\0WEBPVP8 ",
        b"\0\0\0\x1cftypavif",
        b"\x93NUMPY",
        b"\x80\x04 a pickle",
        b"G" + bytes(187) + b"no transport stream",
        b"#EXTM3U\nfile:///etc/passwd\n",
    ],
)
def test_other_bodies_are_no_media_files(body):
    assert not is_media_file(body)


def test_damaged_files_have_a_reason_each_and_cost_the_worker_nothing(captioner, media):
    whole = (media / WHOLE).read_bytes()
    bodies = [whole[: len(whole) * k // 9] for k in range(1, 9)]
    for flips in (1, 10, 100, 1000) * 2:
        damaged = bytearray(whole)
        for _ in range(flips):
            damaged[RNG.randrange(100, len(damaged))] = RNG.randrange(256)
        bodies.append(bytes(damaged))
    for status, answer in post(captioner, *bodies):
        assert status in (200, 422)
        if status == 422 or answer["status"] == "error":
            assert answer["error"]["message"]
    (status, answer), (good_status, good) = post(captioner, bodies[3], whole)
    assert (status, answer["error"]["type"], good_status, good["status"]) == (422, "FileRefused", 200, "ok")


def test_a_video_of_too_many_frames_is_refused_before_all_are_decoded(captioner):
    ((status, answer),) = post(captioner, video(16, 16, 20_000), Fps="25")
    assert (status, answer["error"]["type"]) == (413, "LimitExceeded")


def test_files_that_are_too_large_together_are_tried_again(captioner, media, monkeypatch):
    monkeypatch.setattr("worker.media_file.DECODED_BYTES", 3 * 224 * 224 * 12)
    whole = (media / WHOLE).read_bytes()  # of 8 frames
    answers = post(captioner, whole, whole)
    assert sorted((status, answer.get("error") and answer["error"]["type"]) for status, answer in answers) == [
        (200, None),
        (503, "CallFull"),
    ]


def test_pictures_that_want_more_memory_than_a_process_may_have_cost_that_process_alone(captioner):
    before = psutil.Process().memory_info().rss
    (status, answer), (_, good) = post(captioner, video(65_535, 2_000, 1), video(64, 48, 2))
    assert (status, answer["error"]["type"]) == (200, "MediaError")
    assert good["status"] == "ok"
    assert psutil.Process().memory_info().rss - before < 2**28


def test_options_are_those_of_the_request(captioner, media):
    whole = (media / WHOLE).read_bytes()
    ((_, three),) = post(captioner, whole, Frames="3")
    assert [caption["frame_index"] for caption in three["captions"]] == [0, 40, 79]
    ((_, part),) = post(captioner, whole, Start="2", End="4")
    assert [caption["pts_seconds"] for caption in part["captions"]] == [2.0, 3.0]
