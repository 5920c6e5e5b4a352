"""The token for one of a server's APIs: read from its key file, and read again when that has changed."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import aiohttp

from reelscribe.errors import UsageError

RENEW_SECONDS = 60.0
"""A token is renewed so long before it expires, or after half of its life, whichever is later."""

RETRY_SECONDS = 15.0
"""After so long a renewal that failed is tried again; longer than one may take."""


class Credentials:
    """The key to one API of a TorchServe, from its `key_file.json`.

    A copy of the file serves too: when another is put in its place, that is used. Where the management address is
    known, and the file is the server's own, the key is renewed before it expires.
    """

    def __init__(
        self,
        key_file: Path,
        management_url: str | None = None,
        *,
        api: Literal["inference", "management"] = "inference",
    ) -> None:
        """Raises UsageError if the file is no key file, or it is not for its owner alone.

        A refusal, as ssh does it: whoever only reads a warning has told the key to all the same. It comes before a
        run, not in it, for `reload` does not look.
        """
        self._path = key_file
        self._management_url = management_url
        self._api = api
        self._keys: Mapping[str, Any] = {}
        self.reload()
        mode = stat.S_IMODE(key_file.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"key file {key_file}: expected one that is for its owner alone, got mode {mode:03o}; chmod 600 it"
            )

    @property
    def token(self) -> str:
        """The key."""
        return str(self._keys[self._api]["key"])

    def reload(self) -> bool:
        """Read the file again; returns whether the key is another one. Raises UsageError."""
        try:
            keys = json.loads(self._path.read_text())
            if "key" not in keys.get(self._api, {}):
                raise ValueError(f"it has no {self._api} key")
            changed = bool(keys[self._api]["key"] != self._keys.get(self._api, {}).get("key"))
            renew_at = self._next_renewal(keys)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"key file {self._path}: expected the key_file.json of a TorchServe: {error}") from None
        self._keys = keys
        if changed:
            self._renew_at = renew_at
        return changed

    def differs_from(self, refused: str | None) -> bool:
        """Whether the file holds another key now than the one that was refused.

        Not what `reload` says: of requests that were refused together, only the first sees the key change.
        """
        with suppress(UsageError):  # a server that restarts has none for a while
            self.reload()
        return self.token != refused

    async def fresh_token(self, session: aiohttp.ClientSession) -> str:
        """The key, renewed if it is about to expire."""
        if time.time() > self._renew_at:
            self._renew_at = time.time() + RETRY_SECONDS  # others need not wait for this
            await self._renew(session)
        return self.token

    async def _renew(self, session: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {self._keys['API']['key']}"}
        url = f"{self._management_url}/token?type={self._api}"
        # Without a new key the old one may still do; if not, its refusal says more.
        with suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError, UsageError):
            # TorchServe answers nothing and writes its key file.
            async with session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as answer:
                await answer.read()
            self.reload()

    def _next_renewal(self, keys: Mapping[str, Any]) -> float:
        expires = keys[self._api].get("expiration time")
        if not self._management_url or not expires or "API" not in keys:
            return float("inf")
        # Nanoseconds and a Z, which Python 3.10 cannot read.
        end = datetime.fromisoformat(f"{expires[:19]}+00:00").timestamp()
        return max(end - RENEW_SECONDS, (time.time() + end) / 2)
