"""`reelscribe models`: list, describe, register, scale and unregister the models of a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reelscribe.cli.messages import errors_as_one_line
from reelscribe.cli.options.servers import server_option
from reelscribe.cli.parser.command import Command, flatten, group, on_command_line
from reelscribe.errors import ServerError, UsageError, printable
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server.start_options import DIRECTORY

if TYPE_CHECKING:
    from reelscribe.management.management_client import ManagementClient, Why
    from reelscribe.management.model_version import ModelVersion
    from reelscribe.server.server_discovery import ManagedServer


T = TypeVar("T")

DEVICE_SECONDS = 30.0
"""Timeout of the request for the devices of a model, in seconds. It waits in the queue behind others."""

app = group("List, describe, register, scale and unregister the models of a running server.")

Model = Annotated[str, typer.Argument(help="Name of the model.")]
Version = Annotated[str | None, typer.Argument(help="Version of the model; by default its default version.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every worker is READY.")]
LoadSeconds = Annotated[
    float, typer.Option(metavar="SECONDS", help="Give up if the workers are not READY after this many seconds.")
]


@dataclass(frozen=True, kw_only=True)
class ServerChoice:
    """The options for the server that a command manages."""

    directory: Annotated[Path, server_option(metavar="FOLDER", help="Folder of a server on this machine.")] = DIRECTORY
    management: Annotated[
        str | None,
        server_option(
            metavar="URL", help="Management address of a server elsewhere, such as the near end of an ssh tunnel."
        ),
    ] = None
    key_file: Annotated[
        Path | None,
        server_option(
            metavar="FILE",
            help="Copy of the server's key_file.json, with mode 600. By default the server's own file, or with"
            " --management key_file.json in the working folder if there is one.",
        ),
    ] = None

    def find(self) -> _Session:
        """Return the server with its credentials. Nothing is sent to it yet.

        Raises:
            UsageError: No server was started in the directory, or the key file cannot be used.
        """
        from reelscribe.server.server_discovery import find_managed_server

        return _Session(find_managed_server(self.management, self.key_file, self.directory))


@app.command("list", cls=Command)
@flatten
def list_models(
    context: typer.Context,
    server: ServerChoice,
    openai_server: Annotated[
        str | None,
        typer.Option(
            "--server", metavar="URL", help="List those of a server with OpenAI's API instead: openai+http://..."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every version of every model."""
    with errors_as_one_line():
        if openai_server is not None:
            _list_served(context, openai_server, server.key_file, as_json=as_json)
            return
        found = server.find()
        models = found.run(lambda client: client.models())
        if as_json:
            typer.echo(json.dumps([asdict(model) for model in models], indent=2))
        else:
            for model in models:
                typer.echo(printable(f"{_title(model)}: {_workers(model)}{_advice(model, found.gpus)}"))
            found.warn_of_idle_gpus(models)


def _list_served(context: typer.Context, url: str, key_file: Path | None, *, as_json: bool) -> None:
    """List the models of a server with OpenAI's API."""
    from reelscribe.client.http_session import open_session
    from reelscribe.client.openai_endpoint import list_models
    from reelscribe.contract.families import family_of
    from reelscribe.server.server_discovery import find_servers

    others = [option for option in on_command_line(context, ServerChoice) if option != "--key-file"]
    (found,) = find_servers([url], [key_file] if key_file else None)
    if others or not found.server.speaks_openai:
        got = f"{others[0]} with it" if others else url
        raise UsageError(
            f"--server: expected a server with OpenAI's API (openai+http://...), got {got}; a TorchServe is named with"
            " --directory or --management"
        )

    async def request() -> list[dict[str, Any]]:
        async with open_session() as session:
            return await list_models(found.server, session)

    models = asyncio.run(request())
    if as_json:
        typer.echo(json.dumps(models, indent=2))
        return
    for model in models:
        root, most = model.get("root"), model.get("max_model_len")
        details = [str(root)] if isinstance(root, str) and root != model["id"] else []
        details.append(f"family {family_of(str(root), model['id']) or 'unknown, see --family'}")
        details += [f"{most:,} tokens"] if isinstance(most, int) else []
        typer.echo(printable(f"{model['id']}: {', '.join(details)}"))


