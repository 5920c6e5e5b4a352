"""Finds the only model of a kind on a server, so that nobody needs to name it.

TorchServe lists its models at the management address alone. Where that is not known, the usual names are tried at the
inference address: to guess the management port would send its key to whatever listens there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from reelscribe.client.endpoint import WORKER_DIED, Server
from reelscribe.client.http_session import open_session
from reelscribe.client.openai_endpoint import list_models
from reelscribe.client.torchserve_endpoint import TorchServeEndpoint
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ChatModelDescription,
    ClipModelDescription,
    ModelDescription,
    ShotModelDescription,
    SpeakerModelDescription,
    SpeechDescription,
)
from reelscribe.errors import (
    AccessRefused,
    RequestRefused,
    ServerError,
    ServerUnreachable,
    UsageError,
    brief,
    printable,
)
from reelscribe.server.server_discovery import FoundServer, ManagedServer
from reelscribe.server.start_options import DIRECTORY

USUAL_NAMES: dict[type[ModelDescription], tuple[str, ...]] = {
    CaptionerDescription: ("captioner", "blip2", "blip", "git"),
    SpeechDescription: ("speech", "whisper"),
    ClipModelDescription: ("clips", "qwen3-vl"),
    ShotModelDescription: ("shots", "transnetv2"),
    SpeakerModelDescription: ("speakers", "ge2e"),
}
"""Names that are tried where the management API, which alone lists models, cannot be reached."""

_Kind = type[ModelDescription] | RequestRefused | None

_NAME_AND_OPTION: dict[type[ModelDescription], tuple[str, str]] = {
    CaptionerDescription: ("captioner", "--model NAME"),
    SpeechDescription: ("speech model", "--model NAME, or in `annotate` with --speech-model NAME"),
    ClipModelDescription: ("clip model", "--model NAME, or in `annotate` with --clip-model NAME"),
    ShotModelDescription: ("shot model", "--shot-model NAME"),
    SpeakerModelDescription: ("speaker model", "--speaker-model NAME"),
    ChatModelDescription: ("chat model", "--summary-model NAME"),
}


async def find_model(
    found: FoundServer, kind: type[ModelDescription], name: str | None = None, *, besides: str | None = None
) -> str:
    """Find the name of the only model of a kind, or check the name of one.

    Args:
        found: The server. A server with OpenAI's API lists its models, but not their kinds. Those of a TorchServe are
            listed if its management address is known; otherwise USUAL_NAMES are tried.
        kind: CaptionerDescription, ClipModelDescription, SpeechDescription, ShotModelDescription,
            SpeakerModelDescription or, for a server with OpenAI's API alone, ChatModelDescription.
        name: The name that was given; None if none was.
        besides: Name of another model of the kind, which is not meant; None if there is none.

    Raises:
        UsageError: The server has no such model, or several.
        ServerError: The server does not answer, or refuses the key.
    """
    if found.server.speaks_openai:
        return await _find_listed(found.server, kind, name)
    if name is not None:
        await _check_name(found, name)
        return name
    name, why_none = await _find(found, kind, besides)
    if name is None:
        raise UsageError(why_none)
    return name


async def kind_of_video_model(found: FoundServer, name: str | None) -> type[ModelDescription]:
    """Find the kind of the model for video: one that captions frames, or one that describes clips.

    Args:
        found: The server. With OpenAI's API, frames are captioned, as any model there that takes pictures can do.
        name: The name of the model; without one, a captioner is preferred to a clip model.

    Returns:
        The kind of the model.

    Raises:
        UsageError: The server has no such model.
        ServerError: The server does not answer.
    """
    if found.server.speaks_openai:
        return CaptionerDescription
    if name:
        await _check_name(found, name)
        ((_, kind),) = await _kinds(found.server, [name])
        # If it does not say what it is, the client of captioners says why, and what to do.
        return ClipModelDescription if kind is ClipModelDescription else CaptionerDescription
    captioner, why_none = await _find(found, CaptionerDescription)
    if captioner is None and (await _find(found, ClipModelDescription))[0] is None:
        raise UsageError(why_none)
    return CaptionerDescription if captioner else ClipModelDescription


async def _find_listed(server: Server, kind: type[ModelDescription], name: str | None) -> str:
    """Return the name of the only model of a server with OpenAI's API, or `name` if it has such a model."""
    async with open_session() as session:
        listed = [str(each["id"]) for each in await list_models(server, session)]
    if name is None and len(listed) == 1:
        return listed[0]
    if name is None or (listed and name not in listed):
        what, option = _NAME_AND_OPTION[kind]
        got = "" if name is None else f"{brief(name)}; "
        raise UsageError(
            f"{server.url}: expected the name of a {what} there, got {got}it has"
            f" {printable(_list(listed)[:500])}; name one with {option}"
        )
    return name


