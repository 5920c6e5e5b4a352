"""Runs that tell speakers apart, for tests: a fake server to which a tone is a voice, and its pitch the speaker."""

import asyncio
from pathlib import Path

import numpy as np
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ModelClient
from reelscribe.contract.chunking import Cutting
from reelscribe.contract.descriptions import SpeakerModelDescription
from reelscribe.reporting.summary import Summary
from reelscribe.run.driver import Run
from reelscribe.run.tracks.speakers import SpeakerOptions
from reelscribe.run.tracks.track import Track
from support.audio import RATE, tone, write
from support.fake_torchserve import Answer, FakeTorchServe, Received
from support.patience import PATIENCE
from support.sending import no_waiting
from support.speaker_models import voices

SPEAKERS = SpeakerModelDescription(
    name="a/ge2e",
    revision="123",
    generation={},
    embedding_size=8,
    sample_rate=RATE,
    chunk_seconds=4.0,
    dtype="float32",
    device_batch=8,
    max_chunks=16,
)

PITCHES = (300, 700, 1500)


def voices_of(chunk: np.ndarray) -> dict:
    """A part for each half second, whose embedding points along the axis of its pitch."""
    halves = chunk[: len(chunk) // (RATE // 2) * (RATE // 2)].reshape(-1, RATE // 2).astype(float)
    heard = [np.abs(np.fft.rfft(half)).argmax() * 2 for half in halves]
    return voices(*(int(np.abs(np.subtract(PITCHES, hertz)).argmin()) for hertz in heard)).to_json()


async def answers(request: Received) -> web.Response:
    """Respond like the speaker handler."""
    return web.json_response([voices_of(chunk) for chunk in request.tree["chunks"]])


def speaker_server(answer: Answer = answers) -> FakeTorchServe:
    return FakeTorchServe(answer, description=SPEAKERS)


def write_talk(path: Path, *parts: tuple[int, float]) -> Path:
    """A recording of speakers by their numbers, each for so many seconds."""
    write(path, np.concatenate([tone(PITCHES[number], seconds) for number, seconds in parts]), RATE, "flac")
    return path


async def tell_apart(out: Path, paths: list[Path], server: FakeTorchServe, **options) -> Summary:
    """Tell the speakers of sources apart with the model of this server. A run that hangs fails."""
    chosen = SpeakerOptions(**{"cutting": Cutting(0), "chunks_per_request": 1, "audio_workers": 1, **options})
    with no_waiting():
        async with ModelClient([Server(server.url)], "speakers", SpeakerModelDescription) as client:
            run = Run([Track(chosen, client)], out)
            return await asyncio.wait_for(run.run([str(path) for path in paths]), PATIENCE)
