"""A client for TorchServe's management API, and for what its other APIs offer to operators."""

from __future__ import annotations

import asyncio
import re
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
"""Seconds between two requests for the state of workers."""

_HALFWAY = re.compile(r"status (408|500: Deque full)")
"""Refusals after which TorchServe has done a part of what it was asked for, and does the rest if it is asked again.

A worker that is removed puts its requests back into the queue. If that is full, TorchServe stops there.
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
        return list(await self._default_archives())

    async def models(self) -> list[ModelVersion]:
        """Describe every version of every model, each once: it costs the server a look at each of its workers."""
        versions: list[ModelVersion] = []
        for name, archive in (await self._default_archives()).items():
            with suppress(UnknownModel):  # it has been unregistered meanwhile
                versions += await self._versions(name, archive)
        return versions

    async def versions(self, model: str) -> list[ModelVersion]:
        """Describe every version of a model, in the order of their numbers."""
        return await self._versions(model, (await self._default_archives()).get(model))

    async def _default_archives(self) -> dict[str, str]:
        """Return the names of all models, with the archives of their default versions."""
        archives: list[tuple[str, str]] = []
        page: str | None = "0"
        while page:
            with _expect_torchserve():
                answer = await self._json("GET", "/models", {"limit": 100, "next_page_token": page})
                archives += [(str(model["modelName"]), str(model["modelUrl"])) for model in answer["models"]]
                page = answer.get("nextPageToken")
                if (page and not answer["models"]) or len(archives) > MAX_MODELS:
                    raise ValueError(f"a list of models without an end, or of more than {MAX_MODELS:,}")
        return dict(archives)

    async def _versions(self, model: str, archive: str | None) -> list[ModelVersion]:
        """Describe every version of a model, of which the default one has this archive."""
        with _expect_torchserve():
            answers = await self._json("GET", _path(model, "all"))
            defaults = [str(answer["modelVersion"]) for answer in answers if answer["modelUrl"] == archive]
            if len(defaults) != 1:  # its archive was replaced by another version of the same name
                defaults = [(await self._describe(model, None)).version]
            versions = [ModelVersion.from_json(answer, defaults[0]) for answer in answers]
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
        gpus: int = 0,
        wait: bool = True,
        seconds: float = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Change the number of workers of a version, and spread them evenly over its GPUs.

        TorchServe sends the requests of workers that it removes to other workers, or refuses them once. If no worker is
        left, requests wait in the queue.

        Args:
            model: Name of the model.
            minimum: Smallest number of workers.
            maximum: Largest number of workers; by default the smallest.
            version: Version of the model; by default its default version.
            gpus: Number of GPUs of the server, for a version whose archive names none; 0 if it is not known.
            wait: Whether to wait until every worker is READY.
            seconds: Timeout, in seconds.
            why: Called repeatedly during the wait; if it returns a reason, StartupError is raised with it.

        Returns:
            The version with its workers.

        Raises:
            UsageError: The numbers are negative or in the wrong order, or only the smallest one is 0.
            StartupError: As for `wait_ready`.
        """
        maximum = minimum if maximum is None else maximum
        if not 0 <= minimum <= maximum or (minimum == 0 and maximum):  # which TorchServe would forget, and not end
            raise UsageError(
                f"workers: expected 0 <= minimum <= maximum, both 0 or neither, got {minimum} and {maximum}"
            )
        deadline = time.monotonic() + seconds
        scaled = await self._describe(model, version)
        await self._resize(scaled, minimum, maximum, deadline)
        if minimum:
            await self._spread(scaled, minimum, maximum, gpus, deadline, why)
        if wait and minimum:
            return await self.wait_ready(model, scaled.version, seconds=deadline - time.monotonic(), why=why)
        return await self.describe(model, scaled.version)

    async def _resize(self, scaled: ModelVersion, minimum: int, maximum: int, deadline: float) -> None:
        """Have a version have workers within these numbers, asking again until it does or the time is up.

        The last worker is removed alone: TorchServe forgets all workers before it removes them, so if it cannot put the
        requests of one back into a full queue, the others would run for ever, and nothing would list them.
        """
        if maximum == 0 and len(scaled.workers) > 1:
            await self._resize(scaled, 1, 1, deadline)
        numbers: dict[str, object] = {"min_worker": minimum, "max_worker": maximum}
        while True:
            try:
                # Asynchronous, for the reason given in `_register`.
                await self._json("PUT", _path(scaled.name, scaled.version), numbers)
            except ServerError as error:
                if not _HALFWAY.search(str(error)) or time.monotonic() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _spread(
        self, scaled: ModelVersion, minimum: int, maximum: int, gpus: int, deadline: float, why: Why
    ) -> None:
        """Move workers until they are spread evenly over GPUs, or the time is up.

        TorchServe gives the next GPU in turn to each worker that it adds, and removes those that it has added last: 4,
        then 3, then 4 workers are on GPUs 0, 1, 2 and 0. So workers that are not in the right place are removed before
        they load anything, and added one by one, until it is the turn of the right GPU. All others go on meanwhile.
        """
        target = min(max(minimum, len(scaled.workers)), maximum)
        moves = left = 2 * target * scaled.places(gpus)  # each worker is added to each GPU and removed, at most
        try:
            while left and time.monotonic() < deadline:
                state = await self._describe(scaled.name, scaled.version)
                even, count = state.evenly_spread(gpus), len(state.workers)
                if even == count == target:
                    break
                if reason := why(scaled.name, scaled.version):
                    raise StartupError(f"{scaled.name} {scaled.version} cannot be loaded: {reason}")
                if not all(worker.running for worker in state.workers[even:]):  # TorchServe would not end its process
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                left, wanted = left - 1, even if even < count else count + 1
                await self._resize(scaled, wanted, wanted, deadline)
        finally:
            if left < moves:
                await self._resize(scaled, minimum, maximum, deadline)

    async def set_default(self, model: str, version: str) -> None:
        """Make a version the one that answers requests which name no version."""
        await self._json("PUT", f"{_path(model, version)}/set-default")

    async def unregister(
        self, model: str, version: str | None = None, *, drain_seconds: float = DRAIN_SECONDS
    ) -> ModelVersion:
        """Unregister a version after it has answered the requests that it already has.

        A version with several workers stays registered for `response_seconds` more, because TorchServe does not report
        which workers are idle; to end all of them but one would end the requests that these compute. Requests that
        arrive after the start of this call may be refused or never answered. If the call fails or is cancelled, the
        version gets its workers back, if the server can be reached.

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
        seconds = ANSWER_SECONDS + drain_seconds
        removable = len(versions) == 1 or not leaving.is_default
        if removable:
            await self._check_model_api()
            if drain_seconds:
                await self._drain(leaving, drain_seconds)
        try:
            if removable:  # a queue that is full would stop DELETE halfway, and /ping would never be answered again
                await self._resize(leaving, 0, 0, time.monotonic() + seconds)
            await self._json("DELETE", _path(model, leaving.version), seconds=seconds)
        except BaseException:
            if removable:
                before, deadline = (leaving.min_workers, leaving.max_workers), time.monotonic() + seconds
                with suppress(ReelscribeError):  # the first error matters more
                    await asyncio.shield(self._resize(leaving, *before, deadline))
            raise
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
