"""`reelscribe caption`, `transcribe` and `annotate`: their options, and the run that they stand for."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer

from reelscribe.cli_errors import EXIT_SOME_SOURCES_FAILED, errors_as_one_line
from reelscribe.errors import UsageError

if TYPE_CHECKING:  # imports wait until needed: they may be missing, and take time
    from reelscribe.bulk import Captions, Summary, Transcripts
    from reelscribe.endpoint import Server
    from reelscribe.options import CaptionOptions, SpeechOptions
    from reelscribe.progress import Progress

T = TypeVar("T")

LOCAL_KEYS = Path(".server/key_file.json")
INFERENCE_ADDRESS = "http://127.0.0.1:8080"
MANAGEMENT_ADDRESS = "http://127.0.0.1:8081"

Sources = Annotated[list[str], typer.Argument(help="Media files, folders of them, or globs.")]
Out = Annotated[Path, typer.Option(help="Folder for annotations.jsonl and the ledger of what is done.")]
Servers = Annotated[
    list[str] | None,
    typer.Option(help=f"Inference address of a server; several share the load.  [default: {INFERENCE_ADDRESS}]"),
]
KeyFiles = Annotated[
    list[Path] | None,
    typer.Option(help="A server's key_file.json: one for all, or one each; .server's for the one here."),
]
Management = Annotated[str | None, typer.Option(help="Management address of the one server; keys are renewed there.")]
CaptionModel = Annotated[str, typer.Option(help="Name of the captioner on the server.")]
SpeechModel = Annotated[str, typer.Option(help="Name of the speech model on the server.")]
RequestsInFlight = Annotated[int, typer.Option(min=1, help="At most, for each model; fewer where more do not help.")]
StallSeconds = Annotated[float, typer.Option(min=2, help="A decode process that does not get on for so long is ended.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try sources that failed before again.")]
Format = Annotated[list[str] | None, typer.Option(help="Also write vtt, srt, csv or parquet.")]
Cues = Annotated[str, typer.Option(help="What subtitles show: captions, transcript or both.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Tell errors only.")]
JsonLog = Annotated[bool, typer.Option("--json-log", help="Progress as lines of JSON.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve the run's figures to Prometheus, at 127.0.0.1:PORT/metrics."),
]

Every = Annotated[int | None, typer.Option(min=1, help="Caption frames 0, N, 2N, ...; by default, all.")]
Fps = Annotated[float | None, typer.Option(help="Caption so many frames a second of presentation time.")]
Frames = Annotated[int | None, typer.Option(help="Caption so many frames, evenly spread: even, 4 to 768.")]
Keyframes = Annotated[bool, typer.Option("--keyframes", help="Caption keyframes only.")]
Start = Annotated[float | None, typer.Option(help="Seconds of pictures, from the first frame on, to leave out.")]
End = Annotated[float | None, typer.Option(help="Seconds of pictures, from the first frame on, to stop at.")]
HowToResize = Annotated[str, typer.Option(help="exact, planes or fast: README.")]
Reuse = Annotated[bool, typer.Option("--reuse", help="Nearly equal frames take over a caption.")]
FramesPerRequest = Annotated[int, typer.Option(min=1, help="At most; fewer if they exceed 8 MB.")]
Stream = Annotated[bool, typer.Option(help="Send frames while their source is still being read.")]
DecodeWorkers = Annotated[
    int, typer.Option(min=1, envvar="REELSCRIBE_DECODE_WORKERS", help="Processes that decode pictures.")
]

Language = Annotated[str | None, typer.Option(help="Of all that is said, like en; by default it is detected.")]
Task = Annotated[str, typer.Option(help="transcribe, or translate: into English.")]
WordTimes = Annotated[bool, typer.Option("--word-times", help="Also tell when each word was said.")]
SearchSeconds = Annotated[
    float, typer.Option(min=0, help="Before a chunk is full, so far back a quiet point is looked for to cut it at.")
]
WindowSeconds = Annotated[float, typer.Option(help="A point is as quiet as so many seconds around it.")]
SilenceDb = Annotated[
    float, typer.Option(max=0, help="Chunks that are nowhere so loud, in dB of full scale, are not sent.")
]
Vad = Annotated[
    bool, typer.Option("--vad", help="Nor are chunks in which a detector hears no voice: needs reelscribe\\[vad].")
]
ChunksPerRequest = Annotated[int, typer.Option(min=1, help="At most; fewer if they exceed 8 MB.")]
AudioWorkers = Annotated[
    int, typer.Option(min=1, envvar="REELSCRIBE_AUDIO_WORKERS", help="Processes that decode sound.")
]


def caption(
    sources: Sources,
    out: Out,
    server: Servers = None,
    model: CaptionModel = "captioner",
    key_file: KeyFiles = None,
    management: Management = None,
    every: Every = None,
    fps: Fps = None,
    frames: Frames = None,
    keyframes: Keyframes = False,
    start: Start = None,
    end: End = None,
    resize: HowToResize = "fast",
    reuse: Reuse = False,
    frames_per_request: FramesPerRequest = 32,
    stream: Stream = True,
    requests_in_flight: RequestsInFlight = 32,
    decode_workers: DecodeWorkers = 2,
    stall_seconds: StallSeconds = 60,
    retry_failed: RetryFailed = False,
    format: Format = None,  # noqa: A002 - the option's name
    quiet: Quiet = False,
    json_log: JsonLog = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Caption the frames of videos; one JSON line a source in OUT/annotations.jsonl.

    What an earlier run into OUT has done is not done again. Ctrl-C finishes what is being worked on and saves it;
    twice, it stops at once.

    Exit status 0: all sources done; 3: done, but some sources failed (their records say why); 1: the run could not be
    done, or ended early; 2: an option is wrong; 130: interrupted. After 1 and 130 the same command goes on.
    """
    with errors_as_one_line():
        options = _caption_options(
            sampling=(every, fps, frames, keyframes, start, end),
            resize=resize,
            reuse=reuse,
            frames_per_request=frames_per_request,
            stream=stream,
            decode_workers=decode_workers,
            stall_seconds=stall_seconds,
            retry_failed=retry_failed,
        )
        served = _Served(_servers(server, key_file, management), model, requests_in_flight)
        failed = _Run(sources, out, format or [], "captions", quiet, json_log, metrics_port).go((served, options), None)
    if failed:
        raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def transcribe(
    sources: Sources,
    out: Out,
    server: Servers = None,
    model: SpeechModel = "speech",
    key_file: KeyFiles = None,
    management: Management = None,
    language: Language = None,
    task: Task = "transcribe",
    word_times: WordTimes = False,
    search_seconds: SearchSeconds = 5.0,
    window_seconds: WindowSeconds = 0.3,
    silence_db: SilenceDb = -60.0,
    vad: Vad = False,
    chunks_per_request: ChunksPerRequest = 8,
    requests_in_flight: RequestsInFlight = 32,
    audio_workers: AudioWorkers = 2,
    stall_seconds: StallSeconds = 60,
    retry_failed: RetryFailed = False,
    format: Format = None,  # noqa: A002 - the option's name
    quiet: Quiet = False,
    json_log: JsonLog = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Transcribe what is said in videos and recordings; one JSON line a source in OUT/annotations.jsonl.

    Runs, interrupts and exit statuses are those of `reelscribe caption`. A video without sound has an empty transcript.
    """
    with errors_as_one_line():
        options = _speech_options(
            language=language,
            task=task,
            word_times=word_times,
            search_seconds=search_seconds,
            window_seconds=window_seconds,
            silence_db=silence_db,
            vad=vad,
            chunks_per_request=chunks_per_request,
            audio_workers=audio_workers,
            stall_seconds=stall_seconds,
            retry_failed=retry_failed,
        )
        served = _Served(_servers(server, key_file, management), model, requests_in_flight)
        failed = _Run(sources, out, format or [], "transcript", quiet, json_log, metrics_port).go(
            None, (served, options)
        )
    if failed:
        raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def annotate(
    sources: Sources,
    out: Out,
    server: Servers = None,
    speech_server: Annotated[
        list[str] | None, typer.Option(help="The same for the speech model, if it is served elsewhere.")
    ] = None,
    model: CaptionModel = "captioner",
    speech_model: SpeechModel = "speech",
    key_file: KeyFiles = None,
    speech_key_file: Annotated[list[Path] | None, typer.Option(help="The same for --speech-server.")] = None,
    management: Management = None,
    every: Every = None,
    fps: Fps = None,
    frames: Frames = None,
    keyframes: Keyframes = False,
    start: Start = None,
    end: End = None,
    resize: HowToResize = "fast",
    reuse: Reuse = False,
    frames_per_request: FramesPerRequest = 32,
    stream: Stream = True,
    language: Language = None,
    task: Task = "transcribe",
    word_times: WordTimes = False,
    search_seconds: SearchSeconds = 5.0,
    window_seconds: WindowSeconds = 0.3,
    silence_db: SilenceDb = -60.0,
    vad: Vad = False,
    chunks_per_request: ChunksPerRequest = 8,
    requests_in_flight: RequestsInFlight = 32,
    decode_workers: DecodeWorkers = 2,
    audio_workers: AudioWorkers = 2,
    stall_seconds: StallSeconds = 60,
    retry_failed: RetryFailed = False,
    format: Format = None,  # noqa: A002 - the option's name
    cues: Cues = "both",
    quiet: Quiet = False,
    json_log: JsonLog = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Caption and transcribe in one pass; one JSON line a source in OUT/annotations.jsonl.

    Runs, interrupts and exit statuses are those of `reelscribe caption`. Pictures without sound and sound without
    pictures are fine.
    """
    with errors_as_one_line():
        caption_options = _caption_options(
            sampling=(every, fps, frames, keyframes, start, end),
            resize=resize,
            reuse=reuse,
            frames_per_request=frames_per_request,
            stream=stream,
            decode_workers=decode_workers,
            stall_seconds=stall_seconds,
            retry_failed=retry_failed,
        )
        speech_options = _speech_options(
            language=language,
            task=task,
            word_times=word_times,
            search_seconds=search_seconds,
            window_seconds=window_seconds,
            silence_db=silence_db,
            vad=vad,
            chunks_per_request=chunks_per_request,
            audio_workers=audio_workers,
            stall_seconds=stall_seconds,
            retry_failed=retry_failed,
        )
        servers = _servers(server, key_file, management)
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = _servers(speech_server, speech_key_file, None) if speech_server else servers
        failed = _Run(sources, out, format or [], cues, quiet, json_log, metrics_port).go(
            (_Served(servers, model, requests_in_flight), caption_options),
            (_Served(speech_servers, speech_model, requests_in_flight), speech_options),
        )
    if failed:
        raise typer.Exit(EXIT_SOME_SOURCES_FAILED)


def _caption_options(
    *,
    sampling: tuple[int | None, float | None, int | None, bool, float | None, float | None],
    resize: str,
    reuse: bool,
    frames_per_request: int,
    stream: bool,
    decode_workers: int,
    stall_seconds: float,
    retry_failed: bool,
) -> CaptionOptions:
    from reelscribe.media import Resize
    from reelscribe.options import CaptionOptions
    from reelscribe.sampling import Sampling

    return CaptionOptions(
        sampling=Sampling(*sampling),
        resize=one_of(resize, get_args(Resize), "--resize"),
        reuse=reuse,
        frames_per_request=frames_per_request,
        stream=stream,
        decode_workers=decode_workers,
        stall_seconds=stall_seconds,
        retry_failed=retry_failed,
    )


def _speech_options(
    *,
    language: str | None,
    task: str,
    word_times: bool,
    search_seconds: float,
    window_seconds: float,
    silence_db: float,
    vad: bool,
    chunks_per_request: int,
    audio_workers: int,
    stall_seconds: float,
    retry_failed: bool,
) -> SpeechOptions:
    from reelscribe.chunking import Cutting
    from reelscribe.options import SpeechOptions
    from reelscribe.speech import Asked

    return SpeechOptions(
        asked=Asked(language, task, word_times),
        cutting=Cutting(search_seconds, window_seconds),
        silence_db=silence_db,
        vad=vad,
        chunks_per_request=chunks_per_request,
        audio_workers=audio_workers,
        stall_seconds=stall_seconds,
        retry_failed=retry_failed,
    )


@dataclass(frozen=True)
class _Served:
    """Where a model is served."""

    servers: list[Server]
    model: str
    requests_in_flight: int


@dataclass(frozen=True)
class _Run:
    """What the three commands have in common."""

    sources: list[str]
    out: Path
    formats: list[str]
    cues: str
    quiet: bool
    json_log: bool
    metrics_port: int | None

    def go(self, captions: tuple[_Served, CaptionOptions] | None, speech: tuple[_Served, SpeechOptions] | None) -> int:
        """Run, tell, export; returns how many sources failed. Raises KeyboardInterrupt if it was interrupted."""
        from stamina.instrumentation import set_on_retry_hooks

        from reelscribe.exports import CUES, check_formats, export
        from reelscribe.writers import NAME

        check_formats(self.formats)
        cues = one_of(self.cues, CUES, "--cues")
        if self.quiet and self.json_log:
            raise UsageError("--quiet and --json-log: expected one of them, got both")
        progress = _progress(quiet=self.quiet, json_log=self.json_log)
        set_on_retry_hooks([])  # which would log each new try; the client says once that it waits
        try:
            with self._watched(progress) as watched:
                summary = asyncio.run(self._run(captions, speech, watched))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        exporting = self.formats and not summary.interrupted
        written = export(self.out / NAME, self.out, self.formats, cues) if exporting else []
        tell = progress.say if self.json_log else typer.echo
        for text in [
            f"{summary}: {self.out if summary.interrupted else self.out / NAME}",
            *(f"wrote {path}" for path in written),
        ]:
            if not self.quiet:
                tell(text)
        if summary.interrupted:
            raise KeyboardInterrupt
        return summary.failed

    def _watched(self, progress: Progress) -> AbstractContextManager[Progress]:
        if self.metrics_port is None:
            return nullcontext(progress)
        from reelscribe.run_metrics import metrics_served

        return metrics_served(progress, self.metrics_port)

    async def _run(
        self,
        captions: tuple[_Served, CaptionOptions] | None,
        speech: tuple[_Served, SpeechOptions] | None,
        progress: Progress,
    ) -> Summary:
        from reelscribe.bulk import BulkRun, Captions, Transcripts
        from reelscribe.client import CaptionClient, SpeechClient

        wanted: list[Captions | Transcripts] = []
        async with AsyncExitStack() as stack:
            if captions:
                at, options = captions
                client = CaptionClient(at.servers, at.model, requests_in_flight=at.requests_in_flight, say=progress.say)
                wanted.append(Captions(await stack.enter_async_context(client), options))
            if speech:
                at, speech_options = speech
                speech_client = SpeechClient(
                    at.servers, at.model, requests_in_flight=at.requests_in_flight, say=progress.say
                )
                wanted.append(Transcripts(await stack.enter_async_context(speech_client), speech_options))
            run = BulkRun(wanted, self.out, progress=progress)
            _stop_on_interrupt(run.stop, progress.say)
            return await run.run(self.sources)


def one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    """The one of `allowed` that `value` is. Raises UsageError."""
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


def _servers(urls: list[str] | None, key_files: list[Path] | None, management: str | None) -> list[Server]:
    """The servers, each with its key file."""
    from reelscribe.credentials import Credentials
    from reelscribe.endpoint import Server

    urls = urls or [INFERENCE_ADDRESS]
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
        say("finishing what is being worked on; interrupt again to stop at once")
        stop()

    for sig in signals:
        loop.add_signal_handler(sig, kindly)
