"""Records what a real vLLM is asked and what it answers, for tests without one.

    PYTHONPATH=tests:demo:handlers .venv/bin/python tests/vllm/record.py FOLDER > tests/data/openai/vllm.json

FOLDER is that of `scripts/peers vllm`. The demo clip model answers. Each exchange has a name, the path, the body of the
request or null, the status and the answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import ClientSession

from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient
from reelscribe.client.openai_forms import OpenAISettings, descriptions
from reelscribe.contract.clips import Clip
from servers.torchserve import CLIPS
from servers.vllm import CLIPS_OPTIONS, ServedVLLM

FRAMES = np.linspace(0, 255, 4 * 64 * 64 * 3).astype(np.uint8).reshape(4, 64, 64, 3)
CLIP = Clip(FRAMES, [0.0, 0.5, 1.0, 12.5])
SCHEMA = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
CHAT = "/v1/chat/completions"


async def ask(session: ClientSession, name: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Send a request, and return the exchange."""
    method = "GET" if body is None else "POST"
    async with session.request(method, url, json=body) as answer:
        path = "/" + url.split("/", 3)[3]
        return {"name": name, "path": path, "request": body, "status": answer.status, "answer": await answer.json()}


async def exchanges(server: ServedVLLM) -> AsyncIterator[dict[str, Any]]:
    """Yield the exchanges with a server that takes the times of frames."""
    settings = OpenAISettings("qwen3-vl", frame_format="jpeg:80", max_tokens=32)
    async with ClipClient([Server(server.url, openai=settings)], "clips") as client:
        description = await client.describe()

    def body(clip: Clip, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return dict(json.loads(descriptions(description, schema).pack([clip], "clips", ()).body))

    in_prompt = replace(description, generation={**description.generation, "frame_times": "prompt"})
    pictures = json.loads(descriptions(in_prompt, None).pack([CLIP], "clips", ()).body)
    still = Clip(FRAMES[:1], [3.0])
    async with ClientSession() as session:
        for name, path in (("models", "/v1/models"), ("version", "/version")):
            yield await ask(session, name, server.address + path)
        chats = {
            "clip": body(CLIP),
            "pictures": pictures,
            "still": body(still),
            "schema": body(CLIP, SCHEMA),
            "length": body(CLIP) | {"max_tokens": 2},
            "unknown model": body(still) | {"model": "other"},
            "too long": body(replace(still, prompt="word " * 5000)),
        }
        for name, asked in chats.items():
            yield await ask(session, name, server.address + CHAT, asked)


async def refused(server: ServedVLLM) -> dict[str, Any]:
    """Return the exchange with a server that does not take the times of frames."""
    video = {"fps": 1000, "frames_indices": [0], "total_num_frames": 1, "do_sample_frames": False}
    message = {"role": "user", "content": [{"type": "text", "text": "What is this?"}]}
    async with ClientSession() as session:
        asked = {"model": "clips", "messages": [message], "media_io_kwargs": {"video": video}}
        return await ask(session, "times refused", server.address + CHAT, asked)


async def main(folder: Path) -> None:
    """Print all exchanges."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for options in (CLIPS_OPTIONS, CLIPS_OPTIONS[1:]):
            server = ServedVLLM(folder, CLIPS, "clips", Path(directory) / "log", options)
            server.start()
            try:
                if options is CLIPS_OPTIONS:
                    found += [exchange async for exchange in exchanges(server)]
                else:
                    found.append(await refused(server))
            finally:
                server.kill()
    root = str(CLIPS)
    print(json.dumps(found, indent=1).replace(root, "demo/models/clips"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
