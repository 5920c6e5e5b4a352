"""`reelscribe server`: start, stop and watch a TorchServe on this machine."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reelscribe.cli.messages import EXIT_FAILED, errors_as_one_line, log_messages
from reelscribe.cli.options.run import one_of
from reelscribe.cli.parser.command import Command, flatten, group
from reelscribe.errors import UsageError, printable
from reelscribe.management.model_version import LOAD_SECONDS
from reelscribe.server.start_options import CONFIG, DIRECTORY, MODEL_STORE, StartOptions

if TYPE_CHECKING:
    from reelscribe.server.instance import Instance
    from reelscribe.server.state import ModelState, ServerState


EXIT_STOPPED = 3
"""Exit status of `status` for a stopped server, as service managers expect it."""

LOGS = ("model", "server", "access", "console")

app = group("Start, stop and watch a TorchServe on this machine.")

Directory = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder of the server: its logs, keys and temporary files.")
]


@dataclass(frozen=True, kw_only=True)
class GivenOptions:
    """The options of `start` and `restart`; None for options that are not given."""

    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TorchServe's settings file. By default that of the last start in the same --directory, or one in the"
            " current folder, or that of the package.",
            show_default=str(CONFIG),
        ),
    ] = None
    model_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of model archives (*.mar). The server serves all of them. By default that of the last start"
            " in the same --directory, or the one in the current folder.",
            show_default=str(MODEL_STORE),
        ),
    ] = None
    load_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Give up if the models are not ready after this many seconds.",
            show_default=f"{LOAD_SECONDS:.0f}",
        ),
    ] = None
    model_api: Annotated[
        bool | None,
        typer.Option(
            "--model-api/--no-model-api",
            help="Allow `reelscribe models` to register and unregister models while the server runs. A restart keeps"
            " this choice.",
        ),
    ] = None
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure/--secure",
            help="Listen beyond loopback even without TLS and tokens, which the server otherwise refuses. A restart"
            " keeps this choice.",
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file for https addresses: the server's own certificate, followed by those that signed it.",
        ),
    ] = None
    private_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PEM file with the certificate's RSA key, unencrypted and with mode 600."),
    ] = None
    pass_environment: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-env",
            metavar="NAME",
            help="Name of an environment variable, such as HF_TOKEN, to pass to the server and its workers. Otherwise"
            " secrets are not passed. May be repeated.",
        ),
    ] = None

    def applied_to(self, options: StartOptions) -> StartOptions:
        """Return `options`, replaced where an option was given.

        Raises:
            UsageError: There is a certificate without a private key, or the other way round.
        """
        given: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        if self.pass_environment is not None:
            given["pass_environment"] = tuple(self.pass_environment)
        return replace(options, **given)


@app.command("start", cls=Command)
@flatten
def start_server(
    *,
    directory: Directory = DIRECTORY,
    given: GivenOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the options, the settings and the ports, and start nothing.")
    ] = False,
) -> None:
    """Start TorchServe and wait until every worker is READY. If that fails, show the reason and stop it again."""
    with errors_as_one_line(), log_messages(_show_message):
        from reelscribe.server import launcher
        from reelscribe.server.instance import Instance

        instance = Instance(directory)
        options = given.applied_to(_places_of_last_start(instance, given))
        if dry_run:
            launcher.check(instance, options)
            return
        launcher.start(instance, options)
        typer.echo(_addresses_and_keys(instance))


@app.command("restart", cls=Command)
@flatten
def restart_server(
    *,
    directory: Directory = DIRECTORY,
    given: GivenOptions,
    no_tls: Annotated[
        bool, typer.Option("--no-tls", help="Drop the certificate of the last start, to serve only http addresses.")
    ] = False,
) -> None:
    """Stop TorchServe if it runs, and start it with the options of its last start, apart from those given here."""
    with errors_as_one_line(), log_messages(_show_message):
        from reelscribe.server import launcher
        from reelscribe.server.instance import Instance

        instance = Instance(directory)
        last = StartOptions.load(instance.options)
        if no_tls:
            last = replace(last, certificate=None, private_key=None)
        launcher.restart(instance, given.applied_to(last))
        typer.echo(_addresses_and_keys(instance))


@app.command("stop", cls=Command)
def stop_server(directory: Directory = DIRECTORY) -> None:
    """Stop TorchServe and all of its workers."""
    with errors_as_one_line():
        from reelscribe.server import launcher
        from reelscribe.server.instance import Instance

        typer.echo(launcher.describe_stop(launcher.stop(Instance(directory))))


@app.command("status", cls=Command)
def show_status(
    directory: Directory = DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the state of the server and of each version of each model.

    A state is stopped, starting, loading, ready, degraded (a worker is restarting, or a model has no workers) or
    failing (with the last error from the log). The exit status is 0 for ready, 3 for stopped and 1 for any other state.
    """
    with errors_as_one_line():
        import json

        from reelscribe.server.state import state_of

        state = state_of(_started_in(directory))
        typer.echo(json.dumps(asdict(state)) if as_json else "\n".join(map(printable, _described(state))))
        if state.state != "ready":
            raise typer.Exit(EXIT_STOPPED if state.state == "stopped" else EXIT_FAILED)


