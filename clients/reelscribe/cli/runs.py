"""`reelscribe caption`, `transcribe` and `annotate`, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from reelscribe.cli._errors import EXIT_SOME_SOURCES_FAILED, errors_as_one_line
from reelscribe.cli._run import INFERENCE_ADDRESS, CommandRun, Served, one_of, servers_at
from reelscribe.errors import UsageError

if TYPE_CHECKING:  # imports wait until needed: they may be missing, and take time
    from reelscribe.run.options import CaptionOptions, SpeechOptions


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
        served = Served(servers_at(server, key_file, management), model, requests_in_flight)
        failed = CommandRun(sources, out, format or [], "captions", quiet, json_log, metrics_port).go(
            (served, options), None
        )
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
        served = Served(servers_at(server, key_file, management), model, requests_in_flight)
        failed = CommandRun(sources, out, format or [], "transcript", quiet, json_log, metrics_port).go(
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
        servers = servers_at(server, key_file, management)
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = servers_at(speech_server, speech_key_file, None) if speech_server else servers
        failed = CommandRun(sources, out, format or [], cues, quiet, json_log, metrics_port).go(
            (Served(servers, model, requests_in_flight), caption_options),
            (Served(speech_servers, speech_model, requests_in_flight), speech_options),
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
    from reelscribe.contract.frames import Resize
    from reelscribe.decode.sampling import Sampling
    from reelscribe.run.options import CaptionOptions

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
    from reelscribe.contract.chunking import Cutting
    from reelscribe.contract.speech import TranscriptionOptions
    from reelscribe.run.options import SpeechOptions

    return SpeechOptions(
        transcription=TranscriptionOptions(language, task, word_times),
        cutting=Cutting(search_seconds, window_seconds),
        silence_db=silence_db,
        vad=vad,
        chunks_per_request=chunks_per_request,
        audio_workers=audio_workers,
        stall_seconds=stall_seconds,
        retry_failed=retry_failed,
    )
