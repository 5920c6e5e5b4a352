"""One model on a server with OpenAI's API, such as vLLM or SGLang.

Each request asks about one frame, clip or chunk, because the server makes batches of requests by itself.

Such servers do not describe their models as our handlers do, so the description is made here: of what they list, of
what the family of the model takes, and of the settings of the run.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from reelscribe.client.endpoint import Answer, Description, Endpoint, Exchange, Server, message_of
from reelscribe.client.http_session import REDIRECTS, RawAnswer, parse_json
from reelscribe.client.openai_forms import OPTIONAL, SEGMENTS, Form
from reelscribe.client.operations import Request
from reelscribe.contract.clips import CLIP_PROMPT
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ChatModelDescription,
    ClipModelDescription,
    ModelDescription,
    SpeechDescription,
)
from reelscribe.contract.families import FAMILIES, OTHER, ModelFamily, family_of
from reelscribe.contract.fields import read_list, read_text
from reelscribe.errors import (
    MALFORMED,
    AccessRefused,
    RequestRefused,
    ServerError,
    ServerUnreachable,
    UsageError,
    brief,
    printable,
)

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 900.0
"""Timeout of a request, in seconds; other clients may use the server, too."""

LIST_SECONDS = 30.0
"""Timeout of requests that ask no model, in seconds."""

QUEUE_SECONDS = 5.0
"""Time for which the length of a server's queue is believed, in seconds."""

MOST_METRICS = 2**20
"""Longest text of metrics that is read, in bytes; vLLM's has 50 kB."""

MOST_RETRY_SECONDS = 60.0
"""Longest time after which a busy server is asked again, in seconds, whatever it says itself."""

SAMPLE_RATE = 16_000
"""Sample rate of chunks of audio, in Hz: that of Whisper, Voxtral and all others that such servers know."""

CHUNK_SECONDS = 30.0
"""Length of the longest chunk of audio, in seconds: that of Whisper."""

MAX_TOKENS = 256
"""Largest number of tokens of an answer, unless an option says otherwise."""

MAX_CHAT_TOKENS = 512
"""The same for the answer to a text."""

CONTEXT_TOKENS = 8192
"""Largest number of tokens of a question and its answer, where the server does not say what the model takes."""

MOST_SIDE = 8192
"""Longest side of a frame, in pixels."""

_TRUST = "--trust-request-mm-kwargs"
_BUSY = frozenset({429, 503})
"""Statuses of requests that a server refuses because it has too many: its queue is full, or it limits the rate."""

_BUSY_OR_LATE = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({400, 413, 415, 422})


