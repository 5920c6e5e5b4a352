"""The `reelscribe` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reelscribe import __version__, cli_runs
from reelscribe.cli_errors import errors_as_one_line
from reelscribe.errors import UsageError

DIRECTORY = Path(".server")
CONFIG = Path("config.properties")
MODEL_STORE = Path("model_store")
LOAD_SECONDS = 900.0

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Caption and transcribe whole video libraries on a TorchServe."
)
server_app = typer.Typer(no_args_is_help=True, help="Start and stop a TorchServe on this machine.")
app.add_typer(server_app, name="server")
for command in (cli_runs.caption, cli_runs.transcribe, cli_runs.annotate):
    app.command()(command)

ModelStore = Annotated[Path, typer.Option(help="Folder of archives (*.mar); all of them are served.")]
Config = Annotated[Path, typer.Option(help="TorchServe's settings.")]
LoadSeconds = Annotated[float, typer.Option(help="How long the models may take to be ready.")]
Directory = Annotated[Path, typer.Option(help="Where the server lives: its logs, keys and temporary files.")]


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
def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    format: Annotated[list[str], typer.Option(help="vtt, srt, csv or parquet; several are allowed.")],  # noqa: A002 - the option's name
    cues: cli_runs.Cues = "both",
) -> None:
    """Write the captions and transcripts of a finished run as subtitles or tables too."""
    with errors_as_one_line():
        from reelscribe import exports
        from reelscribe.writers import NAME

        for path in exports.export(out / NAME, out, format, cli_runs.one_of(cues, exports.CUES, "--cues")):
            typer.echo(f"wrote {path}")


@app.command()
def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """How the run into a folder gets on, or how it ended."""
    with errors_as_one_line():
        from reelscribe.ledger import LedgerReader, is_locked
        from reelscribe.meter import Snapshot
        from reelscribe.progress import describe

        with LedgerReader(out) as ledger:
            run = ledger.run()
        if run is None:
            raise UsageError(f"{out}: no run has got so far as to say how it gets on")
        state, pid = run.pop("state"), run.pop("pid")
        snapshot = Snapshot.from_json(run)
        if is_locked(out):
            told = f"running, process {pid}"
        elif state == "running":
            told = "ended without notice; the same command goes on"
        else:
            told = state
        typer.echo(f"{told}: {snapshot.sources_done} of {snapshot.sources} sources, {describe(snapshot)}")


@app.command()
def archive(
    name: Annotated[str, typer.Argument(help="Name of the model on the server.")],
    weights: Annotated[str, typer.Option(help="Hub name, or a directory of safetensors and processor files.")],
    handler: Annotated[str, typer.Option(help="Kind of handler; its settings are handlers/KIND.yaml.")] = "caption",
    model_store: ModelStore = MODEL_STORE,
) -> None:
    """Build a model archive with torch-model-archiver."""
    with errors_as_one_line():
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
    with errors_as_one_line():
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
    with errors_as_one_line():
        from reelscribe import server

        pids = server.stop(server.Instance(directory))
        typer.echo(f"stopped processes {', '.join(map(str, pids))}" if pids else "no server was running")


if __name__ == "__main__":
    app()
