"""A small HTTP server that imitates TorchServe's management, inference and metrics APIs; e2e/ uses the real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from support.fake_torchserve import write_key_file

KEY_REFUSED = ("InvalidKeyException", "Token Authorization failed. Token either incorrect, expired, or not provided")


@dataclass
class FakeVersion:
    """A registered version."""

    archive: str
    min_workers: int = 1
    max_workers: int = 1
    ready: list[bool] = field(default_factory=lambda: [True])
    """For each worker that exists, whether it is READY."""
    pending: int = 0
    response_seconds: int = 0
    gpu_usage: str = "N/A"
    """What is said of the GPU of every worker, if `gpus` is None."""
    batch_size: int = 1
    devices: tuple[int, ...] = (2, 3)
    """GPUs that the archive names."""
    gpus: list[int] | None = None
    """For each worker that exists, its GPU; None if `gpu_usage` is that of all of them."""
    turn: int = 0
    """Position in `devices` of the GPU of the next worker."""

    def resize(self, minimum: int, maximum: int, *, halfway: bool = False) -> None:
        """Remove the newest workers, only one if `halfway`, or give devices in turn to new ones, as TorchServe does."""
        self.min_workers, self.max_workers = minimum, maximum
        count = min(max(len(self.ready), minimum), maximum)
        if halfway:
            count = max(count, len(self.ready) - 1)
        added = range(self.turn, self.turn + max(0, count - len(self.ready)))
        self.ready = self.ready[:count] + [True] * len(added)
        if self.gpus is not None:
            self.gpus = self.gpus[:count] + [self.devices[turn % len(self.devices)] for turn in added]
        self.turn += len(added)

    def to_json(self, name: str, version: str) -> dict[str, Any]:
        return {
            "modelName": name,
            "modelVersion": version,
            "modelUrl": self.archive,
            "minWorkers": self.min_workers,
            "maxWorkers": self.max_workers,
            "responseTimeout": self.response_seconds,
            "startupTimeout": 600,
            "batchSize": self.batch_size,
            "maxBatchDelay": 1,
            "deviceIds": list(self.devices),
            "jobQueueStatus": {"remainingCapacity": 16 - self.pending, "pendingRequests": self.pending},
            "workers": [
                {"id": f"{9000 + k}", "status": "READY" if ready else "UNLOADING", "pid": 100 + k, "memoryUsage": 2**20}
                | {
                    "gpu": False,
                    "gpuUsage": f"gpuId::{self.gpus[k]} usage::0" if self.gpus is not None else self.gpu_usage,
                }
                for k, ready in enumerate(self.ready)
            ],
        }


class FakeManagement:
    """Serves the three APIs at `url`, a free port of loopback; an async context manager.

    New workers are READY at once.
    """

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        """Token that requests must have; None for any."""
        self.models: dict[str, dict[str, FakeVersion]] = {}
        self.defaults: dict[str, str] = {}
        self.archives: dict[str, tuple[str, str, FakeVersion]] = {}
        """Model, version and workers that the registration of an archive creates, by file name."""
        self.description: dict[str, Any] = {"name": "a/b"}
        """How the handler of every version describes itself."""
        self.requests: list[str] = []
        """Method, path and query of every request."""
        self.answer: Callable[[], web.Response] | None = None
        """If set, makes the answer to every request."""
        self.refuse: dict[str, web.Response] = {}
        """Answers to the next request of a method, which is not carried out, by method."""
        self.halfway = 0
        """Number of the next requests that remove workers and end after one of them, as if the queue were full."""
        self.orphans = 0
        """Number of workers that run for ever, as TorchServe has forgotten them before it could end them."""
        self.gone: set[str] = set()
        """Models that are listed, but no longer registered."""
        self.key_file: Path | None = None
        """File that a renewed key is written to; None if keys are not renewed."""
        self.healthy = True

    async def __aenter__(self) -> FakeManagement:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def changes(self) -> list[str]:
        """Method, path and query of every request that may change something."""
        return [line for line in self.requests if not line.startswith("GET")]

    def add(self, name: str, version: str, model: FakeVersion) -> None:
        """Register a version; the first version of a model is its default."""
        self.models.setdefault(name, {})[version] = model
        self.defaults.setdefault(name, version)

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.raw_path}")
        if request.path == "/token" and self.key_file:
            self.key = "renewed"
            write_key_file(self.key_file, self.key)
            return web.Response()
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return refused(400, *KEY_REFUSED)
        if self.answer:
            return self.answer()
        if request.method in self.refuse:
            return self.refuse.pop(request.method)
        return self._carry_out(request)

    def _carry_out(self, request: web.Request) -> web.Response:
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", "ping"]:
                text = "Healthy" if self.healthy else "Unhealthy"
                return web.json_response({"status": text}, status=200 if self.healthy else 500)
            case ["GET", "metrics"]:
                return web.Response(text="# TYPE ts_inference_requests_total counter\n")
            case ["GET", "models"]:
                return self._page(int(request.query["next_page_token"]), int(request.query["limit"]))
            case ["POST", "models"]:
                return self._register(request.query.get("url"), int(request.query.get("batch_size", 1)))
            case [method, "models", name, *rest]:
                return self._of_model(method, name, rest, request)
        return refused(404, "ResourceNotFoundException", "Requested resource is not found")

    def _page(self, start: int, limit: int) -> web.Response:
        names = sorted({*self.models, *self.gone})
        page = [{"modelName": name, "modelUrl": self._default_archive(name)} for name in names[start : start + limit]]
        more = {"nextPageToken": str(start + limit)} if start + limit < len(names) else {}
        return web.json_response({"models": page, **more})

    def _ends_halfway(self, model: FakeVersion, maximum: int) -> bool:
        if self.halfway == 0 or len(model.ready) <= maximum:
            return False
        self.halfway -= 1
        self.orphans += max(0, len(model.ready) - 1) if maximum == 0 else 0
        return True

    def _default_archive(self, name: str) -> str:
        version = self.models.get(name, {}).get(self.defaults.get(name, ""))
        return version.archive if version else ""

    def _register(self, url: str | None, batch_size: int) -> web.Response:
        if url is None:
            return refused(400, "BadRequestException", "Parameter url is required.")
        if url not in self.archives:
            return refused(404, "ModelNotFoundException", f"Model not found at: {url}")
        name, version, model = self.archives[url]
        self.add(name, version, replace(model, batch_size=max(batch_size, model.batch_size)))
        return web.json_response({"status": "Processing worker updates..."}, status=202)

    def _of_model(self, method: str, name: str, rest: list[str], request: web.Request) -> web.Response:
        versions = self.models.get(name, {})
        version = rest[0] if rest else self.defaults.get(name, "")
        if version == "all":
            return web.json_response([model.to_json(name, each) for each, model in versions.items()])
        if version not in versions:
            return refused(404, "ModelVersionNotFoundException", f"Model version: {version} does not exist")
        model = versions[version]
        if method == "DELETE":
            del versions[version]
            if not versions:
                del self.models[name]
            if self._ends_halfway(model, 0):
                return refused(500, "InternalServerException", "Deque full")
        elif method == "PUT" and rest[1:] == ["set-default"]:
            self.defaults[name] = version
        elif method == "PUT":
            minimum, maximum = int(request.query["min_worker"]), int(request.query["max_worker"])
            halfway = self._ends_halfway(model, maximum)
            model.resize(minimum, maximum, halfway=halfway)
            if halfway:
                return refused(500, "InternalServerException", "Deque full")
        elif request.query.get("customized"):
            return web.json_response([{**model.to_json(name, version), "customizedMetadata": self.description}])
        else:
            return web.json_response([model.to_json(name, version)])
        return web.json_response({"status": "done"})


def refused(status: int, kind: str, message: str) -> web.Response:
    """TorchServe's answer to a request that it refuses."""
    return web.json_response({"code": status, "type": kind, "message": message}, status=status)
