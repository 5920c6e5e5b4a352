"""What bench/captioning.py compares with ours says the same of the same frames."""

import io
import json
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from captions.captioner import Captioner, CaptionSettings
from peers import blog_clients, plain_script
from peers.blog_handler import BlogHandler
from peers.outcome import Outcome, Recorder
from peers.plain_model import PlainCaptioner
from peers.reading import frames_of, prebatches_of
from support.fake_context import FakeContext

FRAMES = 24


@pytest.fixture(scope="module")
def clip(media: Path) -> str:
    return str(media / "same-480x270.mp4")


@pytest.fixture(scope="module")
def frames(clip: str) -> np.ndarray:
    return next(prebatches_of(clip, FRAMES))


@pytest.fixture(scope="module")
def ours(demo_model: str, frames: np.ndarray) -> list[str]:
    return Captioner(CaptionSettings(demo_model), torch.device("cpu")).caption([frames])


@pytest.fixture(scope="module")
def plain(demo_model: str) -> PlainCaptioner:
    return PlainCaptioner(demo_model)


@pytest.fixture(scope="module")
def blog(demo_model: str) -> BlogHandler:
    handler = BlogHandler()
    handler.load(FakeContext({"weights": demo_model}))
    return handler


def body(value: object) -> dict[str, bytes]:
    return {"body": pickle.dumps(value)}


def test_the_plain_model_captions_as_ours(plain, frames, ours):
    assert len(set(ours)) > 1
    assert plain.caption(frames) == ours


def test_the_blogs_handler_captions_single_frames_and_prebatches(blog, frames, ours):
    assert blog.answer([body(frame) for frame in frames]) == ours
    assert blog.answer([body(frames[0]), body(list(frames[1:9])), body(frames[9:])]) == [ours[0], ours[1:9], ours[9:]]


def test_a_plain_script_captions_every_frame(plain, clip, ours, capsys):
    recorder = Recorder()
    recorder.tell(plain_script.caption(plain, [clip, clip], 20, recorder))
    outcome = Outcome.from_output(capsys.readouterr().out)
    total = len(list(frames_of(clip)))
    assert outcome.captions[:FRAMES] == outcome.captions[total : total + FRAMES] == ours
    assert sum(count for _, count in outcome.answers) == outcome.frames == 2 * total


@pytest.fixture
async def blog_url(blog: BlogHandler) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        (caption,) = blog.answer([{"body": await request.read()}])
        return web.Response(text=caption if isinstance(caption, str) else json.dumps(caption))

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/predictions/blip2", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/predictions/blip2"))


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("reading", ["sync", "stream", "prebatch"])
async def test_each_of_the_blogs_clients_gets_all_captions_in_order(blog_url, clip, ours, reading):
    client = blog_clients.Client(blog_url, Recorder(), in_flight=4)
    captions = await blog_clients.caption(client, [clip], reading, 10)
    assert captions[:FRAMES] == ours
    assert len(captions) == len(list(frames_of(clip)))


def test_the_flask_server_captions_as_ours(plain, frames, ours):
    flask_server = pytest.importorskip("peers.flask_server", reason="needs the extra `bench`")
    client = flask_server.make_app(plain).test_client()
    assert [client.post("/caption", data=pickle.dumps(frame)).text for frame in frames] == ours


def test_the_litserve_server_captions_as_the_plain_model(demo_model, plain, frames):
    litserve_server = pytest.importorskip("peers.litserve_server", reason="needs the extra `bench`")
    small = frames[:, :224, :224]
    api = litserve_server.CaptionApi(demo_model)
    api.setup("cpu")
    requests = [api.decode_request({"frame": SimpleNamespace(file=io.BytesIO(frame.tobytes()))}) for frame in small]
    answers = [api.encode_response(text) for text in api.unbatch(api.predict(api.batch(requests)))]
    assert [answer["caption"] for answer in answers] == plain.caption(small)


def test_rates_are_of_the_whole_run_and_of_its_last_three_quarters():
    outcome = Outcome([(2.0, 10), (3.0, 10), (4.0, 20)], 1.0, 0, [""] * 40)
    assert outcome.frames_per_second == 10
    assert outcome.steady_frames_per_second == 15
