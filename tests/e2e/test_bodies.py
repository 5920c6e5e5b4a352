"""Good and bad requests to the real server, and those of other clients than ours."""

import asyncio
import http.client
import io
import json
import pickle
import resource
from contextlib import closing
from pathlib import Path

import aiohttp
import numpy as np
import psutil
import pytest
from PIL import Image

from reelscribe import wire
from reelscribe.contract.frames import InputSize
from reelscribe.management.management_client import ManagementClient
from support.scraping import growth, scrape_server
from support.servers import RunningServer, caption_texts
from support.videos import read

FRAME = np.full((120, 160, 3), (40, 70, 220), np.uint8)  # blue
BLUE = "a plain blue background"
MANY = np.stack([FRAME] * 3)


def packed(tree) -> bytes:
    return b"".join(wire.pack(tree))


def still(frame: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, kind)
    return file.getvalue()


GOOD = {
    "one frame": (packed(FRAME), BLUE),
    "many frames": (packed({"frames": MANY}), [BLUE] * 3),
    "one frame, pickled": (pickle.dumps(FRAME), BLUE),
    "many frames, pickled": (pickle.dumps(MANY, protocol=2), [BLUE] * 3),
    "a JPEG": (still(FRAME, "JPEG"), BLUE),
    "a PNG": (still(FRAME, "PNG"), BLUE),
    "a WebP": (still(FRAME, "WEBP"), BLUE),
}
BAD = {
    "no body": (b"", 400, "WireError"),
    "noise": (bytes(range(200, 256)), 400, "WireError"),
    "a hostile pickle": (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echo\x85R.", 400, "WireError"),
    "half a body": (packed(MANY)[:-1], 400, "WireError"),
    "half a JPEG": (still(FRAME, "JPEG")[:-100], 400, "WireError"),
    "too many frames": (pickle.dumps(np.zeros((513, 1, 1, 3), np.uint8)), 413, "LimitExceeded"),
    "a long frame": (pickle.dumps(np.zeros((300, 8193, 3), np.uint8)), 413, "LimitExceeded"),
    "the first bytes of a video": (b"\0\0\0\x20ftypisom", 422, "FileRefused"),
    "JSON": (b'{"instances": []}', 415, "UnsupportedFormat"),
    "floats": (pickle.dumps(FRAME / 255), 422, "FramesError"),
    "a line": (pickle.dumps(np.zeros((1, 33, 3), np.uint8)), 422, "FramesError"),
    "grey": (pickle.dumps(FRAME[..., 0]), 422, "FramesError"),
}


@pytest.fixture(params=["server", "joining"])
def either(request) -> RunningServer:
    """A server of each of the two configurations."""
    return request.getfixturevalue(request.param)


async def test_good_and_bad_bodies_sent_at_once_get_the_right_responses(either):
    workers = either.workers()
    names = [name for pair in zip(BAD, [*GOOD] * 2, strict=False) for name in pair]
    for eight in (names[at : at + 8] for at in range(0, len(names), 8)):
        answers = await asyncio.gather(*(either.post({**BAD, **GOOD}[name][0]) for name in eight))
        for name, (status, text) in zip(eight, answers, strict=True):
            if name in GOOD:
                expected = GOOD[name][1]
                assert (name, status, caption_texts(text)) == (name, 200, expected)
            else:
                assert (name, status, json.loads(text)["error"]["type"]) == (name, *BAD[name][1:])
    assert await healthy(either)
    assert either.workers() == workers


async def test_json_has_a_line_for_each_caption_and_is_labelled_as_json(server):
    async with aiohttp.ClientSession(headers=server.headers) as session:
        for body, status, lines in ((packed(MANY), 200, len(MANY)), (b"noise", 400, 1)):
            async with session.post(server.predictions, data=body) as response:
                assert (response.status, response.content_type) == (status, "application/json")
                assert len((await response.text()).splitlines()) == lines


async def healthy(server: RunningServer) -> bool:
    async with (
        aiohttp.ClientSession(headers=server.headers) as session,
        session.get(f"{server.url}/ping") as response,
    ):
        return (await response.json(content_type=None))["status"] == "Healthy"


async def test_seven_of_a_joined_eight_are_answered(joining):
    before = scrape_server(joining)
    bodies = [pickle.dumps(FRAME)] * 3 + [b"noise"] + [pickle.dumps(FRAME)] * 4
    (worker,) = map(psutil.Process, joining.workers())
    worker.suspend()  # until all requests are there
    try:
        requests = [asyncio.ensure_future(joining.post(body)) for body in bodies]
        await growth(joining, before, ("ts_inference_requests_total", "blip2"), count=8)
    finally:
        worker.resume()
    answers = await asyncio.gather(*requests)
    assert [status for status, _ in answers] == [200] * 3 + [400] + [200] * 4
    grown = await growth(joining, before, ("reelscribe_requests_total", "blip2"), count=8)
    # The first may have been sent to the worker alone. The last may have been counted before it was queued.
    assert grown["reelscribe_device_batches_total", "blip2"] <= 3


async def test_a_frame_that_does_not_fit_the_memory_is_507_and_the_next_one_fits_again(server):
    # The worker of this model gets no large requests, whose freed memory it could use again.
    model = server.with_model("bundled")
    (worker,) = model.workers()
    process = psutil.Process(worker)
    limits = process.rlimit(psutil.RLIMIT_AS)
    # The body fits, and the frame as floats, four times as large, does not.
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + 180 * 2**20, resource.RLIM_INFINITY))
    try:
        status, text = await model.post(packed(np.zeros((2000, 8000, 3), np.uint8)))
    finally:
        process.rlimit(psutil.RLIMIT_AS, limits)
    assert (status, json.loads(text)["error"]["type"]) == (507, "OutOfDeviceMemory")
    status, text = await model.post(pickle.dumps(FRAME))
    assert (status, caption_texts(text)) == (200, BLUE)
    assert model.workers() == [worker]


