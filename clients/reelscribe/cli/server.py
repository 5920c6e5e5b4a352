"""`reelscribe server`: a TorchServe on this machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelscribe.cli._errors import EXIT_FAILED, errors_as_one_line
from reelscribe.errors import UsageError
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server.options import CONFIG, DIRECTORY, MODEL_STORE, StartOptions

if TYPE_CHECKING:
    from reelscribe.server.instance import Instance
    from reelscribe.server.state import ModelState, ServerState


EXIT_STOPPED = 3
"""What service managers take for "not running"."""

app = typer.Typer(no_args_is_help=True, help="Start, stop and watch a TorchServe on this machine.")

Directory = Annotated[Path, typer.Option(help="Where the server lives: its logs, keys and temporary files.")]
Config = Annotated[Path | None, typer.Option(help="TorchServe's settings.", show_default=str(CONFIG))]
ModelStore = Annotated[
    Path | None, typer.Option(help="Folder of archives (*.mar); all are served.", show_default=str(MODEL_STORE))
]
LoadSeconds = Annotated[
    float | None,
    typer.Option(help="How long the models may take to be ready.", show_default=f"{LOAD_SECONDS:.0f}"),
]
ModelApi = Annotated[
    bool | None,
    typer.Option(
        "--model-api/--no-model-api",
        help="Let `reelscribe models` register and unregister models while it runs; a restart keeps that, unless told"
        " --no-model-api.",
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure/--secure",
        help="Start even if strangers could read or use it; without, that is refused. A restart keeps it, unless told"
        " --secure.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(help="PEM file for https addresses: the server's own certificate, then those that signed it."),
]
PrivateKey = Annotated[Path | None, typer.Option(help="PEM file with the certificate's RSA key, not encrypted.")]
NoTls = Annotated[
    bool, typer.Option("--no-tls", help="Without the certificate of the last start, for addresses of http alone.")
]
PassEnv = Annotated[
    list[str] | None,
    typer.Option(
        help="A variable that the server and its workers shall have, like HF_TOKEN; others with secrets in them they"
        " do not get. May be given several times."
    ),
]


@app.command("start")
def start_server(
    directory: Directory = DIRECTORY,
    config: Config = None,
    model_store: ModelStore = None,
    load_seconds: LoadSeconds = None,
    model_api: ModelApi = None,
    insecure: Insecure = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    pass_env: PassEnv = None,
) -> None:
    """Start TorchServe and wait until every worker is READY; if one cannot be, say why and leave nothing running."""
    given = _given(config, model_store, load_seconds, model_api, insecure, certificate, private_key, pass_env)
    with errors_as_one_line():
        from reelscribe.server import launcher as server
        from reelscribe.server.instance import Instance

        instance = Instance(directory)
        server.start(instance, StartOptions(**given), say=typer.echo)
        _say_where(instance)


@app.command("restart")
def restart_server(
    directory: Directory = DIRECTORY,
    config: Config = None,
    model_store: ModelStore = None,
    load_seconds: LoadSeconds = None,
    model_api: ModelApi = None,
    insecure: Insecure = None,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    pass_env: PassEnv = None,
    no_tls: NoTls = False,
) -> None:
    """Stop TorchServe if it runs, and start it with the options of its last start, save for those given here."""
    given = _given(config, model_store, load_seconds, model_api, insecure, certificate, private_key, pass_env)
    with errors_as_one_line():
        from reelscribe.server import launcher as server
        from reelscribe.server.instance import Instance

        instance = Instance(directory)
        kept = StartOptions.load(instance.options)
        if no_tls:
            kept = replace(kept, certificate=None, private_key=None)
        server.restart(instance, replace(kept, **given), say=typer.echo)
        _say_where(instance)


@app.command("stop")
def stop_server(directory: Directory = DIRECTORY) -> None:
    """Stop TorchServe and all of its workers."""
    with errors_as_one_line():
        from reelscribe.server import launcher as server
        from reelscribe.server.instance import Instance

        typer.echo(server.stopped(server.stop(Instance(directory))))


@app.command("status")
def show_status(
    directory: Directory = DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say how the server gets on, and each version of each model.

    stopped, starting, loading, ready, degraded (a worker is restarting, or a model has none) or failing (with the last
    error from the log).
    The exit status is 0 if it is ready, 3 if it is stopped, and 1 otherwise.
    """
    with errors_as_one_line():
        import json

        from reelscribe.server.instance import Instance
        from reelscribe.server.state import state_of

        state = state_of(Instance(directory))
        typer.echo(json.dumps(asdict(state)) if as_json else "\n".join(_described(state)))
        if state.state != "ready":
            raise typer.Exit(EXIT_STOPPED if state.state == "stopped" else EXIT_FAILED)


@app.command("logs")
def show_logs(
    directory: Directory = DIRECTORY,
    which: Annotated[
        str, typer.Option(help="model: what workers print; server: TorchServe; access: requests; console: Java.")
    ] = "server",
    lines: Annotated[int, typer.Option(min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
) -> None:
    """Show the end of a log."""
    with errors_as_one_line():
        from reelscribe.server import logs as log_tail
        from reelscribe.server import logs as server_log
        from reelscribe.server.instance import Instance

        if which not in server_log.LOGS:
            raise UsageError(f"--which: expected one of {', '.join(server_log.LOGS)}, got {which!r}")
        log = Instance(directory).logs / server_log.LOGS[which]
        if not log.exists():
            raise UsageError(f"{log}: no such log; was a server started in {directory}?")
        with suppress(KeyboardInterrupt):
            for line in log_tail.follow(log, lines) if follow else log_tail.last_lines(log, lines):
                typer.echo(line)


def _given(
    config: Path | None,
    model_store: Path | None,
    load_seconds: float | None,
    model_api: bool | None,
    insecure: bool | None,
    certificate: Path | None,
    private_key: Path | None,
    pass_env: list[str] | None,
) -> dict[str, Any]:
    """The options that were given, by their names in StartOptions."""
    values = {
        "config": config,
        "model_store": model_store,
        "load_seconds": load_seconds,
        "model_api": model_api,
        "insecure": insecure,
        "certificate": certificate,
        "private_key": private_key,
        "pass_environment": tuple(pass_env) if pass_env else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _say_where(instance: Instance) -> None:
    keys = f"keys in {instance.key_file}" if instance.key_file.exists() else "no keys asked for"
    typer.echo(f"serving at {instance.address('inference_address')}, {keys}")


def _described(state: ServerState) -> list[str]:
    return [f"server: {state.state}{_because(state)}"] + [
        f"{model.name} {model.version}: {model.state}, {model.ready} of {model.wanted} workers ready{_because(model)}"
        for model in state.models
    ]


def _because(state: ServerState | ModelState) -> str:
    return f": {state.error}" if state.error else ""
