"""The blog's three clients: full-resolution frames, pickled, with a new session for each request.

    python -m peers.captions.blog_clients --reading sync --in-flight 9 --url http://127.0.0.1:8080/predictions/m a.mp4

sync reads all frames of a file and then sends them one by one. stream sends them one by one while it reads the file.
prebatch does so with several frames in a request. Two things are better than in the blog: files are read in a thread,
so that requests travel meanwhile, and the requests in flight are limited, so that none is refused and sent again. With
the headers Authorization and Accept: text/plain, they work with our handler, too.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import aiohttp
import numpy as np
from numpy.typing import NDArray

from lib.command import command_parser
from peers.captions.reading import frames_of, prebatches_of
from peers.outcome import Recorder

Reading = Literal["sync", "stream", "prebatch"]

Frames = NDArray[np.uint8]


class Client:
    """Sends frames to one address."""

    def __init__(self, url: str, recorder: Recorder, in_flight: int, headers: dict[str, str] | None = None) -> None:
        self._url, self._recorder, self._headers = url, recorder, headers
        self._in_flight = asyncio.Semaphore(in_flight)

    async def caption(self, requests: Iterable[Frames]) -> list[str]:
        """Return the captions of all frames; each request is one frame, (H, W, 3), or several, (N, H, W, 3)."""
        tasks = []
        waiting = iter(requests)
        while (request := await asyncio.to_thread(next, waiting, None)) is not None:
            await self._in_flight.acquire()
            tasks.append(asyncio.create_task(self._post(request)))
        return [caption for captions in await asyncio.gather(*tasks) for caption in captions]

    async def _post(self, request: Frames) -> list[str]:
        try:
            body = pickle.dumps(request)
            self._recorder.sent(len(body))
            async with (
                aiohttp.ClientSession(headers=self._headers) as session,
                session.post(self._url, data=body) as answer,
            ):
                answer.raise_for_status()
                text = await answer.text()
        finally:
            self._in_flight.release()
        captions = [text] if request.ndim == 3 else json.loads(text)
        self._recorder.answered(len(captions))
        return captions


async def caption(client: Client, paths: list[str], reading: Reading, prebatch: int = 32) -> list[str]:
    """Return the captions of all files, one file after the other, with so many frames in a prebatch."""
    if reading == "sync":
        return [text for path in paths for text in await client.caption(list(frames_of(path)))]
    return await client.caption(_requests(paths, prebatch if reading == "prebatch" else None))


def _requests(paths: list[str], prebatch: int | None) -> Iterator[Frames]:
    for path in paths:
        yield from frames_of(path) if prebatch is None else prebatches_of(path, prebatch)


def main() -> None:
    """Caption the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--reading", choices=get_args(Reading), required=True)
    parser.add_argument("--prebatch", type=int, default=32, help="frames in a request")
    parser.add_argument("--in-flight", type=int, required=True, help="requests at once; TorchServe's queue holds 100")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE of a header; may be repeated")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    recorder = Recorder()
    headers = dict(header.split(": ", 1) for header in options.header)
    client = Client(options.url, recorder, options.in_flight, headers)
    recorder.print_outcome(asyncio.run(caption(client, options.sources, options.reading, options.prebatch)))


if __name__ == "__main__":
    main()
