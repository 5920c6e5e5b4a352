"""A client of the LitServe server: our decode processes scale the frames, and one session sends each frame alone.

python -m peers.captions.litserve_client --url http://127.0.0.1:8000 a.mp4 b.mp4
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import aiohttp

from lib.command import command_parser
from peers.outcome import Recorder
from reelscribe._cores import LEAST_PROCESSES, usable_cores
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import Span
from reelscribe.decode.video import VideoTask
from reelscribe.decode_pool.frames import DecodedFrameBatch, ReadFrames
from reelscribe.decode_pool.pool import DecodePool

FRAME = InputSize(224, 224)
FRAMES_PER_BATCH = 32
REQUESTS_IN_FLIGHT = 128
"""Frames of four batches."""


class Client:
    """Sends frames to one address."""

    def __init__(self, url: str, session: aiohttp.ClientSession, pool: DecodePool, recorder: Recorder) -> None:
        self._url, self._session, self._pool, self._recorder = url, session, pool, recorder
        self._in_flight = asyncio.Semaphore(REQUESTS_IN_FLIGHT)

    async def caption(self, path: str) -> list[str]:
        """Return the captions of a file."""
        tasks = []
        parts = self._pool.read(ReadFrames(VideoTask(path, FRAME, resize="fast"), FRAMES_PER_BATCH), [Span()])
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, DecodedFrameBatch):
                    for frame in part.frames:
                        await self._in_flight.acquire()
                        tasks.append(asyncio.create_task(self._post(frame.tobytes())))
                    part.release()
        return await asyncio.gather(*tasks)

    async def _post(self, frame: bytes) -> str:
        try:
            form = aiohttp.FormData()
            form.add_field("frame", frame, filename="frame")
            self._recorder.sent(len(frame))
            async with self._session.post(f"{self._url}/predict", data=form) as answer:
                answer.raise_for_status()
                caption: str = (await answer.json())["caption"]
        finally:
            self._in_flight.release()
        self._recorder.answered(1)
        return caption


async def caption(url: str, paths: list[str], recorder: Recorder) -> list[str]:
    """Return the captions of all files."""
    workers = max(LEAST_PROCESSES, usable_cores())
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        DecodePool(workers, FRAMES_PER_BATCH * FRAME.nbytes, REQUESTS_IN_FLIGHT // FRAMES_PER_BATCH) as pool,
    ):
        client = Client(url, session, pool, recorder)
        captions = await asyncio.gather(*map(client.caption, paths))
    return [text for texts in captions for text in texts]


def main() -> None:
    """Caption the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    recorder = Recorder()
    recorder.print_outcome(asyncio.run(caption(options.url, options.sources, recorder)))


if __name__ == "__main__":
    main()