@app.command(cls=Command)
@flatten
def describe(server: ServerChoice, model: Model, version: Version = None, as_json: AsJson = False) -> None:
    """Show a model, its workers, its queue and, if a worker is READY, its handler's description."""

    async def request(client: ManagementClient) -> tuple[ModelVersion, dict[str, Any], list[ModelVersion]]:
        described = await client.describe(model, version)
        ready = any(worker.ready for worker in described.workers)
        handler = await client.handler_description(model, version) if ready else {}
        return described, handler, await client.models()

    with errors_as_one_line():
        found = server.find()
        described, handler, models = found.run(request)
        if as_json:
            typer.echo(json.dumps({**asdict(described), "handler": handler}, indent=2))
        else:
            typer.echo("\n".join(map(printable, [_title(described), *_details(described, handler, found.gpus)])))
            found.warn_of_idle_gpus(models)


@app.command(cls=Command)
@flatten
def register(
    server: ServerChoice,
    archive: Annotated[
        str, typer.Argument(help="File name of an archive in the server's model store, or an address in allowed_urls.")
    ],
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of workers, instead of what the archive says.")
    ] = None,
    wait: Wait = True,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Load an archive. If it cannot be loaded, show the reason and unregister it again.

    The version becomes the model's default only if the model has no other version.
    """
    with errors_as_one_line():
        managed = server.find()
        sizes = managed.sizes_of(archive)
        why, seconds = managed.why(with_rejected_archives=True), load_seconds if wait else None

        async def request(client: ManagementClient) -> str:
            made = await client.register(archive, workers=workers, sizes=sizes, seconds=seconds, why=why)
            return f"registered {_title(made)}: {_workers(made)}{await _devices(client, made)}"

        typer.echo(printable(managed.run(request)))


@app.command("wait", cls=Command)
@flatten
def wait_for(
    server: ServerChoice, model: Model, version: Version = None, load_seconds: LoadSeconds = LOAD_SECONDS
) -> None:
    """Wait until every worker of a model is READY. If a worker cannot load it, show the reason."""
    with errors_as_one_line():
        managed = server.find()
        why = managed.why()

        async def request(client: ManagementClient) -> str:
            ready = await client.wait_ready(model, version, seconds=load_seconds, why=why)
            return f"{_title(ready)}: {_workers(ready)}{await _devices(client, ready)}"

        typer.echo(printable(managed.run(request)))


@app.command(cls=Command)
@flatten
def scale(
    server: ServerChoice,
    model: Model,
    workers: Annotated[int, typer.Argument(min=0, help="Smallest number of workers.")],
    maximum: Annotated[
        int | None,
        typer.Option("--max", min=0, metavar="N", help="Largest number of workers; by default the smallest number."),
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Version of the model; by default its default version.")
    ] = None,
    wait: Wait = True,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Change the number of a model's workers, and spread them evenly over its GPUs.

    Requests that a removed worker was processing go to other workers.
    """
    with errors_as_one_line():
        managed = server.find()
        why = managed.why()

        async def request(client: ManagementClient) -> str:
            scaled = await client.scale(
                model, workers, maximum, version, gpus=managed.gpus, wait=wait, seconds=load_seconds, why=why
            )
            return (
                f"{_title(scaled)}: {_workers(scaled)}{await _devices(client, scaled)}{_advice(scaled, managed.gpus)}"
            )

        typer.echo(printable(managed.run(request)))


@app.command("set-default", cls=Command)
@flatten
def set_default(
    server: ServerChoice, model: Model, version: Annotated[str, typer.Argument(help="Version of the model.")]
) -> None:
    """Make a version the one that answers requests which name no version."""
    with errors_as_one_line():
        server.find().run(lambda client: client.set_default(model, version))
        typer.echo(f"{model} {version} is the default")


@app.command(cls=Command)
@flatten
def unregister(
    server: ServerChoice,
    model: Model,
    version: Version = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait: drop the requests that are not answered yet.")
    ] = False,
) -> None:
    """Unregister a version after it has answered the requests that it already has.

    A version with several workers stays registered for as long as a request may take (responseTimeout in its YAML),
    because the server does not report which workers are idle. Requests that arrive meanwhile may be lost, so make
    another version the default first.
    """
    with errors_as_one_line():
        from reelscribe.management.management_client import DRAIN_SECONDS

        seconds = 0.0 if now else DRAIN_SECONDS
        removed = server.find().run(lambda client: client.unregister(model, version, drain_seconds=seconds))
        # TorchServe unregisters a default version only if it is the last one.
        last = f"; it was the only version, and requests for {removed.name} fail now" if removed.is_default else ""
        typer.echo(printable(f"unregistered {removed.name} {removed.version}{last}"))


