"""The tokens for servers on nodes: the driver reads and renews them, and nodes keep them in files of their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from reelscribe._files import atomic_file
from reelscribe._track_specs import TrackSpec
from reelscribe.client.credentials import Credentials
from reelscribe.client.endpoint import Server
from reelscribe.server.finding import FoundServer


def without_tokens(specs: Sequence[TrackSpec]) -> list[TrackSpec]:
    """Return specifications that can be sent to a node: their servers have addresses alone."""
    return [spec.on([FoundServer(Server(each.server.url)) for each in spec.servers]) for spec in specs]


async def current_tokens(specs: Sequence[TrackSpec], session: aiohttp.ClientSession) -> list[str | None]:
    """Return the token for each server of specifications, in order, renewed if it is about to expire.

    Args:
        specs: The specifications, whose servers have their credentials.
        session: HTTP session for requests that renew a token.
    """
    tokens: list[str | None] = []
    for spec in specs:
        for found in spec.servers:
            credentials = found.server.credentials
            if isinstance(credentials, Credentials):
                credentials.reload_after_refusal(None)
                credentials = await credentials.fresh_token(session)
            tokens.append(credentials)
    return tokens


class LentTokens:
    """The tokens that a node was given, in key files of a folder that exists as long as the block."""

    def __init__(self, tokens: Sequence[str | None]) -> None:
        """Take the tokens, in the order of the servers; None for a server that requires none."""
        self._tokens = tokens

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="reelscribe-keys-")  # for its owner alone
        self.write(self._tokens)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def write(self, tokens: Sequence[str | None]) -> None:
        """Replace the tokens. Clients use the new ones when a server refuses an old one."""
        for number, token in enumerate(tokens):
            if token is None:
                continue
            with atomic_file(self._path(number)) as partial:
                partial.touch(mode=0o600)
                partial.write_text(json.dumps({"inference": {"key": token}}))

    def used_by(self, specs: Sequence[TrackSpec]) -> list[TrackSpec]:
        """Return specifications whose servers have the tokens, in the order of the servers."""
        numbers = iter(range(len(self._tokens)))
        return [spec.on([self._with_token(each, next(numbers)) for each in spec.servers]) for spec in specs]

    def _with_token(self, found: FoundServer, number: int) -> FoundServer:
        if self._tokens[number] is None:
            return found
        return FoundServer(Server(found.server.url, Credentials(self._path(number))))

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.json"
