"""`reelscribe server`: start and stop a TorchServe on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe.cli_archive import MODEL_STORE, ModelStore
from reelscribe.cli_errors import errors_as_one_line

DIRECTORY = Path(".server")
CONFIG = Path("config.properties")
LOAD_SECONDS = 900.0

app = typer.Typer(no_args_is_help=True, help="Start and stop a TorchServe on this machine.")

Config = Annotated[Path, typer.Option(help="TorchServe's settings.")]
LoadSeconds = Annotated[float, typer.Option(help="How long the models may take to be ready.")]
Directory = Annotated[Path, typer.Option(help="Where the server lives: its logs, keys and temporary files.")]


@app.command("start")
def start_server(
    directory: Directory = DIRECTORY,
    config: Config = CONFIG,
    model_store: ModelStore = MODEL_STORE,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Start TorchServe and wait until every worker is READY; if one cannot be, say why and leave nothing running."""
    with errors_as_one_line():
        from reelscribe import server
        from reelscribe.instance import Instance

        instance = Instance(directory)
        server.start(instance, config, model_store, load_seconds=load_seconds, say=typer.echo)
        typer.echo(f"serving at {instance.address('inference_address')}, keys in {instance.key_file}")


@app.command("restart")
def restart_server(
    directory: Directory = DIRECTORY,
    config: Config = CONFIG,
    model_store: ModelStore = MODEL_STORE,
    load_seconds: LoadSeconds = LOAD_SECONDS,
) -> None:
    """Stop TorchServe if it runs, and start it again."""
    stop_server(directory)
    start_server(directory, config, model_store, load_seconds)


@app.command("stop")
def stop_server(directory: Directory = DIRECTORY) -> None:
    """Stop TorchServe and all of its workers."""
    with errors_as_one_line():
        from reelscribe import server
        from reelscribe.instance import Instance

        pids = server.stop(Instance(directory))
        typer.echo(f"stopped processes {', '.join(map(str, pids))}" if pids else "no server was running")
