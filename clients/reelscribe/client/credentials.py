"""The token for an API of a TorchServe, read from the server's key file and renewed before it expires.

The key for a server with OpenAI's API is read from a file that has nothing else.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import aiohttp

from reelscribe._files import read_small, read_small_file
from reelscribe._web_addresses import checked_server_address
from reelscribe.client.http_session import ask
from reelscribe.errors import MALFORMED, ServerError, UsageError

RENEW_SECONDS = 60.0
"""Seconds before its expiration at which a token is renewed. A shorter-lived token is renewed after half its life."""

RETRY_SECONDS = 15.0
"""Interval of attempts to renew a token, in seconds."""

RENEWAL_TIMEOUT = aiohttp.ClientTimeout(total=10)
"""Timeout of an attempt to renew a token. It is shorter than RETRY_SECONDS, so that attempts do not overlap."""


class Credentials:
    """The token for one API of a TorchServe, from its `key_file.json`.

    The file may be a copy of the server's file. If it is replaced, the new token is used. If the management address is
    given and the file is the server's own, the token is renewed before it expires.
    """

    expected: ClassVar[str] = "the key_file.json of a TorchServe"
    """What the file should be, for error messages."""

    def __init__(
        self,
        key_file: str | os.PathLike[str],
        management_url: str | None = None,
        *,
        api: Literal["inference", "management"] = "inference",
        found: bool = False,
    ) -> None:
        """Read the key file.

        Args:
            key_file: The server's `key_file.json`, or a copy of it.
            management_url: Management address of the server, such as http://127.0.0.1:8081, where tokens are renewed;
                None if they are not.
            api: The API for which the token is.
            found: Whether the file was found in a folder, so that only a regular one is read. One that somebody has
                named may also be a pipe from a program, which is waited for, and read once.

        Raises:
            UsageError: The file is not a key file, other users than its owner have access to it, or the management
                address is none.
        """
        self._path = Path(key_file)
        self._management_url = management_url and checked_server_address(management_url)
        self._api = api
        self._keys: Mapping[str, Any] = {}
        self._load(read_small_file if found else _read_named)
        # As in ssh this is an error, because a warning would come after the token was exposed. Only this first reading
        # checks the mode, so that a run fails at its start or not at all.
        mode = stat.S_IMODE(self._path.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"key file {key_file}: expected one that is for its owner alone, got mode {mode:03o}; chmod 600 it"
            )

    @property
    def token(self) -> str:
        """The token that was read last from the file."""
        return str(self._keys[self._api]["key"])

    def reload(self) -> bool:
        """Read the file again.

        Returns:
            Whether the token has changed.

        Raises:
            UsageError: The file is not a key file any more. The token from the last reading is kept.
        """
        return self._load(read_small_file)

    def _load(self, read: Callable[[Path], bytes]) -> bool:
        try:
            keys = self._read(read(self._path).decode())
            if "key" not in keys.get(self._api, {}):
                raise ValueError(f"it has no {self._api} key")
            changed = bool(keys[self._api]["key"] != self._keys.get(self._api, {}).get("key"))
            renew_at = self._next_renewal(keys)
        except (OSError, *MALFORMED) as error:
            raise UsageError(f"key file {self._path}: expected {self.expected}: {error}") from None
        self._keys = keys
        if changed:
            self._renew_at = renew_at
        return changed

    def reload_after_refusal(self, refused: str | None) -> bool:
        """Read the file again after the server refused a token.

        The result is not that of `reload`: of several requests that were refused together, only the first one sees the
        token change.

        Args:
            refused: The refused token; None if the request had none.

        Returns:
            Whether the token in the file differs from `refused`.
        """
        with suppress(UsageError):  # a server that restarts has no key file for a while
            self.reload()
        return self.token != refused

    async def fresh_token(self, session: aiohttp.ClientSession) -> str:
        """Return the token; renew it first if it is about to expire.

        Args:
            session: HTTP session for the request that renews it.
        """
        if time.time() > self._renew_at:
            self._renew_at = time.time() + RETRY_SECONDS  # set first, so that other requests do not renew it as well
            await self._renew(session)
        return self.token

    async def _renew(self, session: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {self._keys['API']['key']}"}
        url = f"{self._management_url}/token?type={self._api}"
        # Errors are ignored: the old token may still be valid, and if it is not, the server's refusal says more.
        with suppress(aiohttp.ClientError, TimeoutError, OSError, UsageError, ServerError):
            # TorchServe writes the new token to its key file and not into the response.
            await ask(session, "GET", url, headers=headers, limits=RENEWAL_TIMEOUT)
            self.reload()

    def _read(self, text: str) -> Mapping[str, Any]:
        """Parse the text of the file; raises ValueError for another one."""
        keys: Mapping[str, Any] = json.loads(text)
        return keys

    def _next_renewal(self, keys: Mapping[str, Any]) -> float:
        """Return the Unix time at which the token should be renewed, in seconds; infinity for never."""
        expires = keys[self._api].get("expiration time")
        if not self._management_url or not expires or "API" not in keys:
            return float("inf")
        end = datetime.fromisoformat(expires).timestamp()
        return max(end - RENEW_SECONDS, (time.time() + end) / 2)


class ApiKey(Credentials):
    """The key for a server with OpenAI's API, from a file that has nothing else. It is not renewed."""

    expected = "one line with the key of a server with OpenAI's API"

    def __init__(self, key_file: str | os.PathLike[str]) -> None:
        """Read the file; raises UsageError as `Credentials` does."""
        super().__init__(key_file)

    def _read(self, text: str) -> Mapping[str, Any]:
        key = text.strip()
        if key.startswith("{"):  # its tokens must not get to another server
            raise ValueError("it looks like the key file of a TorchServe")
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("it is empty, or has spaces or other characters that no key has")
        return {self._api: {"key": key}}


def _read_named(path: Path) -> bytes:
    with path.open("rb") as file:
        return read_small(file)
