"""`reelscribe models`: which models a server has, other ones in their place, more or fewer workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.errors import UsageError
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server.options import DIRECTORY

if TYPE_CHECKING:
    from reelscribe.client.credentials import Credentials
    from reelscribe.management.client import ManagementClient, Why
    from reelscribe.management.model_version import ModelVersion
    from reelscribe.server.instance import Instance


T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="See, register, scale and replace the models of a server.")

Model = Annotated[str, typer.Argument(help="Name of the model.")]
Version = Annotated[str | None, typer.Argument(help="One of its versions; otherwise the default one.")]
Directory = Annotated[Path, typer.Option(help="Where a server on this machine lives.")]
Management = Annotated[str | None, typer.Option(help="Management address of another server, as through a tunnel.")]
KeyFile = Annotated[Path | None, typer.Option(help="Copy of that server's key_file.json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until every worker is READY.")]
LoadSeconds = Annotated[float, typer.Option(help="How long that may take.")]


@app.command("list")
def list_models(
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Every version of every model."""
    with errors_as_one_line():
        models = _reach(directory, management, key_file).do(lambda server: server.models())
        if as_json:
            typer.echo(json.dumps([asdict(model) for model in models], indent=2))
        else:
            for model in models:
                typer.echo(f"{_title(model)}: {_workers(model)}")