@pytest.mark.parametrize(
    "label", ["application/json", "text/plain", "image/gif", "application/x-pickle; charset=utf-8"]
)
async def test_the_content_type_of_a_body_is_ignored(server, label):
    status, text = await server.post(still(FRAME, "PNG"), {"Content-Type": label})
    assert (status, caption_texts(text)) == (200, BLUE)


async def test_a_body_labelled_json_is_not_parsed_by_the_worker(either):
    status, text = await either.post(b'{"instances": []}', {"Content-Type": "application/json"})
    assert (status, json.loads(text)["error"]["type"]) == (415, "UnsupportedFormat")
    assert "got JSON" in text  # its bytes; parsed, it would be a dict


async def test_the_refusal_of_a_form_explains_how_to_send_a_file(server):
    status, text = await server.post(still(FRAME, "PNG"), {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 415
    assert (
        "got a form without a field named data; send a file by curl -T FILE, or as a form by curl -F data=@FILE" in text
    )


async def test_a_file_of_a_form_is_read(server):
    form = aiohttp.FormData()
    form.add_field("data", still(FRAME, "JPEG"), filename="photo.jpg", content_type="image/jpeg")
    async with (
        aiohttp.ClientSession(headers=server.headers) as session,
        session.post(server.predictions, data=form) as got,
    ):
        assert (got.status, caption_texts(await got.text())) == (200, BLUE)


def test_one_byte_over_the_limit_is_413(server):
    """The refusal comes before the body. A client that sends the body all the same may find the connection closed."""
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.putrequest("POST", "/predictions/captioner")
        for name, value in {**server.headers, "Content-Length": "52428801"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413


def frames_with_captions(media: Path, name: str, width: int, height: int, count: int) -> tuple[np.ndarray, list[str]]:
    """The first frames of a clip at full size, and their true captions."""
    scenes = [json.loads(line) for line in (media / "truth.jsonl").read_text().splitlines()]
    scenes = [scene for scene in scenes if scene["source"] == name]
    rows = [row for row, _ in zip(read(media / name, InputSize(width, height)), range(count), strict=False)]
    truth = [next(scene["caption"] for scene in scenes if seconds < scene["end"]) for _, seconds, _ in rows]
    return np.stack([frame for *_, frame in rows]), truth


async def send_like_the_blog(server: RunningServer, array: np.ndarray) -> str | list[str]:
    """Send a pickle in a session of its own, with the content type that aiohttp gives to bytes; returns the texts."""
    async with (
        aiohttp.ClientSession(headers=server.headers) as session,
        session.post(server.predictions, data=pickle.dumps(array)) as response,
    ):
        assert response.status == 200
        return caption_texts(await response.text())


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize(
    ("name", "width", "height", "count"),
    [("same-480x270.mp4", 480, 270, 32), ("same-1280x720.mkv", 1280, 720, 16), ("same-1920x1080.mp4", 1920, 1080, 8)],
)
async def test_the_blogs_client_of_prebatches(server, media, name, width, height, count):
    frames, truth = frames_with_captions(media, name, width, height, count)
    assert await send_like_the_blog(server, frames) == truth


async def test_the_server_for_single_frames_joins_requests(joining):
    key = joining.instance.key("management")
    address = joining.instance.address("management_address")
    async with ManagementClient(address, key) as management:
        (model,) = await management.models()
    assert (model.name, model.batch_size, model.batch_delay_ms) == ("blip2", 128, 20)
