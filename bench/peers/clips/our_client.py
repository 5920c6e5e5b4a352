"""Our client as `reelscribe caption --clips` runs it, in a process like those of the other clients.

python -m peers.clips.our_client --url http://127.0.0.1:8080 --key-file key_file.json --clip-seconds 4 a.mp4 b.mp4
python -m peers.clips.our_client --openai --url http://127.0.0.1:8000 --clip-seconds 4 a.mp4 b.mp4
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lib.command import command_parser
from lib.delays import Stalls
from peers.captions.our_client import size_sent
from peers.outcome import Recorder
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.in_flight import Permit
from reelscribe.client.models import ClipClient
from reelscribe.client.openai_forms import Content, Form, OpenAISettings
from reelscribe.client.operations import ItemAnswer, Items, Operation
from reelscribe.contract.outcomes import DescribedClip
from reelscribe.decode.clips import ClipCutting
from reelscribe.errors import RequestRefused
from reelscribe.results.records import Record
from reelscribe.run.driver import Run
from reelscribe.run.tracks.clips import ClipOptions, ClipTrack


class RecordedClient(ClipClient):
    """A client that records what is sent and when it is answered."""

    def __init__(self, servers: Sequence[Server], model: str, recorder: Recorder) -> None:
        super().__init__(servers, model)
        self._recorder = recorder
        self._speaks_openai = servers[0].speaks_openai

    async def request(
        self, operation: Operation[Items, ItemAnswer], items: Items, permit: Permit | None = None
    ) -> list[ItemAnswer | RequestRefused]:
        """Return the answers of a request, and record its size and the time of the answer."""
        if self._speaks_openai and operation.openai:
            operation = replace(operation, openai=self._recorded(operation.openai))
        else:
            # Packed once more to measure the size; this copies no frames.
            self._recorder.sent(size_sent(operation.pack(items), self._balancer.memories))
        answers = await super().request(operation, items, permit)
        self._recorder.answered(len(answers))
        return answers

    def _recorded(self, form: Form[Any, ItemAnswer]) -> Form[Any, ItemAnswer]:
        def pack(items: Any, model: str, without: Collection[str]) -> Content:
            content = form.pack(items, model, without)
            self._recorder.sent(len(content.body))
            return content

        return replace(form, pack=pack)


async def describe(
    server: Server, options: ClipOptions, paths: list[str], out: Path, recorder: Recorder
) -> tuple[list[str], int]:
    """Return the descriptions of all files, in order, and the longest stall of the event loop in milliseconds."""
    texts: dict[str, list[str]] = {}

    def keep(record: Record) -> None:
        assert record.description_result
        described = record.description_result.results()
        texts[record.source.path] = [clip.text for clip in described if isinstance(clip, DescribedClip)]

    async with RecordedClient([server], "clips", recorder) as client, Stalls.measured() as stalls:
        await Run([ClipTrack(client, options)], out, on_record=keep).run(paths)
    return [text for path in paths for text in texts[path]], stalls.longest_ms


def main() -> None:
    """Describe the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key-file", type=Path, help="for TorchServe")
    parser.add_argument("--clip-seconds", type=float, required=True, help="length of windows")
    parser.add_argument("--openai", action="store_true", help="the server has OpenAI's API")
    parser.add_argument("--max-tokens", type=int, help="largest number of tokens of an answer over OpenAI's API")
    parser.add_argument("--frame-pixels", type=int, help="largest size of frames; by default what the model takes")
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    cutting = ClipCutting("windows", window_seconds=options.clip_seconds)
    credentials = Credentials(options.key_file) if options.key_file else None
    url = f"openai+{options.url}/v1" if options.openai else options.url
    server = Server(url, credentials, openai=OpenAISettings("qwen3-vl", max_tokens=options.max_tokens))
    with tempfile.TemporaryDirectory() as out:
        recorder = Recorder()
        texts, longest_stall_ms = asyncio.run(
            describe(
                server, ClipOptions(cutting, frame_pixels=options.frame_pixels), options.sources, Path(out), recorder
            )
        )
        recorder.print_outcome(texts, longest_stall_ms)


if __name__ == "__main__":
    main()