class OpenAIEndpoint(Endpoint[Description]):
    """One model on a server with OpenAI's API."""

    def __init__(
        self,
        server: Server,
        model: str,
        session: aiohttp.ClientSession,
        description_type: type[Description],
        *,
        request_seconds: float | None = None,
    ) -> None:
        """Prepare requests to a model; this opens no connection.

        Args:
            server: Address, key and settings.
            model: Name that the model has on the server.
            session: HTTP session for the requests.
            description_type: The description of the kind of the model.
            request_seconds: Timeout of a request in seconds; None for REQUEST_SECONDS.

        Raises:
            UsageError: Such servers have no models of this kind.
        """
        super().__init__(server, model, session)
        self._make_description = _maker(server, description_type)
        self._request_seconds = REQUEST_SECONDS if request_seconds is None else request_seconds
        self._without: frozenset[str] = frozenset()
        """The parts of OPTIONAL that the server has refused."""
        self._fingerprint: str | None = None
        self._queued: int | None = None
        self._queue_asked_at = -math.inf

    @property
    def url(self) -> str:
        """The address of the API, and the model if it is known."""
        return f"{self._server.url} ({self._model})" if self._model else self._server.url

    async def models(self) -> list[dict[str, Any]]:
        """Return the models that the server lists, each with its "id".

        Raises:
            ServerError: The server does not answer, or with something else than a list of models.
        """
        value = self._json((await self._get(f"{self._server.address}/models")).response)

        def parse() -> list[Any]:
            listed = read_list("data", value["data"])
            for each in listed:
                read_text("id", each["id"])
            return listed

        return self._parsed(value, parse)

    async def describe(self) -> Description:
        """Make the model's description of what the server tells; see `Endpoint.describe`."""
        # A server that lists nothing, such as `transformers serve` with weights in a folder, may have it all the same.
        listed = {each["id"]: each for each in await self.models()} or {self._model: {"id": self._model}}
        if self._model not in listed:
            names = printable(", ".join(sorted(listed))[:500]) or "none"
            raise AccessRefused(
                f"{self._server.url}: expected a model {self._model!r}, got {names}", temporary=True, status=404
            )
        entry = listed[self._model]
        about = {name: entry.get(name) for name in ("id", "root", "parent", "max_model_len")}
        engine = " ".join(filter(None, (_short(entry.get("owned_by")), await self._version()))) or "openai"
        self.description = self._make_description(about, engine)
        return self.description

    async def _version(self) -> str | None:
        """Return the version of the server; None if it does not say."""
        try:
            exchange = await self._get(f"{self._root}/version")
            return _short(parse_json(exchange.response.content)["version"])
        except ServerUnreachable:
            raise
        except (ServerError, *MALFORMED):
            return None

    async def _answer(self, request: Request[Any, Any]) -> Answer:
        form: Form[Any, Any] | None = request.operation.openai
        assert form, "only models that such servers have are described"
        exchange = await self._ask(request, form)
        value = self._json(exchange.response)
        if status := _error_status(value):
            raise self._refusal(replace(exchange.response, status=status))
        answers = self._parsed(value, lambda: [_parsed_or_refused(form, value, request.items)])
        self._check_model(value)
        network, waited = exchange.network_seconds, exchange.waited_seconds
        return Answer(answers, self.url, network, waited, 0.0, form.tokens(value), await self._queue())

    async def _queue(self) -> int | None:
        """Return how many requests wait in the queue of a vLLM, asked now and then; None for other servers."""
        if not self._is_vllm or time.monotonic() - self._queue_asked_at < QUEUE_SECONDS:
            return self._queued
        self._queue_asked_at = time.monotonic()
        try:
            text = (await self._get(f"{self._root}/metrics")).response.text
            self._queued = _read_queue(text) if len(text) <= MOST_METRICS else None
        except (ServerError, ValueError):  # a proxy may hide it, and it is only for people
            self._queued, self._queue_asked_at = None, math.inf
        return self._queued

    async def _ask(self, request: Request[Any, Any], form: Form[Any, Any]) -> Exchange:
        """Send a request, and again without the parts that the server refuses if nothing else depends on them."""
        address, without = f"{self._server.address}/{form.path}", frozenset[str]()
        while True:
            without |= self._without
            content = await request.content(form, self._model, without)
            try:
                return await self._exchange(
                    "POST", address, self._request_seconds, [content.body], {"Content-Type": content.type}
                )
            except RequestRefused as refusal:
                refused = {part for part in OPTIONAL if part in str(refusal)} - without
                if refusal.status == 500 and form.asks_segments and SEGMENTS not in without:
                    without |= {SEGMENTS}  # vLLM 0.32 fails like this at audio of which it has understood nothing
                    continue
                if refusal.status not in _REFUSED or not refused:
                    raise
                self._without |= refused
                _log.warning("%s refuses %s, so it is left out: %s", self.url, " and ".join(refused), refusal)

    @property
    def _root(self) -> str:
        """The address of what the server has besides OpenAI's API."""
        return self._server.address.removesuffix("/v1")

    @property
    def _is_vllm(self) -> bool:
        return self.description is not None and self.description.engine.startswith("vllm")

    async def _get(self, address: str) -> Exchange:
        return await self._exchange("GET", address, LIST_SECONDS)

    def _check_model(self, value: Any) -> None:
        """Raise AccessRefused if another model has answered than before, or one that is served in another way."""
        if not self._is_vllm:
            return  # others balance their own load, and name what is behind it differently each time
        fingerprint = value.get("system_fingerprint")
        if self._fingerprint is not None and fingerprint != self._fingerprint:
            raise AccessRefused(
                f"{self.url}: expected the server as it was when the run began, {self._fingerprint}, got"
                f" {brief(fingerprint)}; serve it as before, or run again"
            )
        self._fingerprint = fingerprint

    def _refusal(self, response: RawAnswer) -> RequestRefused | AccessRefused:
        """Make the error for a response that is not of status 200."""
        status, message = response.status, _message(response)
        if status in _REFUSED and _TRUST in message:
            return AccessRefused(
                f"{self.url}: it does not take the times of frames; start it with {_TRUST}, or have the times in the"
                " prompt with --frame-times prompt",
                status=status,
            )
        if status >= 500 or status in _BUSY_OR_LATE:
            return RequestRefused(status, message, retry_after=_retry_after(response), is_busy=status in _BUSY)
        if status in _REFUSED:
            return RequestRefused(status, message, permanent=True)
        return AccessRefused(
            f"{self.url}: status {status}: {message}; {_advice(response)}",
            temporary=status in (401, 403, 404),
            status=status,
        )


