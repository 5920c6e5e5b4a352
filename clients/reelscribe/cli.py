"""The `reelscribe` command."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from reelscribe import __version__
from reelscribe.errors import ReelscribeError, UsageError

EXIT_FAILED = 1
EXIT_SOME_SOURCES_FAILED = 3
EXIT_INTERRUPTED = 130

DIRECTORY = Path(".server")
LOCAL_KEYS = DIRECTORY / "key_file.json"
CONFIG = Path("config.properties")
MODEL_STORE = Path("model_store")
LOAD_SECONDS = 900.0
RETRIES_UNTOLD = 3
INFERENCE_ADDRESS = "http://127.0.0.1:8080"

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Caption whole video libraries on a TorchServe.")
server_app = typer.Typer(no_args_is_help=True, help="Start and stop a TorchServe on this machine.")
app.add_typer(server_app, name="server")

ModelStore = Annotated[Path, typer.Option(help="Folder of archives (*.mar); all of them are served.")]
Config = Annotated[Path, typer.Option(help="TorchServe's settings.")]
LoadSeconds = Annotated[float, typer.Option(help="How long the models may take to be ready.")]
Directory = Annotated[Path, typer.Option(help="Where the server lives: its logs, keys and temporary files.")]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _errors_as_one_line() -> Iterator[None]:
    """Around each command, its imports included: they wait until needed, and may be missing."""
    # A service manager's SIGTERM is the same wish as Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except ReelscribeError as error:
        typer.echo(f"reelscribe: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except ModuleNotFoundError as error:
        typer.echo(
            f"reelscribe: the package {error.name} is missing; in the project's folder, pip install '.[client]' to"
            " caption or '.[server]' to build archives and serve them",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        typer.echo("reelscribe: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def caption(
    sources: Annotated[list[str], typer.Argument(help="Video files, folders of them, or globs.")],
    out: Annotated[Path, typer.Option(help="Folder for annotations.jsonl.")],
    server: Annotated[str, typer.Option(help="Inference address of the server.")] = INFERENCE_ADDRESS,
    model: Annotated[str, typer.Option(help="Name of the model on the server.")] = "captioner",
    key_file: Annotated[
        Path | None, typer.Option(help="The server's key_file.json; for the server on this machine, that of .server.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Caption frames 0, N, 2N, ...")] = 1,
    frames_per_request: Annotated[int, typer.Option(min=1, help="At most; fewer if they exceed 8 MB.")] = 32,
    requests_in_flight: Annotated[int, typer.Option(min=1, help="Requests at the server at once.")] = 4,
    decode_workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 2,
) -> None:
    """Caption the frames of videos; one JSON line a source in OUT/annotations.jsonl.

    Exit status 0: all sources captioned; 3: done, but some sources failed (their records say why); 1: the run could not
    be done; 2: an option is wrong; 130: interrupted.
    """
    with _errors_as_one_line():
        from stamina.instrumentation import RetryDetails, set_on_retry_hooks

        from reelscribe.bulk import CaptionOptions, Summary, caption_sources
        from reelscribe.client import CaptionClient

        options = CaptionOptions(every, frames_per_request, requests_in_flight, decode_workers)

        def tell(details: RetryDetails) -> None:
            # The first tries again are nothing unusual: queues are full for a moment.
            if details.retry_num == RETRIES_UNTOLD:
                typer.echo(f"trying again for some seconds: {details.caused_by}", err=True)

        set_on_retry_hooks([tell])

        async def run() -> Summary:
            # The key of the server here is for no other one.
            keys = key_file or (LOCAL_KEYS if server == INFERENCE_ADDRESS and LOCAL_KEYS.exists() else None)
            token = _inference_key(keys) if keys else None
            async with CaptionClient(server, model, token=token, connections=requests_in_flight) as client:
                return await caption_sources(client, sources, out, options)

        summary = asyncio.run(run())
    typer.echo(f"{summary}: {out / 'annotations.jsonl'}")
    if summary.failed:
        raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def _inference_key(key_file: Path) -> str:
    """The token for predictions, from TorchServe's key file."""
    try:
        return str(json.loads(key_file.read_text())["inference"]["key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"key file {key_file}: expected the key_file.json of a TorchServe: {error}") from None


@app.command()
def archive(
    name: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    weights: Annotated[str, typer.Option(help="Hub name, or a directory of safetensors and processor files.")],
    handler: Annotated[str, typer.Option(help="Kind of handler; its settings are handlers/KIND.yaml.")] = "caption",
    model_store: ModelStore = MODEL_STORE,
) -> None:
    """Build a model archive with torch-model-archiver."""
    with _errors_as_one_line():
        from reelscribe import archive as archives

        typer.echo(f"built {archives.build(name, handler, weights, model_store)}")


@server_app.command("start")
def start_server(
    directory: Directory = DIRECTORY,
    config: Config = CONFIG,
    model_store: ModelStore = MODEL_STORE,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Start TorchServe and wait until every worker is READY; if one cannot be, say why and leave nothing running."""
    with _errors_as_one_line():
        from reelscribe import server

        instance = server.Instance(directory)
        server.start(instance, config, model_store, load_seconds=load_seconds, say=typer.echo)
        typer.echo(f"serving at {instance.address('inference_address')}, keys in {instance.key_file}")


@server_app.command("restart")
def restart_server(
    directory: Directory = DIRECTORY,
    config: Config = CONFIG,
    model_store: ModelStore = MODEL_STORE,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Stop TorchServe if it runs, and start it again."""
    stop_server(directory)
    start_server(directory, config, model_store, load_seconds)


@server_app.command("stop")
def stop_server(directory: Directory = DIRECTORY) -> None:
    """Stop TorchServe and all of its workers."""
    with _errors_as_one_line():
        from reelscribe import server

        pids = server.stop(server.Instance(directory))
        typer.echo(f"stopped processes {', '.join(map(str, pids))}" if pids else "no server was running")


if __name__ == "__main__":
    app()
