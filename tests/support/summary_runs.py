"""Runs that make summaries, for tests: of clips and speech, with a chat model that says what a test wants."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from reelscribe._track_specs import ModelSpec, SummarySpec, TrackSpec
from reelscribe.client.endpoint import Server
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.decode.clips import ClipCutting
from reelscribe.reporting.progress import Progress
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.node import Nodes
from reelscribe.run.tracks.clips import ClipOptions
from reelscribe.run.tracks.summaries import SummaryOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from reelscribe.server.server_discovery import FoundServer
from support.clip_runs import clip_server, records
from support.fake_openai import FakeVLLM, chat, serving
from support.fake_torchserve import SPEECH, FakeTorchServe, descriptions
from support.patience import PATIENCE
from support.sending import no_waiting

SUMMARY = {"title": "A talk", "summary": "One. Two. Three.", "keywords": ["a", "b"]}
IN_RECORD = {"title": "A talk", "text": "One. Two. Three.", "keywords": ["a", "b"]}


def answer(**changes) -> dict:
    return chat(json.dumps(SUMMARY | changes))


async def spoken(request):
    """Respond like the speech handler: "hello" in each second second of the audio."""
    said = tuple(SpeechSegment(float(k), k + 1.0, f"hello {k}") for k in range(0, 12, 2))
    return web.json_response([ChunkTranscript("hello", "en", said).to_json() for _ in request.names()])


def found(url: str) -> list[FoundServer]:
    return [FoundServer(Server(url))]


class Served:
    """A server of clips, one of speech, and one of chats."""

    def __init__(self, clips: FakeTorchServe, speech: FakeTorchServe, chats: FakeVLLM) -> None:
        self.clips, self.speech, self.chats = clips, speech, chats

    def specs(self, *, retry_failed: bool = False, window: float = 4.0) -> list[TrackSpec]:
        cutting = ClipCutting("windows", window_seconds=window)
        return [
            ModelSpec(ClipOptions(cutting, retry_failed=retry_failed), found(self.clips.url), "clips"),
            ModelSpec(SpeechOptions(silence_db=None, retry_failed=retry_failed), found(self.speech.url), "speech"),
            SummarySpec(SummaryOptions(retry_failed=retry_failed), found(self.chats.url), "m"),
        ]

    async def run(
        self,
        out: Path,
        *paths: Path,
        specs: list[TrackSpec] | None = None,
        nodes: Nodes | None = None,
        progress: Progress | None = None,
        **options,
    ) -> Summary:
        """Annotate sources, on this machine or on nodes. A run that hangs fails."""
        with no_waiting():
            async with AsyncExitStack() as stack:
                tracks = nodes or [await spec.open(stack) for spec in specs or self.specs(**options)]
                self.running = Run(tracks, out, progress=progress)
                return await asyncio.wait_for(self.running.run([*map(str, paths)]), PATIENCE)

    def prompts(self) -> list[str]:
        """What the chat model was asked."""
        return [asked["messages"][0]["content"][0]["text"] for asked in self.chats.asked]

    def lines(self) -> list[list[str]]:
        """The lines of texts in each question."""
        return [re.findall(r"^[0-9.]+-[0-9.]+ s, .*$", prompt, re.MULTILINE) for prompt in self.prompts()]


@asynccontextmanager
async def all_served() -> AsyncIterator[Served]:
    """The three servers."""
    speech = FakeTorchServe(spoken, description=SPEECH)
    async with clip_server() as clips, speech, serving() as chats:
        chats.answer = lambda _: answer()
        yield Served(clips, speech, chats)


def record_of(out: Path, name: str = "spoken.mp4") -> dict:
    return records(out)[name]


def tell(served: Served, text: str) -> None:
    """Let the clip model say the same of all clips."""

    async def respond(request):
        values = json.loads((await descriptions(request)).body)
        return web.json_response([value | {"text": text} for value in values])

    served.clips.answer = respond
