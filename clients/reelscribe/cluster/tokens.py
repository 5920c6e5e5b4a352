"""The tokens for servers on nodes: the driver reads and renews them, and nodes keep them in their memory."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from reelscribe._track_specs import TrackSpec
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.server.server_discovery import FoundServer

LOOK_SECONDS = 15.0
"""Seconds between two looks at whether tokens have changed."""


def without_tokens(specs: Sequence[TrackSpec]) -> list[TrackSpec]:
    """Return specifications that can be sent to a node: their servers have addresses alone."""
    return [spec.on([_with_token(each, None) for each in spec.servers]) for spec in specs]


class CurrentTokens:
    """The tokens for the servers of a run, as the driver reads and renews them."""

    def __init__(self, specs: Sequence[TrackSpec], http: aiohttp.ClientSession) -> None:
        """Take note of the servers.

        Args:
            specs: What the run makes; its servers have their credentials.
            http: Session for requests that renew a token.
        """
        self._credentials = [found.server.credentials for spec in specs for found in spec.servers]
        self._http = http

    async def read(self) -> list[str | None]:
        """Return the token for each server in order, renewed if it is about to expire; None where none is required.

        A server that restarts has no key file for a while; then the last token is returned.
        """
        return [await self._token(each) for each in self._credentials]

    async def changes(self) -> AsyncGenerator[list[str | None], None]:
        """Yield the tokens whenever one has changed. It does not end by itself."""
        before = await self.read()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = await self.read()
            if now != before:
                yield now
            before = now

    async def _token(self, credentials: Credentials | str | None) -> str | None:
        if not isinstance(credentials, Credentials):
            return credentials
        credentials.reload_after_refusal(None)
        return await credentials.fresh_token(self._http)


class LentTokens:
    """The tokens that a node was given, in key files that are not on a disk, so that no death of the node leaves them.

    Use it as a context manager; the files exist as long as the block.
    """

    def __init__(self, tokens: Sequence[str | None]) -> None:
        """Take the tokens, in the order of the servers; None for a server that requires none."""
        self._tokens = tokens

    def __enter__(self) -> Self:
        self._files = [None if token is None else os.memfd_create("reelscribe-key") for token in self._tokens]
        for file in filter(None, self._files):
            os.fchmod(file, 0o600)
        self.write(self._tokens)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in filter(None, self._files):
            os.close(file)

    def write(self, tokens: Sequence[str | None]) -> None:
        """Replace the tokens. Clients use the new ones when a server refuses an old one."""
        for file, token in zip(self._files, tokens, strict=True):
            if file and token:
                text = json.dumps({"inference": {"key": token}}).encode()
                os.pwrite(file, text, 0)
                os.truncate(file, len(text))

    def used_by(self, specs: Sequence[TrackSpec]) -> list[TrackSpec]:
        """Return specifications whose servers have the tokens, in the order of the servers."""
        files = iter(self._files)
        return [spec.on([_with_token(each, next(files)) for each in spec.servers]) for spec in specs]


def _with_token(found: FoundServer, file: int | None) -> FoundServer:
    """Return where a server is, with the token in a file, or without any."""
    token = None if file is None else Credentials(Path(f"/proc/self/fd/{file}"))
    return FoundServer(Server(found.server.url, token, openai=found.server.openai))
