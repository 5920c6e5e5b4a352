"""An inference server that describes its model as it should, and answers requests with whatever bytes a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from reelscribe.contract.descriptions import ModelDescription
from support.fake_torchserve import DESCRIPTION

Lie = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
"""The bytes of a whole answer, or what writes one."""


def response(content: bytes | str, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """The bytes of an answer.

    Args:
        content: The body.
        headers: Further headers, such as "Set-Cookie: a=b".
        status: The status line without the version.
        length: Content-Length; by default that of the body.
    """
    body = content.encode() if isinstance(content, str) else content
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def as_json(value: Any, *headers: str) -> bytes:
    """The bytes of an answer with JSON."""
    return response(json.dumps(value), "Content-Type: application/json", *headers)


class LyingServer:
    """Serves a model on a free port of loopback. Use it as an async context manager."""

    def __init__(self, lie: Lie, *, description: ModelDescription | Any = DESCRIPTION) -> None:
        self.lie = lie
        """The answer to all requests but those for the description."""
        self.description = description
        """The description of the model, or the JSON that is sent in its place."""
        kind = getattr(description, "kind", "caption")
        self.model = {
            "caption": "captioner",
            "speech": "speech",
            "clip": "clips",
            "shot": "shots",
            "speaker": "speakers",
        }[kind]
        self.heads: list[str] = []
        """The heads of the requests that were lied to."""
        self.arrivals: asyncio.Queue[None] = asyncio.Queue()

    async def __aenter__(self) -> LyingServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task, writer in self._connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # in which transports that were closed close their sockets

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer_all(reader, writer))
        self._connections[task] = writer

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self._answer(reader, writer)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        await reader.readexactly(int(fields.get("content-length", 0)))
        if (honest := self._description(head.split()[1], fields)) is not None:
            writer.write(honest)
        else:
            self.heads.append(head)
            self.arrivals.put_nowait(None)
            if isinstance(self.lie, bytes):
                writer.write(self.lie)
            else:
                await self.lie(writer)
        await writer.drain()

    def _description(self, path: str, fields: dict[str, str]) -> bytes | None:
        """The answer to a request for the description; None for other requests."""
        if "describe" not in fields:
            return None
        value = self.description
        return as_json(value.to_json() if isinstance(value, ModelDescription) else value)


class LyingOpenAI(LyingServer):
    """The same for a server with OpenAI's API, which describes itself at several addresses."""

    def __init__(self, lie: Lie, **told: bytes) -> None:
        """Take the lie, and what is told at `/v1/models`, `/version` and `/metrics` in place of the truth."""
        super().__init__(lie)
        entry = {"id": "m", "root": "a/Qwen3-VL-2B", "owned_by": "vllm", "max_model_len": 4096}
        self.told = {"models": as_json({"data": [entry]}), "version": as_json({"version": "0.32.0"})} | told

    async def __aenter__(self) -> LyingOpenAI:
        await super().__aenter__()
        self.url = f"openai+{self.url}/v1"
        return self

    def _description(self, path: str, fields: dict[str, str]) -> bytes | None:
        if path.endswith("/metrics"):
            return self.told.get("metrics", response("", status="404 Not Found"))
        return self.told.get(path.rsplit("/", 1)[-1])


async def then_close(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Write bytes, and close the connection."""
    writer.write(content)
    await writer.drain()
    writer.close()


async def write_without_end(writer: asyncio.StreamWriter, head: bytes, block: bytes) -> None:
    """Write a head, and then the same block again and again until the other side closes the connection."""
    writer.write(head)
    while not writer.is_closing():
        writer.write(block)
        await writer.drain()
