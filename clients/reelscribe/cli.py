"""The `reelscribe` command."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer

from reelscribe import __version__
from reelscribe.errors import ReelscribeError, UsageError

if TYPE_CHECKING:  # imports wait until needed: they may be missing, and take time
    from reelscribe.endpoint import Server
    from reelscribe.progress import Progress

T = TypeVar("T")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_SOURCES_FAILED = 3
EXIT_INTERRUPTED = 130

DIRECTORY = Path(".server")
LOCAL_KEYS = DIRECTORY / "key_file.json"
CONFIG = Path("config.properties")
MODEL_STORE = Path("model_store")
LOAD_SECONDS = 900.0
INFERENCE_ADDRESS = "http://127.0.0.1:8080"
MANAGEMENT_ADDRESS = "http://127.0.0.1:8081"

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
        raise typer.Exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED) from None
    except ModuleNotFoundError as error:
        typer.echo(
            f"reelscribe: the package {error.name} is missing; in the project's folder, pip install '.[client]' to"
            " caption or '.[server]' to build archives and serve them",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        typer.echo("reelscribe: interrupted; the same command goes on", err=True)
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
    out: Annotated[Path, typer.Option(help="Folder for annotations.jsonl and the ledger of what is done.")],
    server: Annotated[
        list[str] | None,
        typer.Option(help=f"Inference address of a server; several share the load.  [default: {INFERENCE_ADDRESS}]"),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model on the server.")] = "captioner",
    key_file: Annotated[
        list[Path] | None,
        typer.Option(help="A server's key_file.json: one for all, or one each; .server's for the one here."),
    ] = None,
    management: Annotated[
        str | None, typer.Option(help="Management address of the one server; keys are renewed there.")
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Caption frames 0, N, 2N, ...; by default, all.")] = None,
    fps: Annotated[float | None, typer.Option(help="Caption so many frames a second of presentation time.")] = None,
    frames: Annotated[int | None, typer.Option(help="Caption so many frames, evenly spread: even, 4 to 768.")] = None,
    keyframes: Annotated[bool, typer.Option("--keyframes", help="Caption keyframes only.")] = False,
    start: Annotated[float | None, typer.Option(help="Seconds from the first frame on to leave out.")] = None,
    end: Annotated[float | None, typer.Option(help="Seconds from the first frame on to stop at.")] = None,
    resize: Annotated[str, typer.Option(help="exact, planes or fast: README.")] = "fast",
    reuse: Annotated[bool, typer.Option("--reuse", help="Nearly equal frames take over a caption.")] = False,
    frames_per_request: Annotated[int, typer.Option(min=1, help="At most; fewer if they exceed 8 MB.")] = 32,
    stream: Annotated[bool, typer.Option(help="Send frames while their source is still being read.")] = True,
    requests_in_flight: Annotated[int, typer.Option(min=1, help="At most; fewer where more do not help.")] = 32,
    decode_workers: Annotated[
        int, typer.Option(min=1, envvar="REELSCRIBE_DECODE_WORKERS", help="Processes that decode.")
    ] = 2,
    stall_seconds: Annotated[
        float, typer.Option(min=2, help="A decode process that does not get on for so long is ended.")
    ] = 60,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try sources that failed before again.")] = False,
    format: Annotated[list[str] | None, typer.Option(help="Also write vtt, srt, csv or parquet.")] = None,  # noqa: A002 - the option's name
    quiet: Annotated[bool, typer.Option("--quiet", help="Tell errors only.")] = False,
    json_log: Annotated[bool, typer.Option("--json-log", help="Progress as lines of JSON.")] = False,
) -> None:
    """Caption the frames of videos; one JSON line a source in OUT/annotations.jsonl.

    What an earlier run into OUT has done is not done again. Ctrl-C finishes what is being captioned and saves it;
    twice, it stops at once.

    Exit status 0: all sources captioned; 3: done, but some sources failed (their records say why); 1: the run could not
    be done, or ended early; 2: an option is wrong; 130: interrupted. After 1 and 130 the same command goes on.
    """
    with _errors_as_one_line():
        from reelscribe.bulk import CaptionRun, Summary
        from reelscribe.client import CaptionClient
        from reelscribe.exports import check_formats, export
        from reelscribe.media import Resize
        from reelscribe.options import CaptionOptions
        from reelscribe.sampling import Sampling
        from reelscribe.writers import NAME

        check_formats(formats := format or [])
        options = CaptionOptions(
            sampling=Sampling(every, fps, frames, keyframes, start, end),
            resize=_one_of(resize, get_args(Resize), "--resize"),
            reuse=reuse,
            frames_per_request=frames_per_request,
            stream=stream,
            decode_workers=decode_workers,
            stall_seconds=stall_seconds,
            retry_failed=retry_failed,
        )
        if quiet and json_log:
            raise UsageError("--quiet and --json-log: expected one of them, got both")
        progress = _progress(quiet=quiet, json_log=json_log)

        async def run() -> Summary:
            async with CaptionClient(
                _servers(server or [INFERENCE_ADDRESS], key_file, management),
                model,
                requests_in_flight=requests_in_flight,
                say=progress.say,
            ) as client:
                caption_run = CaptionRun(client, out, options, progress=progress)
                _stop_on_interrupt(caption_run.stop, progress.say)
                return await caption_run.run(sources)

        try:
            summary = asyncio.run(run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        tell = progress.say if json_log else typer.echo
        written = export(out / NAME, out, formats) if formats and not summary.interrupted else []
        for text in [
            f"{summary}: {out if summary.interrupted else out / NAME}",
            *(f"wrote {path}" for path in written),
        ]:
            if not quiet:
                tell(text)
        if summary.interrupted:
            raise KeyboardInterrupt
    if summary.failed:
        raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def _one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    for choice in allowed:
        if value == choice:
            return choice
    raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value!r}")


def _progress(*, quiet: bool, json_log: bool) -> Progress:
    from reelscribe.progress import Failures, JsonLines, Lines, TerminalBars

    if json_log:
        return JsonLines()
    if quiet:
        return Failures()
    return TerminalBars() if sys.stderr.isatty() else Lines()


def _servers(urls: list[str], key_files: list[Path] | None, management: str | None) -> list[Server]:
    """The servers, each with its key file."""
    from reelscribe.credentials import Credentials
    from reelscribe.endpoint import Server

    if key_files is None:
        # The key of the server here is for no other one.
        local = urls == [INFERENCE_ADDRESS] and LOCAL_KEYS.exists()
        key_files, management = ([LOCAL_KEYS], management or MANAGEMENT_ADDRESS) if local else ([], management)
    if management and len(urls) > 1:
        raise UsageError("--management: expected one --server with it; keys of several are not renewed")
    if len(key_files) not in (0, 1, len(urls)):
        raise UsageError(f"--key-file: expected one for all, or one for each --server, got {len(key_files)}")
    keys = [Credentials(path, management) for path in key_files]
    return [Server(url, keys[k % len(keys)] if keys else None) for k, url in enumerate(urls)]


def _stop_on_interrupt(stop: Callable[[], None], say: Callable[[str], None]) -> None:
    """Ctrl-C, or a service manager's SIGTERM, stops kindly; the second one at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals = (signal.SIGINT, signal.SIGTERM)

    def at_once() -> None:
        task.cancel()

    def kindly() -> None:
        for sig in signals:
            loop.add_signal_handler(sig, at_once)
        say("finishing what is being captioned; interrupt again to stop at once")
        stop()

    for sig in signals:
        loop.add_signal_handler(sig, kindly)


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="Folder of a run.")],
    format: Annotated[list[str], typer.Option(help="vtt, srt, csv or parquet; several are allowed.")],  # noqa: A002 - the option's name
) -> None:
    """Write the captions of a finished run as subtitles or tables too."""
    with _errors_as_one_line():
        from reelscribe import exports
        from reelscribe.writers import NAME

        for path in exports.export(out / NAME, out, format):
            typer.echo(f"wrote {path}")


@app.command()
def status(out: Annotated[Path, typer.Argument(help="Folder of a run.")]) -> None:
    """How the run into a folder gets on, or how it ended."""
    with _errors_as_one_line():
        from reelscribe.ledger import LedgerReader, is_locked
        from reelscribe.meter import Snapshot
        from reelscribe.progress import describe

        with LedgerReader(out) as ledger:
            run = ledger.run()
        if run is None:
            raise UsageError(f"{out}: no run has got so far as to say how it gets on")
        state, pid = run.pop("state"), run.pop("pid")
        snapshot = Snapshot(**run)
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
