"""The management API of TorchServe: which models there are, how their workers get on, and other ones in their place."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from reelscribe.client.credentials import Credentials
from reelscribe.client.trust import check_trusted_certificates
from reelscribe.errors import ReelscribeError, ServerError, ServerUnreachable, StartupError, UnknownModel, UsageError
from reelscribe.management.api import ANSWER_SECONDS, Api
from reelscribe.management.model_version import LOAD_SECONDS, ModelVersion, natural

REGISTER_SECONDS = 900.0
"""That a server may take to fetch and unpack an archive, weights included."""

DRAIN_SECONDS = 300.0
"""That requests may wait in a version's queue before it is unregistered."""

POLL_SECONDS = 0.25
"""Seldom enough: to describe workers on GPUs, TorchServe asks the GPUs, and lets its clients wait."""

Why = Callable[[str, str], str | None]
"""Of a model and a version: why it cannot be loaded, or None as long as nobody knows of anything."""


@dataclass(frozen=True)
class ServerAddresses:
    """Where the APIs of one server are, like http://127.0.0.1:8081; the last two where they are asked for.

    Raises UsageError for what is no address.
    """

    management: str
    inference: str | None = None
    metrics: str | None = None

    def __post_init__(self) -> None:
        for url in (self.management, self.inference, self.metrics):
            if url is not None and not url.startswith(("http://", "https://")):
                raise UsageError(f"server: expected an address like http://127.0.0.1:8081, got {url!r}")