def _parsed_or_refused(form: Form[Any, Any], value: Any, items: Any) -> Any:
    """Return the answer about an item, or the refusal in its place if the model has answered without a text.

    Such an answer is about the item alone, so nothing else is asked to find out whether the server works.
    """
    try:
        return form.parse(value, items)
    except RequestRefused as refusal:
        if not refusal.permanent:
            raise
        return refusal


def _error_status(value: Any) -> int | None:
    """Return the status of an error that a server has put into an answer of status 200; None if it answers.

    Brokers of models do so when the model fails after they have begun to answer.
    """
    if not isinstance(value, dict) or value.get("choices") or value.get("text") or not value.get("error"):
        return None
    code = value["error"].get("code") if isinstance(value["error"], dict) else None
    told = str(code) if isinstance(code, (int, str)) else ""
    return int(told) if re.fullmatch("4[0-9][0-9]|503", told) else 500


def _advice(response: RawAnswer) -> str:
    """Return what to do about a status with which a server would refuse every request."""
    if response.status in REDIRECTS:
        return (
            f"it redirects to {brief(response.headers.get('Location', ''))}, which is not followed, because that server"
            " must not get the key; name the server's own address"
        )
    if response.status in (401, 403):
        return (
            "give its key with --key-file, or in the environment variable OPENAI_API_KEY if the command line or"
            " REELSCRIBE_SERVER names it, and no other server with OpenAI's API"
        )
    if response.status == 404:
        return "is it the address of the API, which mostly ends in /v1, and does the model do this?"
    return "is it a server with OpenAI's API?"


def _message(response: RawAnswer) -> str:
    """Return the message of a refusal, wherever the server has put it."""
    try:
        value = parse_json(response.content)
    except ValueError:
        value = None
    for found in (value.get("error"), value) if isinstance(value, dict) else ():
        if isinstance(found, dict) and "message" in found:
            return message_of(found)
        if isinstance(found, str):
            return message_of({"message": found})
    return printable(" ".join(response.text[:2000].split())[:200])


