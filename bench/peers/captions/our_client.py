"""Our client as `reelscribe caption` runs it, in a process like those of the other clients.

python -m peers.captions.our_client --url http://127.0.0.1:8080 --key-file key_file.json --resize fast a.mp4 b.mp4
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import get_args
from unittest.mock import patch

from lib.command import command_parser
from peers.outcome import Recorder
from reelscribe import wire
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.in_flight import Permit
from reelscribe.client.models import CaptionClient
from reelscribe.client.operations import ItemAnswer, Items, Operation
from reelscribe.contract import shared_memory
from reelscribe.contract.frames import Resize
from reelscribe.contract.shared_memory import SharedMemory
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import RequestRefused
from reelscribe.results.records import Record
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack


class RecordedClient(CaptionClient):
    """A client that records what is sent and when it is answered."""

    def __init__(self, servers: Sequence[Server], model: str, recorder: Recorder) -> None:
        super().__init__(servers, model)
        self._recorder = recorder

    async def request(
        self, operation: Operation[Items, ItemAnswer], items: Items, permit: Permit | None = None
    ) -> list[ItemAnswer | RequestRefused]:
        """Return the answers of a request, and record its size and the time of the answer."""
        # Packed once more to measure the size; this copies no frames.
        self._recorder.sent(size_sent(operation.pack(items), self._balancer.memories))
        answers = await super().request(operation, items, permit)
        self._recorder.answered(len(answers))
        return answers


@contextmanager
def through_network() -> Iterator[None]:
    """Let clients send frames, as if every server were on another machine."""
    with patch.object(shared_memory, "machine", lambda: ""):
        yield


def size_sent(body: Sequence[wire.Segment], memories: Sequence[SharedMemory]) -> int:
    """Return how many bytes a client sends for a body to a server on this machine.

    Args:
        body: The packed request.
        memories: The shared memory that servers on this machine can read.
    """
    reference = shared_memory.refer(body, memories) if shared_memory.machine() else None
    return wire.size_of(list(body)) if reference is None else len(reference)


async def caption(
    server: Server, model: str, options: CaptionOptions, paths: list[str], out: Path, recorder: Recorder
) -> list[str]:
    """Return the captions of all files; the ledger and the records go to `out`."""
    captions: list[str] = []

    def keep(record: Record) -> None:
        assert record.caption_result
        captions.extend(caption.text for caption in record.caption_result.captions())

    async with RecordedClient([server], model, recorder) as client:
        await Run([CaptionTrack(client, options)], out, on_record=keep).run(paths)
    return captions


def main() -> None:
    """Caption the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--model", default="captioner")
    parser.add_argument("--resize", choices=get_args(Resize), default=CaptionOptions().resize)
    parser.add_argument("--network", action="store_true", help="send frames as to a server on another machine")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    server = Server(options.url, Credentials(options.key_file))
    caption_options = CaptionOptions(Sampling(every=1), resize=options.resize)
    with tempfile.TemporaryDirectory() as out, through_network() if options.network else nullcontext():
        recorder = Recorder()
        captions = asyncio.run(caption(server, options.model, caption_options, options.sources, Path(out), recorder))
        recorder.print_outcome(captions)


if __name__ == "__main__":
    main()