class ManagementClient:
    """One server, for those who operate it. Use it as an async context manager.

    Every method raises ServerError: ServerUnreachable, AccessRefused for a missing, wrong or expired key,
    UnknownModel, and ServerError itself for what nobody expects.
    """

    def __init__(
        self,
        addresses: ServerAddresses | str,
        credentials: Credentials | str | None = None,
        *,
        inference_credentials: Credentials | str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`addresses` may be the management address alone, and `credentials` are those of its API.

        `inference_credentials` are for `ping`; `ssl_context` says which certificates are trusted, by default those of
        the system; raises UsageError if the environment names others that are not there.
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

    async def __aenter__(self) -> ManagementClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for api in (self._management, self._inference, self._metrics):
            if api:
                await api.close()

    async def models(self) -> list[ModelVersion]:
        """Every version of every model."""
        names: list[str] = []
        versions: list[ModelVersion] = []
        page: str | None = "0"
        while page:
            with _of_torchserve():
                answer = await self._json("GET", "/models", {"limit": 100, "next_page_token": page})
                names += [model["modelName"] for model in answer["models"]]
                page = answer.get("nextPageToken")
        for name in names:
            with suppress(UnknownModel):  # it was unregistered since
                versions += await self.versions(name)
        return versions

    async def versions(self, model: str) -> list[ModelVersion]:
        """Every version of a model."""
        default = await self._described(model, None)
        with _of_torchserve():
            answers = await self._json("GET", _path(model, "all"))
            versions = [ModelVersion.from_json(answer, default.version) for answer in answers]
        return sorted(versions, key=lambda version: natural(version.version))

    async def describe(self, model: str, version: str | None = None) -> ModelVersion:
        """One version, by default the one that is the default."""
        default = await self._described(model, None)
        return default if version is None else await self._described(model, version, default.version)

    async def handler_description(
        self, model: str, version: str | None = None, *, seconds: float = DRAIN_SECONDS
    ) -> dict[str, Any]:
        """What the handler says of itself; empty if it says nothing. It waits in the queue behind other requests."""
        with _of_torchserve():
            (answer,) = await self._json("GET", _path(model, version), {"customized": "true"}, seconds)
            return dict(answer.get("customizedMetadata") or {})

    async def register(
        self,
        archive: str,
        *,
        workers: int | None = None,
        seconds: float | None = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Register an archive of the model store, or at an allowed address, and wait until it is ready.

        `workers` replaces the archive's own number. Raises StartupError if it is not ready after `seconds`, or as soon
        as `why` knows that it cannot be; None does not wait. Raises ModelApiOff, ModelConflict, ServerOutOfMemory, and
        UnknownModel if there is no such archive. Whatever ends the waiting, also a cancellation, the version is
        unregistered again if the server lets itself be reached.
        """
        before = {(each.name, each.version) for each in await self.models()}
        # Asynchronous, for otherwise one of the threads that receive requests would wait for the workers.
        query = {"url": archive, "initial_workers": workers or 0, "synchronous": "false"}
        await self._json("POST", "/models", query, REGISTER_SECONDS)
        # TorchServe does not say what it was that it registered.
        new = [each for each in await self.models() if (each.name, each.version) not in before]
        made = next((each for each in new if each.archive == archive), None)
        if made is None:
            raise ServerError(f"{archive}: it was registered, but is not there; see `reelscribe models list`")
        try:
            if workers and (made.min_workers, made.max_workers) != (workers, workers):
                # What the archive says has gone before what was asked.
                made = await self.scale(made.name, workers, version=made.version, wait=False)
            if seconds is None:
                return made
            return await self.wait_ready(made.name, made.version, seconds=seconds, why=why)
        except BaseException:
            with suppress(ReelscribeError):  # the first error is the one to be told
                await asyncio.shield(self.unregister(made.name, made.version, drain_seconds=0))
            raise

    async def wait_ready(
        self,
        model: str,
        version: str | None = None,
        *,
        seconds: float = LOAD_SECONDS,
        why: Why = lambda *_: None,
    ) -> ModelVersion:
        """Wait until every worker is READY.

        Raises StartupError after `seconds`, if there is none to wait for, or as soon as `why` knows that it cannot be.
        """
        deadline = time.monotonic() + seconds
        version = version or (await self.describe(model)).version
        while True:
            state = await self._described(model, version)
            if state.ready:
                return await self.describe(model, version)
            if reason := why(model, version):
                raise StartupError(f"{model} {version} cannot be loaded: {reason}")
            if state.min_workers == 0:
                raise StartupError(
                    f"{model} {version} has no workers: give minWorkers in its archive's YAML, which must be valid"
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
        """At least `minimum` workers and at most `maximum`, by default as many; wait until all are READY.

        What the workers that are too many had in work is given to others, or refused once; with none left, requests
        that wait go on waiting. Raises StartupError as `wait_ready`, and UsageError for numbers that cannot be.
        """
        maximum = minimum if maximum is None else maximum
        if not 0 <= minimum <= maximum:
            raise UsageError(f"workers: expected 0 <= minimum <= maximum, got {minimum} and {maximum}")
        # Not "synchronous", for the reason that `register` gives.
        await self._json("PUT", _path(model, version), {"min_worker": minimum, "max_worker": maximum})
        if wait and minimum:
            return await self.wait_ready(model, version, seconds=seconds, why=why)
        return await self.describe(model, version)

    async def set_default(self, model: str, version: str) -> None:
        """Have this version answer the requests that name none."""
        await self._json("PUT", f"{_path(model, version)}/set-default")

    async def unregister(
        self, model: str, version: str | None = None, *, drain_seconds: float = DRAIN_SECONDS
    ) -> ModelVersion:
        """Take a version away, by default the default one, and return what it was.

        First it answers all that it was asked until now. What waits in its queue has `drain_seconds` to be taken by a
        worker. With several workers it stays as long again as a worker may compute (`response_seconds`), for TorchServe
        does not say which of them are idle. What comes after the call began is not waited for; with `drain_seconds` 0
        nothing is, and that is refused or never answered. If this fails, the version is as it was. Raises ServerError
        if the queue takes longer, ModelApiOff, and ModelConflict for the default version while there are others.
        """
        versions = await self.versions(model)
        leaving = await self.describe(model, version)
        if drain_seconds and (len(versions) == 1 or not leaving.is_default):
            await self._check_model_api()
            await self._drain(leaving, drain_seconds)
        await self._json("DELETE", _path(model, leaving.version), seconds=ANSWER_SECONDS + drain_seconds)
        return leaving

    async def ping(self) -> bool:
        """Whether the inference API calls itself healthy, which it does long before a model is loaded."""
        api = _known(self._inference, "inference")
        answer = await api.answer("GET", "/ping")
        if answer.status == 500 and "Unhealthy" in answer.text:
            return False
        api.check("/ping", answer)
        return True

    async def metrics(self) -> str:
        """What the server counts, in the text format of Prometheus."""
        return await _known(self._metrics, "metrics").text("GET", "/metrics")

    async def _drain(self, leaving: ModelVersion, seconds: float) -> None:
        """TorchServe would leave what waits in the queue without any answer, and its clients waiting.

        Workers take what is in the queue in its order: when one describes itself, all before that is taken. An only
        worker has then answered it. Others may still compute, and whoever ended them to see an end would have their
        requests refused; but TorchServe lets none compute for longer than the model's time-out.
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
        """Raises ModelApiOff before anybody waits for what cannot be done."""
        with suppress(UsageError):  # it says that no archive was named
            await self._json("POST", "/models")

    async def _described(self, model: str, version: str | None, default: str | None = None) -> ModelVersion:
        with _of_torchserve():
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
def _of_torchserve() -> Iterator[None]:
    """Around reading an answer, which may be anything if it is no TorchServe that answers."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"unexpected answer: {type(error).__name__}: {error}; is it a TorchServe?") from error


def _known(api: Api | None, name: str) -> Api:
    if api is None:
        raise UsageError(f"no address of the {name} API was given")
    return api
