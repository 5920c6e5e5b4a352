"""Clients of vLLM as people write them today: whole files for its own decoder, or frames of a script with PyAV.

python -m peers.clips.vllm_clients --way video --in-flight 16 --url http://127.0.0.1:8000 --budget JSON a.mp4 b.mp4

video: a file is sent as it is, in base64; vLLM decodes it, chooses frames and scales them.
frames: two processes decode files with PyAV, take 2 frames a second, and scale and encode them with Pillow (JPEG of
    quality 95); they are sent as one video of 2 frames a second.

Each file is one clip. Both ask what the model was trained with, at temperature 0, in one session.
"""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import av
from PIL import Image

from lib.command import command_parser
from peers.outcome import Recorder
from reelscribe.contract.clips import ClipBudget

FRAMES_PER_SECOND = 2
MOST_TOKENS = 256
DECODERS = 2

Question = tuple[dict[str, Any], dict[str, Any]]
"""The part of the message with the video, and further options of the request."""


def whole_file(path: str) -> Question:
    """Return the question about a file that the server decodes."""
    url = f"data:video/mp4;base64,{b64encode(Path(path).read_bytes()).decode()}"
    return {"type": "video_url", "video_url": {"url": url}}, {}


def some_frames(path: str, budget: ClipBudget) -> Question:
    """Return the question about frames of a file."""
    pictures, due = list[str](), 0.0
    with av.open(path) as container:
        stream = container.streams.video[0]
        seconds = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
        size = budget.frame_size(int(seconds * FRAMES_PER_SECOND), stream.width, stream.height)
        for frame in container.decode(stream):
            if (frame.time or 0.0) >= due:
                due += 1 / FRAMES_PER_SECOND
                file = io.BytesIO()
                picture = frame.to_image().resize((size.width, size.height), Image.Resampling.BICUBIC)
                picture.save(file, "JPEG", quality=95, subsampling=0)
                pictures.append(b64encode(file.getvalue()).decode())
    video = {
        "fps": FRAMES_PER_SECOND,
        "frames_indices": list(range(len(pictures))),
        "total_num_frames": len(pictures),
        "do_sample_frames": False,
    }
    url = f"data:video/jpeg;base64,{','.join(pictures)}"
    return {"type": "video_url", "video_url": {"url": url}}, {"media_io_kwargs": {"video": video}}


async def describe(
    url: str, paths: list[str], prompt: str, in_flight: int, ask: Callable[[str], Question], recorder: Recorder
) -> list[str]:
    """Return the descriptions of all files, in order."""
    permits, loop = asyncio.Semaphore(in_flight), asyncio.get_running_loop()
    with ProcessPoolExecutor(DECODERS) as pool:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def describe_one(path: str) -> str:
                async with permits:
                    video, options = await loop.run_in_executor(pool, ask, path)
                    message = {"role": "user", "content": [video, {"type": "text", "text": prompt}]}
                    asked = {"model": "clips", "messages": [message], "temperature": 0, "max_tokens": MOST_TOKENS}
                    body = json.dumps(asked | options).encode()
                    recorder.sent(len(body))
                    kind = {"Content-Type": "application/json"}
                    async with session.post(f"{url}/v1/chat/completions", data=body, headers=kind) as answer:
                        answer.raise_for_status()
                        text: str = (await answer.json())["choices"][0]["message"]["content"]
                recorder.answered(1)
                return text

            return await asyncio.gather(*map(describe_one, paths))


def main() -> None:
    """Describe the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--way", choices=("video", "frames"), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--budget", type=json.loads, required=True, help="JSON of the model's ClipBudget")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    ask = whole_file if options.way == "video" else partial(some_frames, budget=ClipBudget.from_json(options.budget))
    recorder = Recorder()
    texts = asyncio.run(describe(options.url, options.sources, options.prompt, options.in_flight, ask, recorder))
    recorder.print_outcome(texts)


if __name__ == "__main__":
    main()