def _retry_after(response: RawAnswer) -> float | None:
    """Return the seconds after which the server wants to be asked again; None if it names none."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:  # missing, or a date, which needs clocks that agree
        return None
    return min(seconds, MOST_RETRY_SECONDS) if 0 < seconds < math.inf else None


def _read_queue(metrics: str) -> int | None:
    """Return how many requests wait, by the metrics of vLLM; None if they do not tell.

    Raises:
        ValueError: The text has not the format of Prometheus.
    """
    of_queue = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_waiting")]
    families = text_string_to_metric_families("\n".join(of_queue))
    samples = [each for family in families for each in family.samples if each.name == "vllm:num_requests_waiting"]
    values = [each.value for each in samples if 0 <= each.value < 2**31]
    return int(sum(values)) if values else None


def _short(value: Any) -> str | None:
    return printable(value[:100]) if isinstance(value, str) and value else None


def _maker(server: Server, kind: type[Description]) -> Callable[[dict[str, Any], str], Description]:
    """Return the function that makes a description from an entry in the list of models, and the engine."""
    settings = server.openai

    def make(about: dict[str, Any], engine: str) -> Description:
        root = about["root"] if isinstance(about["root"], str) and about["root"] else about["id"]
        own = settings.family or family_of(root, about["id"])
        family = FAMILIES[own] if own else OTHER
        fields: dict[str, Any] = {
            "name": root,
            "revision": settings.revision,
            "generation": {
                "max_tokens": settings.max_tokens or _usual_tokens(kind, about["max_model_len"]),
                "temperature": 0,
                "seed": 0,
                "frame_format": settings.frame_format,
                "frame_times": settings.frame_times or family.times,
                "served": about,
            },
            "dtype": "unknown",
            "device_batch": 1,
            "continuous": True,
            "response_seconds": REQUEST_SECONDS,
            "engine": engine,
        }
        return kind.from_json(fields | _FIELDS[kind](_Served(settings.frame_prompt, family, about["max_model_len"])))

    if kind not in _FIELDS:
        raise UsageError(f"{server.url}: expected a TorchServe for a {kind.kind} model, as OpenAI's API has none")
    return make


def _usual_tokens(kind: type[ModelDescription], model_length: Any) -> int:
    """Return the largest number of tokens of an answer, for a model that takes so many with the question, if known."""
    most, parts = (MAX_CHAT_TOKENS, 4) if kind is ChatModelDescription else (MAX_TOKENS, 2)
    return most if type(model_length) is not int else max(1, min(most, model_length // parts))


class _Served(NamedTuple):
    """A model, as far as the fields depend on it that its kind has of its own."""

    frame_prompt: str | None
    """The question about single frames of the settings; None for that of the family."""
    family: ModelFamily
    model_length: Any
    """Number of tokens of a question and its answer, as the server tells it; None if it does not."""

    @property
    def picture_prompt(self) -> str:
        """The question about single frames."""
        return self.family.picture_prompt if self.frame_prompt is None else self.frame_prompt


def _of_captioner(served: _Served) -> dict[str, Any]:
    return {
        "prompt": served.picture_prompt,
        "frame": asdict(served.family.pictures),
        "mean": (),
        "std": (),
        "max_frames": 1,
        "max_side": MOST_SIDE,
    }


def _of_clip_model(served: _Served) -> dict[str, Any]:
    return {
        "prompt": CLIP_PROMPT,
        "still_prompt": served.picture_prompt,
        "system_prompt": "",
        "allow_prompts": True,
        "budget": served.family.clips.to_json(),
        "max_clips": 1,
        "max_side": MOST_SIDE,
    }


def _of_speech_model(_: _Served) -> dict[str, Any]:
    return {
        "sample_rate": SAMPLE_RATE,
        "chunk_seconds": CHUNK_SECONDS,
        "languages": None,
        "tasks": ("transcribe", "translate"),
        "language": None,
        "word_times": False,
        "max_chunks": 1,
        "prompt_tokens": None,
    }


def _of_chat_model(served: _Served) -> dict[str, Any]:
    told = served.model_length
    return {"context_tokens": CONTEXT_TOKENS if told is None else told, "max_texts": 1}


_FIELDS: dict[type[ModelDescription], Callable[[_Served], dict[str, Any]]] = {
    CaptionerDescription: _of_captioner,
    ClipModelDescription: _of_clip_model,
    SpeechDescription: _of_speech_model,
    ChatModelDescription: _of_chat_model,
}
"""The fields of a description that each kind of model has of its own."""


async def list_models(server: Server, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Return the models of a server with OpenAI's API; raises the errors of `OpenAIEndpoint.models`."""
    return await OpenAIEndpoint(server, "", session, ClipModelDescription).models()