@app.command()
def describe(
    model: Model,
    version: Version = None,
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """A model, its workers and its queue, and what its handler says of itself if a worker is there to say it."""

    async def ask(server: ManagementClient) -> tuple[ModelVersion, dict[str, Any]]:
        described = await server.describe(model, version)
        ready = any(worker.ready for worker in described.workers)
        return described, await server.handler_description(model, version) if ready else {}

    with errors_as_one_line():
        described, handler = _reach(directory, management, key_file).do(ask)
        if as_json:
            typer.echo(json.dumps({**asdict(described), "handler": handler}, indent=2))
        else:
            typer.echo("\n".join([_title(described), *_details(described, handler)]))


@app.command()
def register(
    archive: Annotated[str, typer.Argument(help="File name in the server's model store, or an allowed address.")],
    workers: Annotated[int | None, typer.Option(min=1, help="So many, whatever the archive says.")] = None,
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    wait: Wait = True,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Load an archive; if it cannot be, say why and leave nothing of it. It is not the default if others are there."""
    with errors_as_one_line():
        server = _reach(directory, management, key_file)
        server.check_archive(archive)
        why, seconds = server.why(archives_too=True), load_seconds if wait else None
        made = server.do(lambda client: client.register(archive, workers=workers, seconds=seconds, why=why))
        typer.echo(f"registered {_title(made)}: {_workers(made)}")


@app.command("wait")
def wait_for(
    model: Model,
    version: Version = None,
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Until every worker is READY; if one cannot be, say why."""
    with errors_as_one_line():
        server = _reach(directory, management, key_file)
        why = server.why()
        ready = server.do(lambda client: client.wait_ready(model, version, seconds=load_seconds, why=why))
        typer.echo(f"{_title(ready)}: {_workers(ready)}")


@app.command()
def scale(
    model: Model,
    workers: Annotated[int, typer.Argument(min=0, help="At least so many workers.")],
    maximum: Annotated[int | None, typer.Option("--max", min=0, help="At most so many; otherwise as many.")] = None,
    version: Annotated[str | None, typer.Option(help="One of its versions; otherwise the default one.")] = None,
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    wait: Wait = True,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """More or fewer workers; requests that one had in work are given to others."""
    with errors_as_one_line():
        server = _reach(directory, management, key_file)
        why = server.why()
        scaled = server.do(
            lambda client: client.scale(model, workers, maximum, version, wait=wait, seconds=load_seconds, why=why)
        )
        typer.echo(f"{_title(scaled)}: {_workers(scaled)}")


@app.command("set-default")
def set_default(
    model: Model,
    version: Annotated[str, typer.Argument(help="One of its versions.")],
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
) -> None:
    """Have a version answer the requests that name none."""
    with errors_as_one_line():
        _reach(directory, management, key_file).do(lambda server: server.set_default(model, version))
        typer.echo(f"{model} {version} is the default")


@app.command()
def unregister(
    model: Model,
    version: Version = None,
    directory: Directory = DIRECTORY,
    management: Management = None,
    key_file: KeyFile = None,
    now: Annotated[bool, typer.Option("--now", help="Drop the requests that it has not answered yet.")] = False,
) -> None:
    """Take a version away when it has answered what it was asked until now.

    A version with several workers stays as long as one request may compute (responseTimeout of its YAML), as the server
    does not say which of them are idle. What comes meanwhile may be lost: make another version the default first.
    """
    with errors_as_one_line():
        from reelscribe.management.client import DRAIN_SECONDS

        seconds = 0.0 if now else DRAIN_SECONDS
        gone = _reach(directory, management, key_file).do(
            lambda server: server.unregister(model, version, drain_seconds=seconds)
        )
        # TorchServe lets a default version go only if it is the last.
        last = "; that was the only version: nobody answers to that name now" if gone.is_default else ""
        typer.echo(f"unregistered {gone.name} {gone.version}{last}")


@dataclass(frozen=True)
class _Server:
    address: str
    credentials: Credentials | None
    instance: Instance | None = None
    """If it is on this machine."""

    def do(self, work: Callable[[ManagementClient], Awaitable[T]]) -> T:
        from reelscribe.management.client import ManagementClient

        async def run() -> T:
            trusted = self.instance.tls() if self.instance else None
            async with ManagementClient(self.address, self.credentials, ssl_context=trusted) as client:
                return await work(client)

        return asyncio.run(run())

    def why(self, *, archives_too: bool = False) -> Why:
        """Tells of errors that are logged from now on; nothing of a server elsewhere.

        With `archives_too` also of what TorchServe itself had against any archive: it does not say which.
        """
        if self.instance is None:
            return lambda *_: None
        from reelscribe.server.logs import log_end, why_it_cannot_load, why_it_was_not_accepted

        instance, since = self.instance, log_end(self.instance)

        def why(model: str, version: str) -> str | None:
            reason = why_it_cannot_load(instance, model, version, since=since)
            return reason or (why_it_was_not_accepted(instance, since) if archives_too else None)

        return why

    def check_archive(self, archive: str) -> None:
        """Raises StartupError for a damaged one, of which TorchServe would only say that it cannot save it."""
        if self.instance is None or not self.instance.options.exists():
            return
        from reelscribe.archive.model_store import stored_models
        from reelscribe.server.options import StartOptions

        store = StartOptions.load(self.instance.options).model_store
        if (store / archive).is_file():
            stored_models(store, archive)


def _reach(directory: Path, management: str | None, key_file: Path | None) -> _Server:
    from reelscribe.client.credentials import Credentials

    if management:
        # Not renewed: it may be a copy, and a new key would be written to the server's own file only.
        return _Server(management, Credentials(key_file, api="management") if key_file else None)
    if key_file:
        raise UsageError("--key-file: expected the --management address that it is for")
    from reelscribe.server.instance import Instance

    instance = Instance(directory)
    if not instance.config.exists():
        raise UsageError(f"{directory}: no server was started there; give its --directory, or a --management address")
    address = instance.address("management_address")
    keys = Credentials(instance.key_file, address, api="management") if instance.key_file.exists() else None
    return _Server(address, keys, instance)


def _title(model: ModelVersion) -> str:
    return f"{model.name} {model.version}{' (default)' if model.is_default else ''} from {model.archive}"


def _workers(model: ModelVersion) -> str:
    most = "" if model.min_workers == model.max_workers else f" to {model.max_workers}"
    return f"{sum(worker.ready for worker in model.workers)} of {model.min_workers}{most} workers ready"


def _details(model: ModelVersion, handler: dict[str, Any]) -> list[str]:
    lines = [f"workers: {_workers(model)}"]
    for worker in model.workers:
        gpus = "".join(f", GPU {number}" for number in model.gpus_of(worker))
        lines += [f"  {worker.id}: {worker.status}, process {worker.pid}{gpus}, {worker.memory / 2**20:.0f} MiB"]
    if model.stages > 1:
        lines += [f"stages: {model.stages} processes a worker, of which one is shown"]
    if model.device_ids:
        lines += [f"GPUs: {', '.join(map(str, model.device_ids))}"]
    lines += [
        f"queue: {model.queue_pending} waiting, room for {model.queue_capacity}",
        f"limits: {model.response_seconds} s to answer, {model.startup_seconds} s to load",
        f"joined requests: up to {model.batch_size}, waiting up to {model.batch_delay_ms} ms",
    ]
    return lines + [
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}" for name, value in handler.items()
    ]
