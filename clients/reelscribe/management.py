"""The management API of TorchServe: which models there are, and whether their workers are ready."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from reelscribe.errors import AccessRefused, ServerUnreachable


@dataclass(frozen=True)
class Worker:
    """One worker process of a model."""

    id: str
    status: str
    """READY, or UNLOADING while it starts or restarts."""
    pid: int

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.status == "READY"


class ManagementClient:
    """One server's management address. Use it as an async context manager."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """`url` is like http://127.0.0.1:8081; `token` the management key of the server's key file."""
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=10),
        )

    async def __aenter__(self) -> ManagementClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def models(self) -> list[str]:
        """Names of the registered models."""
        answer = await self._get("/models?limit=1000")
        return [model["modelName"] for model in answer["models"]]

    async def workers(self, model: str) -> list[Worker]:
        """The workers of a model's default version."""
        (version,) = await self._get(f"/models/{model}")
        return [Worker(str(w["id"]), w["status"], int(w["pid"])) for w in version["workers"]]

    async def _get(self, path: str) -> Any:
        try:
            async with self._session.get(self._url + path) as response:
                if response.status != 200:
                    raise AccessRefused(f"{self._url}{path}: status {response.status}: {(await response.text())[:200]}")
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnreachable(f"{self._url}: {error or type(error).__name__}; is the server running?") from error