@dataclass(frozen=True)
class _Session:
    """A server, and the requests that the commands send to it."""

    server: ManagedServer

    def run(self, work: Callable[[ManagementClient], Awaitable[T]]) -> T:
        """Connect, do `work`, and return its result."""

        async def connected() -> T:
            async with self.server.client() as client:
                return await work(client)

        return asyncio.run(connected())

    def why(self, *, with_rejected_archives: bool = False) -> Why:
        """Return a function that looks for the reason of a failure in log entries from now on.

        With `with_rejected_archives` it also reports that TorchServe rejected an archive, whichever it was: the log
        does not name it.
        """
        if self.server.instance is None:
            return lambda *_: None
        from reelscribe.server.logs import log_end, why_it_cannot_load, why_it_was_not_accepted

        instance, since = self.server.instance, log_end(self.server.instance)

        def why(model: str, version: str) -> str | None:
            reason = why_it_cannot_load(instance, model, version, since=since)
            return reason or (why_it_was_not_accepted(instance, since) if with_rejected_archives else None)

        return why

    @property
    def gpus(self) -> int:
        """Number of GPUs that the server sees; 0 if it is not one of this machine."""
        return self.server.instance.gpus if self.server.instance else 0

    def sizes_of(self, archive: str) -> dict[str, Any] | None:
        """Choose workers and joined requests for an archive, as a start does; None if it is not in a store here.

        Raises:
            StartupError: The archive is damaged, of which TorchServe would only report that it cannot be saved, or the
                settings are gone or malformed.
        """
        if self.server.instance is None or not self.server.instance.options.exists():
            return None
        from reelscribe.archive.model_store import stored_models
        from reelscribe.server.sizes import model_sizes
        from reelscribe.server.start_options import StartOptions

        options = StartOptions.load(self.server.instance.options)
        if not (options.model_store / archive).is_file():
            return None
        return model_sizes(stored_models(options.model_store, archive)[0], self.gpus, options.settings())

    def warn_of_idle_gpus(self, versions: list[ModelVersion]) -> None:
        """Say which GPUs no model uses, if there are any."""
        from reelscribe.server.sizes import idle_gpus

        if self.gpus and (warning := idle_gpus(self.gpus, versions)):
            typer.echo(printable(warning))


def _title(model: ModelVersion) -> str:
    return f"{model.name} {model.version}{' (default)' if model.is_default else ''} from {model.archive}"


def _workers(model: ModelVersion) -> str:
    most = "" if model.min_workers == model.max_workers else f" to {model.max_workers}"
    return f"{sum(worker.ready for worker in model.workers)} of {model.min_workers}{most} workers ready"


def _advice(model: ModelVersion, gpus: int) -> str:
    advice = model.advice(gpus)
    return f"; {advice}" if advice else ""


async def _devices(client: ManagementClient, model: ModelVersion) -> str:
    """Name the devices of a version that is ready: without GPUs, TorchServe runs workers for GPUs on the CPU."""
    devices: list[str] = []
    if model.ready:
        with suppress(ServerError):  # it is busy, and where it runs is no reason to fail
            devices = (await client.handler_description(model.name, model.version, seconds=DEVICE_SECONDS)).get(
                "devices", []
            )
    if not devices:
        return ""
    if set(devices) == {"cpu"}:
        return ", on the CPU"
    gpus = sorted({number for worker in model.workers for number in model.gpus_of(worker)})
    return f", on GPUs {', '.join(map(str, gpus))}" if gpus else f", on {' and '.join(devices)}"


def _details(model: ModelVersion, handler: dict[str, Any], gpus: int) -> list[str]:
    lines = [f"workers: {_workers(model)}{_advice(model, gpus)}"]
    for worker in model.workers:
        places = "".join(f", GPU {number}" for number in model.gpus_of(worker))
        lines.append(f"  {worker.id}: {worker.status}, process {worker.pid}{places}, {worker.memory / 2**20:.0f} MiB")
    if model.stages > 1:
        lines.append(f"stages: {model.stages} processes for each worker, of which the first is shown")
    if model.device_ids:
        lines.append(f"GPUs: {', '.join(map(str, model.device_ids))}")
    lines += [
        f"queue: {model.queue_pending} waiting, room for {model.queue_capacity}",
        f"limits: {model.response_seconds} s to answer, {model.startup_seconds} s to load",
        f"joined requests: up to {model.batch_size}, waiting up to {model.batch_delay_ms} ms",
    ]
    return lines + [
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in handler.items()
    ]
