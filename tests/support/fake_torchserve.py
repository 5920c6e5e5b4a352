"""A small HTTP server that behaves like TorchServe with our handlers. The real one is tested in e2e/."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDictProxy

from reelscribe import wire
from reelscribe.contract.clips import ClipBudget, ClipDescription
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ClipModelDescription,
    ModelDescription,
    SpeechDescription,
)
from reelscribe.contract.frames import FrameArray, FrameCaption, InputSize
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment

DESCRIPTION = CaptionerDescription(
    name="a/b",
    revision="123",
    prompt="",
    generation={"max_new_tokens": 30},
    input_size=InputSize(8, 8),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    dtype="float32",
    device_batch=32,
    max_frames=512,
    max_side=8192,
)

SPEECH = SpeechDescription(
    name="a/whisper",
    revision="123",
    sample_rate=16_000,
    chunk_seconds=30.0,
    languages=("en", "fr"),
    tasks=("transcribe", "translate"),
    language=None,
    word_times=True,
    generation={"num_beams": 1},
    dtype="float32",
    device_batch=8,
    max_chunks=16,
)

CLIPS = ClipModelDescription(
    name="a/qwen",
    revision="123",
    prompt="What happens?",
    still_prompt="What is it?",
    system_prompt="",
    allow_prompts=True,
    generation={"max_new_tokens": 30},
    budget=ClipBudget(8, min_pixels=8 * 8, max_pixels=16 * 16, total_pixels=100 * 16 * 16, whole_clip=True),
    dtype="float32",
    device_batch=8,
    max_clips=64,
    max_side=8192,
)


@dataclass(frozen=True)
class Received:
    """A request for captions, transcripts or descriptions of clips, as it arrived."""

    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def tree(self) -> dict[str, Any]:
        return wire.unpack(self.body)

    @property
    def frames(self) -> FrameArray:
        return self.tree["frames"]

    @property
    def clips(self) -> list[dict[str, Any]]:
        return self.tree["clips"]

    def names(self) -> list[int]:
        """The number of each frame, chunk or clip: its first value, as tests number them."""
        tree = self.tree
        clips = [clip["frames"] for clip in tree.get("clips", [])]
        return [int(item.flat[0]) for item in tree.get("frames", tree.get("chunks", clips))]


class Broken(Exception):
    """Raised by an answer to break the connection."""


Answer = Callable[[Received], Awaitable[web.Response]]


async def captions(request: Received, *, headers: dict[str, str] | None = None) -> web.Response:
    """Respond like the caption handler; the caption of frame 7 is "frame 7"."""
    answers = [FrameCaption(f"frame {name}", avg_logprob=-0.25).to_json() for name in request.names()]
    return web.json_response(answers, headers=headers)


def transcript(name: int) -> ChunkTranscript:
    """The transcript of a chunk; that of chunk 7 is "chunk 7", spoken in its first second."""
    return ChunkTranscript(f"chunk {name}", "en", (SpeechSegment(0.0, 1.0, f"chunk {name}"),), no_speech_prob=0.25)


async def transcripts(request: Received) -> web.Response:
    """Respond like the speech handler, in the language that was asked for."""
    language = request.tree.get("language", "en")
    return web.json_response([replace(transcript(name), language=language).to_json() for name in request.names()])


def description_of(name: int) -> ClipDescription:
    """The description of a clip; that of clip 7 is "clip 7"."""
    return ClipDescription(f"clip {name}", "complete", 3, avg_logprob=-0.25)


async def descriptions(request: Received) -> web.Response:
    """Respond like the clip handler."""
    return web.json_response([description_of(name).to_json() for name in request.names()])


class Gate:
    """An answer that waits until the gate is open, and counts the requests that wait at it."""

    def __init__(self, answer: Answer = captions) -> None:
        self.open = asyncio.Event()
        self._answer = answer
        self.most_waiting = 0
        self._waiting = 0
        self._arrivals: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, request: Received) -> web.Response:
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)
        self._arrivals.put_nowait(None)
        await self.open.wait()
        self._waiting -= 1
        return await self._answer(request)

    async def wait_for(self, requests: int) -> None:
        """Wait until so many more requests have arrived."""
        for _ in range(requests):
            await self._arrivals.get()


def worker_died(status: int = 500) -> web.Response:
    """The response of TorchServe itself to a request whose worker died, or with another status."""
    return web.json_response({"code": status, "type": "InternalServerException", "message": "no luck"}, status=status)


def queue_full() -> web.Response:
    """The response of TorchServe itself to a request for which its queue has no room."""
    text = 'Model "captioner" has no worker to serve inference request. Please use scale workers API to add workers.'
    return web.json_response({"code": 503, "type": "ServiceUnavailableException", "message": text}, status=503)


def refused(status: int, kind: str, message: str) -> web.Response:
    """The response of a handler to a request that it cannot answer."""
    return web.json_response({"error": {"type": kind, "message": message}}, status=status)


class FakeTorchServe:
    """Serves the model "captioner", or "speech", "clips", "shots" or "speakers" by its description, on a free port.

    Use it as an async context manager.
    """

    def __init__(
        self,
        answer: Answer = captions,
        *,
        description: ModelDescription = DESCRIPTION,
        key: str | None = None,
        beside: Sequence[FakeTorchServe] = (),
    ) -> None:
        """Serve a model; those of the servers `beside`, which are not started, have the same address."""
        self.answer = answer
        self.beside = beside
        self.description = description
        self.model = {
            "caption": "captioner",
            "speech": "speech",
            "clip": "clips",
            "shot": "shots",
            "speaker": "speakers",
        }[description.kind]
        self.key = key
        """Token that requests must carry; None if they need none."""
        self.model_is_there = True
        self.refusals: list[int] = []
        """Statuses with which requests for the description are refused, the last one first."""
        self.received: list[Received] = []
        self.arrivals: asyncio.Queue[Received] = asyncio.Queue()
        self.described: asyncio.Queue[None] = asyncio.Queue()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FakeTorchServe:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start on a free port, or on the same port as before."""
        app = web.Application(client_max_size=2**27)
        for served in (self, *self.beside):
            app.router.add_post(f"/predictions/{served.model}", served._handle)
        # A timeout of 0 would mean none.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop at once; requests that are being answered are lost."""
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        received = Received(request.headers, await request.read())
        if not self.model_is_there:
            return web.json_response({"code": 404, "message": f"Model not found: {self.model}"}, status=404)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"code": 400, "message": "Token Authorization failed."}, status=400)
        if "describe" in request.headers:
            return self._describe()
        self.received.append(received)
        self.arrivals.put_nowait(received)
        try:
            return await self.answer(received)
        except Broken:
            assert request.transport
            request.transport.abort()
            return web.Response()

    def _describe(self) -> web.Response:
        self.described.put_nowait(None)
        if self.refusals:
            return worker_died(self.refusals.pop())
        return web.json_response(self.description.to_json())


def write_key_file(path: Path, key: str, expires: str = "2999-01-01T00:00:00.123456789Z") -> Path:
    """Write a key file as TorchServe does."""
    keys = {kind: {"key": key, "expiration time": expires} for kind in ("inference", "management")}
    path.write_text(json.dumps({**keys, "API": {"key": "api-key"}}))
    path.chmod(0o600)
    return path
