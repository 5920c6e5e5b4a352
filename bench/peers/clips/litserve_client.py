"""A client of the LitServe server: our decode processes read and scale clips, and one session sends each clip alone.

python -m peers.clips.litserve_client --url http://127.0.0.1:8000 --budget JSON --clip-seconds 4 a.mp4 b.mp4
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import aiohttp

from lib.command import command_parser
from peers.outcome import Recorder
from reelscribe._cores import LEAST_PROCESSES, usable_cores
from reelscribe.contract.clips import ClipBudget
from reelscribe.contract.frames import FrameArray
from reelscribe.contract.source import Span
from reelscribe.decode.clips import ClipCutting, ClipTask
from reelscribe.decode_pool.clips import DecodedClipBatch, ReadClips, SentClip
from reelscribe.decode_pool.commands import MAX_CLIPS_PER_REQUEST
from reelscribe.decode_pool.pool import DecodePool
from reelscribe.run.tracks.clips import ClipOptions

REQUESTS_IN_FLIGHT = 32
"""Clips of four batches."""


class Client:
    """Sends clips to one address."""

    def __init__(self, url: str, session: aiohttp.ClientSession, pool: DecodePool, recorder: Recorder) -> None:
        self._url, self._session, self._pool, self._recorder = url, session, pool, recorder
        self._in_flight = asyncio.Semaphore(REQUESTS_IN_FLIGHT)

    async def describe(self, task: ClipTask) -> list[str]:
        """Return the descriptions of the clips of a file."""
        tasks = []
        parts = self._pool.read(ReadClips(task, MAX_CLIPS_PER_REQUEST), [Span()])
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, DecodedClipBatch):
                    for clip, frames in zip(part.clips, part.frames, strict=True):
                        await self._in_flight.acquire()
                        tasks.append(asyncio.create_task(self._post(clip, frames.copy())))
                    part.release()
        return await asyncio.gather(*tasks)

    async def _post(self, clip: SentClip, frames: FrameArray) -> str:
        try:
            form = aiohttp.FormData()
            form.add_field("frames", frames.tobytes(), filename="frames")
            form.add_field("shape", json.dumps(clip.shape))
            form.add_field("times", json.dumps(clip.pts_seconds))
            self._recorder.sent(frames.nbytes)
            async with self._session.post(f"{self._url}/predict", data=form) as answer:
                answer.raise_for_status()
                description: str = (await answer.json())["description"]
        finally:
            self._in_flight.release()
        self._recorder.answered(1)
        return description


async def describe(
    url: str, paths: list[str], budget: ClipBudget, cutting: ClipCutting, recorder: Recorder
) -> list[str]:
    """Return the descriptions of all files."""
    slot = MAX_CLIPS_PER_REQUEST * budget.most_bytes(cutting.longest_seconds)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        DecodePool(max(LEAST_PROCESSES, usable_cores()), slot, REQUESTS_IN_FLIGHT) as pool,
    ):
        client = Client(url, session, pool, recorder)
        tasks = [ClipTask(path, budget, cutting, ClipOptions().resize) for path in paths]
        texts = await asyncio.gather(*map(client.describe, tasks))
    return [text for of_file in texts for text in of_file]


def main() -> None:
    """Describe the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--budget", type=json.loads, required=True, help="JSON of the model's ClipBudget")
    parser.add_argument("--clip-seconds", type=float, required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    budget = ClipBudget.from_json(options.budget)
    cutting = ClipCutting("windows", window_seconds=options.clip_seconds)
    recorder = Recorder()
    recorder.print_outcome(asyncio.run(describe(options.url, options.sources, budget, cutting, recorder)))


if __name__ == "__main__":
    main()
