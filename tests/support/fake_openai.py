"""A server with OpenAI's API that answers as a test says, and takes no requests but those that a real vLLM has taken.

tests/data/openai has such requests, and the answers of which those of a test have the shape.
"""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import jsonschema
import numpy as np
from aiohttp import web
from PIL import Image


def _object(properties: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """The schema of an object with these properties and no others, all of them required but the optional ones."""
    required = sorted(properties.keys() - {*optional})
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _part(kind: str, url: str) -> dict[str, Any]:
    """The schema of a part of a message with pictures in its address."""
    return _object({"type": {"const": kind}, kind: _object({"url": {"type": "string", "pattern": url}})})


_BASE64 = "[A-Za-z0-9+/]+=*"
TEXT = _object({"type": {"const": "text"}, "text": {"type": "string", "minLength": 1}})
PICTURE = _part("image_url", f"^data:image/(png|jpeg);base64,{_BASE64}$")
VIDEO = _part("video_url", f"^data:video/jpeg;base64,{_BASE64}(,{_BASE64})+$")
TIMES = _object(
    {
        "fps": {"const": 1000},
        "frames_indices": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2},
        "total_num_frames": {"type": "integer", "minimum": 1},
        "do_sample_frames": {"const": False},
    }
)
CONTENT = {"type": "array", "items": {"anyOf": [TEXT, PICTURE, VIDEO]}, "minItems": 1}
FITTING = _object({"name": {"type": "string"}, "schema": {"type": "object"}, "strict": {"const": True}})
CHAT = _object(
    {
        "model": {"type": "string"},
        "messages": {
            "type": "array",
            "items": _object({"role": {"const": "user"}, "content": {"anyOf": [CONTENT, {"type": "string"}]}}),
            "minItems": 1,
            "maxItems": 1,
        },
        "max_tokens": {"type": "integer", "minimum": 1},
        "temperature": {"const": 0},
        "seed": {"const": 0},
        "logprobs": {"const": True},
        "media_io_kwargs": _object({"video": TIMES}),
        "response_format": _object({"type": {"const": "json_schema"}, "json_schema": FITTING}),
    },
    *("seed", "logprobs", "media_io_kwargs", "response_format"),
)
"""Requests for an answer of a chat."""
SPEECH = _object(
    {
        "model": {"type": "string"},
        "temperature": {"const": "0"},
        "response_format": {"enum": ["json", "verbose_json"]},
        "language": {"type": "string", "pattern": "^[a-z]{2,3}$"},
        "prompt": {"type": "string", "minLength": 1},
        "file": {},
    },
    *("language", "prompt"),
)
"""The fields of a form with a chunk of audio."""


def pictures(request: Mapping[str, Any]) -> list[np.ndarray]:
    """The pictures of a chat, (height, width, 3) uint8 RGB each."""
    parts = request["messages"][0]["content"]
    urls = [part[part["type"]]["url"] for part in parts if part["type"] != "text"]
    data = [base64.b64decode(each) for url in urls for each in url.split(",")[1:]]
    return [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in data]


def why_wrong(request: Mapping[str, Any], *, is_form: bool = False) -> str | None:
    """Why a vLLM would not take a request as we mean it; None if it would."""
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(SPEECH if is_form else CHAT).iter_errors(dict(request))
    )
    if error:
        return f"{error.json_path}: {error.message[:300]}"
    if "media_io_kwargs" in request:
        times = request["media_io_kwargs"]["video"]["frames_indices"]
        if len(times) != len(pictures(request)) or times != sorted(times):
            return "media_io_kwargs: expected a number for each frame, in order"
    return None


def chat(text="a cat", ended="stop", **fields):
    """The answer of vLLM 0.32.0, as far as it is read."""
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "", "logprob": 0.0}]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": ended}
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    return {"model": "m", "choices": [choice | {"logprobs": logprobs}], "usage": usage, **fields}


class FakeVLLM:
    """Lists one model, and answers every request as a test says."""

    def __init__(self):
        self.answers = []
        self.asked = []
        self.keys = set()
        self.answer: Callable[[dict[str, Any]], Any] | None = None
        """Makes the answers once `answers` is empty; None for the same one always."""
        self.wrong: list[str] = []
        """Why requests were refused that a vLLM would not take as we mean them."""
        self.arrivals: asyncio.Queue[None] = asyncio.Queue()
        self.listed = [{"id": "m", "root": "a/Qwen3-VL-2B", "owned_by": "vllm"}]

    def __call__(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/{path:.*}", self._answer)
        return app

    async def _models(self, request):
        self.keys.add(request.headers.get("Authorization"))
        return web.json_response({"data": self.listed})

    async def _version(self, _):
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, _):
        return web.Response(text='vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n')

    async def _answer(self, request):
        is_form = request.content_type == "multipart/form-data"
        asked = dict(await request.post()) if is_form else await request.json()
        if why := why_wrong(asked, is_form=is_form):
            self.wrong.append(why)
            return web.json_response({"error": {"message": why, "type": "BadRequestError", "code": 400}}, status=400)
        self.asked.append(asked)
        self.arrivals.put_nowait(None)
        made = self.answer(asked) if self.answer else chat()
        if isawaitable(made):
            made = await made
        answer = self.answers.pop(0) if self.answers else made
        status, headers = 200, {}
        if isinstance(answer, tuple):
            status, answer, *rest = answer
            headers = rest[0] if rest else {}
        return web.json_response(answer, status=status, headers=headers)


@asynccontextmanager
async def serving() -> AsyncIterator[FakeVLLM]:
    """Run a fake on a free port; its `url` is for `--server`."""
    fake = FakeVLLM()
    runner = web.AppRunner(fake())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"openai+http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()
    assert fake.wrong == []
