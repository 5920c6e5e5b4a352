"""A client for TorchServe's management API, and for what its other APIs offer to operators."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from reelscribe.client.credentials import Credentials
from reelscribe.client.http_session import check_trusted_certificates
from reelscribe.errors import (
    MALFORMED,
    ReelscribeError,
    ServerError,
    ServerUnreachable,
    StartupError,
    UnknownModel,
    UsageError,
)
from reelscribe.management.model_version import LOAD_SECONDS, ModelVersion, version_sort_key
from reelscribe.management.torchserve_api import ANSWER_SECONDS, Api, ServerAddresses

REGISTER_SECONDS = 900.0
"""Timeout, in seconds, of a request that makes a server fetch and unpack an archive, weights included."""

DRAIN_SECONDS = 300.0
"""Default timeout, in seconds, for the requests in a version's queue to be answered before it is unregistered."""

MAX_MODELS = 10_000
"""Largest number of models of a server."""

POLL_SECONDS = 0.25
"""Seconds between two requests for the state of workers. For workers on GPUs, TorchServe queries the GPUs each time,
and its other clients wait meanwhile.
"""

Why = Callable[[str, str], str | None]
"""Takes the names of a model and a version, and returns why it cannot be loaded; None while no reason is known."""


class ManagementClient:
    """A client of one server, for its operators. Use it as an async context manager.

    Every method raises ServerUnreachable if the server does not answer, AccessRefused if the token is missing, wrong or
    expired, UnknownModel for a model or version that is not registered, and ServerError for unexpected answers.
    """

    def __init__(
        self,
        addresses: ServerAddresses | str,
        credentials: Credentials | str | None = None,
        *,
        inference_credentials: Credentials | str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare the sessions; nothing is sent yet.

        Args:
            addresses: The server's addresses, or only that of its management API.
            credentials: The token for the management API; None for a server that requires none.
            inference_credentials: The token for the inference API, which `ping` needs.
            ssl_context: The certificates that are trusted; by default those of the system.

        Raises:
            UsageError: An address is malformed, or the environment names trusted certificates that do not exist.
        """
        if isinstance(addresses, str):
            addresses = ServerAddresses(addresses)
        if ssl_context is None:
            for url in (addresses.management, addresses.inference, addresses.metrics):
                check_trusted_certificates(url or "")
        self._management = Api(addresses.management, credentials, ssl_context=ssl_context)
        self._inference, self._metrics = (
            Api(url, key, ssl_context=ssl_context) if url else None
            for url, key in ((addresses.inference, inference_credentials), (addresses.metrics, None))
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for api in (self._management, self._inference, self._metrics):
            if api:
                await api.close()

    async def names(self) -> list[str]:
        """Return the names of all models."""
        names: list[str] = []
        page: str | None = "0"
        while page:
            with _expect_torchserve():
                answer = await self._json("GET", "/models", {"limit": 100, "next_page_token": page})
                names += [str(model["modelName"]) for model in answer["models"]]
                page = answer.get("nextPageToken")
                if (page and not answer["models"]) or len(names) > MAX_MODELS:
                    raise ValueError(f"a list of models without an end, or of more than {MAX_MODELS:,}")
        return names

    async def models(self) -> list[ModelVersion]:
        """Describe every version of every model."""
        versions: list[ModelVersion] = []
        for name in await self.names():
            with suppress(UnknownModel):  # it has been unregistered meanwhile
                versions += await self.versions(name)
        return versions

    async def versions(self, model: str) -> list[ModelVersion]:
        """Describe every version of a model, in the order of their numbers."""
        default = await self._describe(model, None)
        with _expect_torchserve():
            answers = await self._json("GET", _path(model, "all"))
            versions = [ModelVersion.from_json(answer, default.version) for answer in answers]
        return sorted(versions, key=lambda version: version_sort_key(version.version))

    async def describe(self, model: str, version: str | None = None) -> ModelVersion:
        """Describe one version of a model; by default its default version."""
        default = await self._describe(model, None)
        return default if version is None else await self._describe(model, version, default.version)

    async def handler_description(
        self, model: str, version: str | None = None, *, seconds: float = DRAIN_SECONDS
    ) -> dict[str, Any]:
        """Ask the handler of a version for its description. The request waits in the queue behind others.

        Args:
            model: Name of the model.
            version: Version of the model; by default its default version.
            seconds: Timeout of the request, the time in the queue included.

        Returns:
            The description as JSON; empty if the handler has none.
        """
        with _expect_torchserve():
            (answer,) = await self._json("GET", _path(model, version), {"customized": "true"}, seconds)
            return dict(answer.get("customizedMetadata") or {})

    async def register(
        self,
        archive: str,
        *,
        workers: int | None = None,
        sizes: Mapping[str, int] | None = None,
        seconds: float | None = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Register an archive and wait until it is ready.

        If the version does not become ready, or the wait is cancelled, the version is unregistered again if the server
        can be reached.

        Args:
            archive: A file name in the server's model store, or an address that its settings allow.
            workers: Number of workers; by default what `sizes` or the archive says, or as the model's default version.
            sizes: `minWorkers`, `batchSize` and `maxBatchDelay` of the version; by default what the archive says.
            seconds: Timeout of the wait, in seconds; None does not wait.
            why: Called repeatedly during the wait; if it returns a reason, StartupError is raised with it.

        Returns:
            The version that was registered.

        Raises:
            StartupError: It is not ready in time, has no workers, or cannot be loaded for the reason in the message.
            ModelApiOff: The server does not allow models to be registered.
            ModelConflict: That version is registered already.
            ServerOutOfMemory: The server has no memory left for it.
            UnknownModel: There is no such archive.
        """
        before = await self.models()
        made = await self._register(archive, workers, before, sizes or {})
        default = next((each for each in before if each.name == made.name and each.is_default), None)
        try:
            if default and default.batch_size > made.batch_size == 1:
                # TorchServe's setting `models=` names versions, so a new one would not be joined as its model is. What
                # is registered cannot be changed.
                await self.unregister(made.name, made.version, drain_seconds=0)
                joined = {"batchSize": default.batch_size, "maxBatchDelay": default.batch_delay_ms}
                made = await self._register(archive, workers, before, {**(sizes or {}), **joined})
            if default and not made.min_workers:
                workers = workers or default.min_workers
            if workers and (made.min_workers, made.max_workers) != (workers, workers):
                # TorchServe has given the archive's own numbers precedence over initial_workers.
                made = await self.scale(made.name, workers, version=made.version, wait=False)
            if seconds is None:
                return made
            return await self.wait_ready(made.name, made.version, seconds=seconds, why=why)
        except BaseException:
            with suppress(ReelscribeError):  # the first error matters more
                await asyncio.shield(self.unregister(made.name, made.version, drain_seconds=0))
            raise

    async def _register(
        self, archive: str, workers: int | None, before: Sequence[ModelVersion], sizes: Mapping[str, int]
    ) -> ModelVersion:
        """Register an archive with workers and joined requests as in `sizes`; return what is new since `before`."""
        # A synchronous request would block a thread of TorchServe that receives requests until the workers are ready.
        wanted = workers or sizes.get("minWorkers", 0)
        query: dict[str, Any] = {"url": archive, "initial_workers": wanted, "synchronous": "false"}
        if "batchSize" in sizes:
            query |= {"batch_size": sizes["batchSize"], "max_batch_delay": sizes["maxBatchDelay"]}
        await self._json("POST", "/models", query, REGISTER_SECONDS)
        # TorchServe's answer does not name what was registered.
        known = {(each.name, each.version) for each in before}
        new = [each for each in await self.models() if (each.name, each.version) not in known]
        made = next((each for each in new if each.archive == archive), None)
        if made is None:
            raise ServerError(f"{archive}: it was registered, but is not there; see `reelscribe models list`")
        return made

    async def wait_ready(
        self,
        model: str,
        version: str | None = None,
        *,
        seconds: float = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Wait until every worker of a version is READY.

        Args:
            model: Name of the model.
            version: Version of the model; by default its default version.
            seconds: Timeout, in seconds.
            why: Called repeatedly during the wait; if it returns a reason, StartupError is raised with it.

        Returns:
            The version with its workers.

        Raises:
            StartupError: It is not ready in time, has no workers, or cannot be loaded for the reason in the message.
        """
        deadline = time.monotonic() + seconds
        version = version or (await self.describe(model)).version
        while True:
            state = await self._describe(model, version)
            if state.ready:
                return await self.describe(model, version)
            if reason := why(model, version):
                raise StartupError(f"{model} {version} cannot be loaded: {reason}")
            if state.min_workers == 0:
                raise StartupError(
                    f"{model} {version} has no workers, so none becomes ready; give it some with `reelscribe models"
                    f" scale {model} 1`. An archive without a valid minWorkers in its YAML has none from the start"
                )
            if time.monotonic() > deadline:
                ready = sum(worker.ready for worker in state.workers)
                raise StartupError(
                    f"{model} {version}: {ready} of {state.min_workers} workers ready after {seconds:.0f} s; the"
                    " server's log says more"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def scale(
        self,
        model: str,
        minimum: int,
        maximum: int | None = None,
        version: str | None = None,
        *,
        wait: bool = True,
        seconds: float = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Change the number of workers of a version.

        TorchServe sends the requests of workers that it removes to other workers, or refuses them once. If no worker is
        left, requests wait in the queue.

        Args:
            model: Name of the model.
            minimum: Smallest number of workers.
            maximum: Largest number of workers; by default the smallest.
            version: Version of the model; by default its default version.
            wait: Whether to wait until every worker is READY.
            seconds: Timeout of the wait, in seconds.
            why: Called repeatedly during the wait; if it returns a reason, StartupError is raised with it.

        Returns:
            The version with its workers.

        Raises:
            UsageError: The numbers are negative or in the wrong order.
            StartupError: As for `wait_ready`.
        """
        maximum = minimum if maximum is None else maximum
        if not 0 <= minimum <= maximum:
            raise UsageError(f"workers: expected 0 <= minimum <= maximum, got {minimum} and {maximum}")
        # Asynchronous, for the reason given in `register`.
        await self._json("PUT", _path(model, version), {"min_worker": minimum, "max_worker": maximum})
        if wait and minimum:
            return await self.wait_ready(model, version, seconds=seconds, why=why)
        return await self.describe(model, version)

    async def set_default(self, model: str, version: str) -> None:
        """Make a version the one that answers requests which name no version."""
        await self._json("PUT", f"{_path(model, version)}/set-default")

    async def unregister(
        self, model: str, version: str | None = None, *, drain_seconds: float = DRAIN_SECONDS
    ) -> ModelVersion:
        """Unregister a version after it has answered the requests that it already has.

        A version with several workers stays registered for `response_seconds` more, because TorchServe does not report
        which workers are idle; to end all of them but one would end the requests that these compute. Requests that
        arrive after the start of this call may be refused or never answered. If the call fails, the version is
        unchanged.

        Args:
            model: Name of the model.
            version: Version of the model; by default its default version.
            drain_seconds: Timeout, in seconds, for requests to leave the queue; 0 does not wait for them.

        Returns:
            The version as it was before this call.

        Raises:
            ServerError: The queue was not empty in time.
            ModelApiOff: The server does not allow models to be unregistered.
            ModelConflict: It is the default version, and the model has others.
        """
        versions = await self.versions(model)
        leaving = await self.describe(model, version)
        if drain_seconds and (len(versions) == 1 or not leaving.is_default):
            await self._check_model_api()
            await self._drain(leaving, drain_seconds)
        await self._json("DELETE", _path(model, leaving.version), seconds=ANSWER_SECONDS + drain_seconds)
        return leaving

    async def ping(self) -> bool:
        """Return whether the inference API calls itself healthy, which it does long before a model is loaded.

        Raises:
            UsageError: The client was given no address of the inference API.
        """
        api = _required(self._inference, "inference")
        answer = await api.answer("GET", "/ping")
        if answer.status == 500 and "Unhealthy" in answer.text:
            return False
        api.check("/ping", answer)
        return True

    async def metrics(self) -> str:
        """Return the server's metrics, in the text format of Prometheus.

        Raises:
            UsageError: The client was given no address of the metrics API.
        """
        return await _required(self._metrics, "metrics").text("GET", "/metrics")

    async def _drain(self, leaving: ModelVersion, seconds: float) -> None:
        """Wait until a version has answered the requests that it already has.

        TorchServe would leave what waits in the queue without any answer. Workers take requests in the order of the
        queue, so when one has described itself, all earlier requests have been taken. A single worker has answered them
        by then. Others may still be computing, but for no longer than the model's timeout.
        """
        if not leaving.queue_pending and not any(worker.ready for worker in leaving.workers):
            return
        try:
            await self.handler_description(leaving.name, leaving.version, seconds=seconds)
        except ServerUnreachable as error:
            raise ServerError(
                f"{leaving.name} {leaving.version} still has requests after {seconds:.0f} s; try again, or unregister"
                f" it --now, which drops them ({error})"
            ) from None
        if len(leaving.workers) > 1:
            await asyncio.sleep(leaving.response_seconds)

    async def _check_model_api(self) -> None:
        """Raise ModelApiOff if the server refuses changes of its models."""
        with suppress(UsageError):  # if the model API is on, the server complains that the request names no archive
            await self._json("POST", "/models")

    async def _describe(self, model: str, version: str | None, default: str | None = None) -> ModelVersion:
        with _expect_torchserve():
            (answer,) = await self._json("GET", _path(model, version))
            return ModelVersion.from_json(answer, default or answer["modelVersion"])

    async def _json(
        self, method: str, path: str, query: dict[str, object] | None = None, seconds: float = ANSWER_SECONDS
    ) -> Any:
        return await self._management.json(method, f"{path}?{urlencode(query)}" if query else path, seconds=seconds)


def _path(model: str, version: str | None) -> str:
    names = [model] if version is None else [model, version]
    for name in names:
        if not name or "/" in name:
            raise UsageError(f"model and version: expected names without a slash, got {name!r}")
    return "/".join(["/models", *(quote(name, safe="") for name in names)])


@contextmanager
def _expect_torchserve() -> Iterator[None]:
    """Raise ServerError if an answer has another form than TorchServe's; any program may listen at the address."""
    try:
        yield
    except MALFORMED as error:
        raise ServerError(f"unexpected answer: {type(error).__name__}: {error}; is it a TorchServe?") from error


def _required(api: Api | None, name: str) -> Api:
    if api is None:
        raise UsageError(f"no address of the {name} API was given")
    return api