async def _check_name(found: FoundServer, name: str) -> None:
    """Raise UsageError if no model of a server has a name, as far as that is known before a request names it."""
    listed = await _listed(found.managed) if found.managed else None
    if listed is not None and name not in listed:
        raise UsageError(
            f"{found.server.url}: expected the name of a model there, got {brief(name)}; it has {_list(listed)}"
        )


async def _find(found: FoundServer, kind: type[ModelDescription], besides: str | None = None) -> tuple[str | None, str]:
    """Return the name of the only model of a kind besides one; None if there is none, and then why."""
    server, what, option = found.server, *_NAME_AND_OPTION[kind]
    listed = await _listed(found.managed) if found.managed else None
    names = USUAL_NAMES[kind] if listed is None else listed
    try:
        kinds = await _kinds(server, names)
    except ServerUnreachable as error:
        if not found.assumed:
            raise
        raise ServerUnreachable(
            f"{error} No server runs in {DIRECTORY} of this folder; name one with --server or --directory"
        ) from None
    fitting = [name for name, is_kind in kinds if is_kind is kind and name != besides]
    if len(fitting) > 1:
        raise UsageError(f"{server.url}: expected one {what}, got {', '.join(fitting)}; choose one with {option}")
    if fitting:
        return fitting[0], ""
    for name, refusal in kinds:  # a model that is loading, for example, does not tell what it is
        if isinstance(refusal, RequestRefused):
            raise ServerError(
                f"{server.url}: expected a {what} there, but {name} does not say what it is ({refusal}); try again when"
                f" it is ready, or name the model with {option}"
            )
    where = "under a usual name " if listed is None else ""
    got = f"none is called {', '.join(names[:-1])} or {names[-1]}" if listed is None else f"it has {_list(names)}"
    advice = f"name it with {option}" if listed is None else "build one (`reelscribe archive`), and restart the server"
    return None, f"{server.url}: expected a {what} {where}there, but {got}; {advice}"


async def _listed(managed: ManagedServer) -> Sequence[str] | None:
    """Return the names of all models; None if they cannot be listed."""
    async with managed.client() as management:
        with suppress(ServerError, UsageError):
            return sorted(await management.names())
    return None


async def _kinds(server: Server, names: Sequence[str]) -> list[tuple[str, _Kind]]:
    async with open_session() as session:
        kinds = await asyncio.gather(*(_kind(server, name, session) for name in names))
    return list(zip(names, kinds, strict=True))


async def _kind(server: Server, name: str, session: aiohttp.ClientSession) -> _Kind:
    """Return the kind of a model, or the refusal to describe it; None if it is missing or none of reelscribe's."""
    endpoint: TorchServeEndpoint[ModelDescription] = TorchServeEndpoint(server, name, session, _read_any)
    try:
        return type(await _describe(endpoint))
    except ServerUnreachable:
        raise
    except AccessRefused as error:
        if error.status == 404:
            return None
        # Nobody has named the model of this address.
        message = str(error).replace(endpoint.url, server.url)
        raise AccessRefused(message, temporary=error.temporary, status=error.status) from None
    except RequestRefused as refusal:
        return refusal
    except ServerError:
        return None


async def _describe(endpoint: TorchServeEndpoint[ModelDescription]) -> ModelDescription:
    try:
        return await endpoint.describe()
    except RequestRefused as refusal:
        if refusal.status not in WORKER_DIED:
            raise
        return await endpoint.describe()  # by the first request, TorchServe notices that an idle worker died


def _read_any(value: Any) -> ModelDescription:
    for kind in (CaptionerDescription, ClipModelDescription, ShotModelDescription, SpeakerModelDescription):
        with suppress(ServerError):
            return kind.from_json(value)
    return SpeechDescription.from_json(value)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "no models"