@app.command("logs", cls=Command)
def show_logs(
    directory: Directory = DIRECTORY,
    which: Annotated[
        str,
        typer.Option(
            metavar="|".join(LOGS),
            autocompletion=lambda: LOGS,
            help="model: output of the workers; server: log of TorchServe with that output; access: one line for each"
            " request; console: output of Java.",
        ),
    ] = "server",
    lines: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of lines to show, from the end of the log.")
    ] = 50,
    previous: Annotated[
        bool, typer.Option("--previous", help="Show the log of the server that was started there before.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new lines until Ctrl-C.")] = False,
) -> None:
    """Show the last lines of a log."""
    with errors_as_one_line():
        from reelscribe.server.logs import FILES

        instance = _started_in(directory)
        log = (instance.previous_logs if previous else instance.logs) / FILES[one_of(which, LOGS, "--which")]
        if not log.exists():
            raise UsageError(f"{log}: no such log")
        if follow:
            command = ["tail", "-n", str(lines), "-F", str(log)]
            with (
                suppress(KeyboardInterrupt),
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as tail,
            ):
                try:
                    _show_lines(tail.stdout or ())
                finally:
                    tail.kill()
        else:
            with log.open(errors="replace") as file:
                _show_lines(deque(file, maxlen=lines))


def _places_of_last_start(instance: Instance, given: GivenOptions) -> StartOptions:
    """Return the defaults of a start, with the files of the last one, and say which of its options are not kept.

    Clients that have found the server must find it again, at the ports of these settings, with the same models. What
    the server may do is said anew at each start, because a unit of systemd must be all that decides it.
    """
    options = StartOptions()
    if not instance.options.exists() or (given.config and given.model_store):
        return options
    last = StartOptions.load(instance.options)
    if given.config is None:
        typer.echo(printable(f"settings of the last start: {last.config}; --config names others"))
    if given.model_store is None and last.model_store != options.model_store.resolve():
        typer.echo(printable(f"model store of the last start: {last.model_store}; --model-store names another"))
    names = ("load_seconds", "model_api", "insecure", "certificate", "private_key", "pass_environment")
    kept = {name for name, value in vars(given).items() if value is not None}
    if lost := [name for name in names if name not in kept and getattr(last, name) != getattr(options, name)]:
        words = ", ".join(f"--{name.replace('_', '-').replace('environment', 'env')}" for name in lost)
        typer.echo(f"the last start had {words}, and this one has not; `reelscribe server restart` keeps all options")
    return replace(options, config=last.config, model_store=last.model_store)


def _show_message(text: str) -> None:
    typer.echo(printable(text, kept="\n"))


def _show_lines(lines: Iterable[str]) -> None:
    """Print lines of a log, in which anybody who sends a request may write what a terminal would obey."""
    for line in lines:
        typer.echo(printable(line.rstrip("\n"), kept="\t"))


def _started_in(directory: Path) -> Instance:
    """Return the server of a folder. Raises UsageError if there is no such folder."""
    from reelscribe.server.instance import Instance

    if not directory.is_dir():
        raise UsageError(f"{directory.absolute()}: no server was started there; give its --directory")
    return Instance(directory)


def _addresses_and_keys(instance: Instance) -> str:
    keys = f"keys in {instance.key_file}" if instance.key_file.exists() else "no keys required"
    return f"serving at {instance.address('inference_address')}, {keys}"


def _described(state: ServerState) -> list[str]:
    return [f"server: {state.state}{_reason(state)}"] + [
        f"{model.name} {model.version}: {model.state}, {model.ready} of {model.wanted} workers ready{_reason(model)}"
        for model in state.models
    ]


def _reason(state: ServerState | ModelState) -> str:
    return f": {state.error}" if state.error else ""
