"""`reelscribe caption`, `transcribe`, `annotate` and `shots`: clients, progress, interrupts and exports."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe._tasks import cancel_all
from reelscribe.cli.messages import EXIT_SOME_SOURCES_FAILED, errors_as_one_line, log_messages
from reelscribe.cli.options.audio import TranscriptOptions
from reelscribe.cli.options.cluster import ClusterOptions
from reelscribe.cli.options.run import RunOptions, beside_formats
from reelscribe.cli.options.servers import (
    CaptionModel,
    ClipModel,
    ModelRevision,
    OpenAIOptions,
    ServerOptions,
    SpeechModel,
    TranscribingModel,
    check_used,
    openai_settings,
    server_option,
)
from reelscribe.cli.options.subtitles import Cues, SubtitleOptions
from reelscribe.cli.options.summary import SummaryOptions
from reelscribe.cli.options.video import ClipOptions, FrameOptions, VideoOptions
from reelscribe.cli.parser.command import flatten, on_command_line
from reelscribe.cli.result_commands import describe_written, report_beside
from reelscribe.errors import ServerError, StoreUnavailable, UsageError, printable

if TYPE_CHECKING:  # imported when needed, as errors_as_one_line explains
    from reelscribe._track_specs import ModelSpec, TrackSpec
    from reelscribe.export.cue_rules import CueRules
    from reelscribe.export.folder import ExportFolder
    from reelscribe.reporting.plan import Plan
    from reelscribe.reporting.progress import Progress
    from reelscribe.reporting.summary import Summary
    from reelscribe.run.driver import Run

_SERVER_TRIES = 15
"""Number of times in a row that a run of --watch may find no server or no store."""


@flatten
def caption(
    run: RunOptions,
    subtitles: SubtitleOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    video: VideoOptions,
    summary: SummaryOptions,
    servers: ServerOptions,
    openai: OpenAIOptions,
    cluster: ClusterOptions,
    model: CaptionModel = None,
) -> None:
    """Caption frames or describe clips of videos; write one JSON line for each source to OUT/annotations.jsonl.

    A captioner captions one frame a second, unless an option chooses others. A video-language model describes a clip
    for each shot; use --clips if both are served, and for clips with a model behind OpenAI's API. Results of earlier
    runs into OUT are used again. Ctrl-C finishes and saves the requests in flight; a second Ctrl-C stops at once.

    Exit status: 0 if all sources succeeded; 3 if some sources failed (their records hold the reason); 1 if the run
    could not start or ended early; 2 if an option is wrong; 130 if it was interrupted. After 1 or 130, run the same
    command again to continue.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ModelSpec, PictureSpec

        settings, in_flight = openai.settings(), servers.requests_in_flight
        found = cluster.servers(servers, openai=settings)
        summary_servers = summary.servers(found, openai.model_revision)
        check_used([*found, *summary_servers], settings)
        of_clips = ModelSpec(clips.clip_options(run, video, frames.resize), found, model, in_flight)
        of_frames = ModelSpec(frames.caption_options(run, video), found, model, in_flight)
        tracks: list[TrackSpec] = [of_clips if clips.wanted else PictureSpec(of_frames, of_clips)]
        tracks += _shot_tracks(run, video, servers, cluster)
        tracks += summary.specs(run, summary_servers, model, in_flight)
        run_command(run, cluster, subtitles, None, tracks, frames.thumbnails)


@flatten
def transcribe(
    run: RunOptions,
    subtitles: SubtitleOptions,
    audio: TranscriptOptions,
    summary: SummaryOptions,
    servers: ServerOptions,
    cluster: ClusterOptions,
    model: TranscribingModel = None,
    model_revision: ModelRevision = None,
) -> None:
    """Transcribe the speech in videos and recordings; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`. A video without audio gets an empty
    transcript.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ModelSpec

        subtitles.check(word_times=audio.word_times or audio.align_model is not None)
        options = audio.speech_options(run)
        settings = openai_settings(revision=model_revision)
        found = cluster.servers(servers, openai=settings)
        summary_servers = summary.servers(found, model_revision)
        check_used([*found, *summary_servers], settings)
        in_flight = servers.requests_in_flight
        tracks: list[TrackSpec] = [ModelSpec(options, found, model, in_flight)]
        tracks += audio.speaker_specs(run, found, in_flight)
        tracks += summary.specs(run, summary_servers, None, in_flight)
        run_command(run, cluster, subtitles, None, tracks)


@flatten
def annotate(
    run: RunOptions,
    subtitles: SubtitleOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    video: VideoOptions,
    audio: TranscriptOptions,
    summary: SummaryOptions,
    servers: ServerOptions,
    openai: OpenAIOptions,
    cluster: ClusterOptions,
    model: CaptionModel = None,
    clip_model: ClipModel = None,
    speech_model: SpeechModel = None,
    speech_server: Annotated[
        list[str] | None,
        server_option(
            metavar="URL", help="Inference address of a server for the speech model, if not --server. May be repeated."
        ),
    ] = None,
    speech_key_file: Annotated[
        list[Path] | None,
        server_option(metavar="FILE", help="Key file for --speech-server. Only this option names it."),
    ] = None,
    cues: Cues = "auto",
) -> None:
    """Caption and transcribe in one pass; write one JSON line for each source to OUT/annotations.jsonl.

    One frame a second is captioned, unless an option chooses others. With --clips, clips are described instead; if
    --model names a captioner, frames are captioned, too. Earlier results, Ctrl-C and exit statuses are as
    for `reelscribe caption`. A source may lack either video or audio.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ModelSpec
        from reelscribe.server.server_discovery import find_servers

        subtitles.check(word_times=audio.word_times or audio.align_model is not None)
        caption_options, speech_options = frames.caption_options(run, video), audio.speech_options(run)
        settings = openai.settings()
        caption_servers = cluster.servers(servers, speech_server, settings)
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = (
            find_servers(speech_server, speech_key_file, find_keys=False, openai=settings)
            if speech_server
            else caption_servers
        )
        summary_servers = summary.servers(caption_servers, openai.model_revision)
        check_used([*caption_servers, *speech_servers, *summary_servers], settings)
        in_flight = servers.requests_in_flight
        tracks: list[TrackSpec] = [ModelSpec(speech_options, speech_servers, speech_model, in_flight)]
        tracks += audio.speaker_specs(run, speech_servers, in_flight)
        if clips.wanted or clip_model:
            clip_options = clips.clip_options(run, video, frames.resize)
            tracks.insert(0, ModelSpec(clip_options, caption_servers, clip_model, in_flight))
        if model or not (clips.wanted or clip_model):
            tracks.insert(0, ModelSpec(caption_options, caption_servers, model, in_flight))
        tracks += _shot_tracks(run, video, servers, cluster)
        tracks += summary.specs(run, summary_servers, clip_model or model, in_flight)
        run_command(run, cluster, subtitles, cues, tracks, frames.thumbnails)


@flatten
def shots(
    context: typer.Context,
    run: RunOptions,
    subtitles: SubtitleOptions,
    video: VideoOptions,
    servers: ServerOptions,
    cluster: ClusterOptions,
) -> None:
    """Find the shots of videos; write one JSON line for each source to OUT/annotations.jsonl.

    No server is needed, unless --shot-detector names a model. Earlier results, Ctrl-C and exit statuses are as for
    `reelscribe caption`.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ShotSpec

        tracks: list[TrackSpec] = [*_shot_tracks(run, video, servers, cluster)]
        if not tracks and (given := on_command_line(context, ServerOptions)):
            raise UsageError(f"{given[0]}: expected --shot-detector transnetv2 with it; no server is asked otherwise")
        run_command(run, cluster, subtitles, None, tracks or [ShotSpec(video.shot_options(run))])


def _shot_tracks(
    run: RunOptions, video: VideoOptions, servers: ServerOptions, cluster: ClusterOptions
) -> list[ModelSpec]:
    """Return the track that finds shots with a model; none if our own detector finds them."""
    from reelscribe._track_specs import ModelSpec

    if not video.asks_shot_model:
        return []
    found = cluster.servers(servers)
    return [ModelSpec(video.learned_shot_options(run), found, video.shot_model, servers.requests_in_flight)]


def run_command(
    options: RunOptions,
    cluster: ClusterOptions,
    subtitles: SubtitleOptions,
    cues: str | None,
    tracks: Sequence[TrackSpec],
    thumbnails: int | None = 0,
) -> None:
    """Annotate all sources, report on standard error, and export to the formats of --format and --beside.

    Args:
        options: The sources, the output folder, and how the run reports.
        cluster: Whether the run is over many machines.
        subtitles: How much exported subtitles show at once, and for how long.
        cues: What they show; None for what is there of each source, with speech first.
        tracks: What the run makes of each source, at least one track.
        thumbnails: Number of thumbnails of each video; None for one of each shot, or 12.

    Raises:
        UsageError: An option is wrong.
        ServerError: The model is not served, or its servers stopped answering.
        OutputError: The results cannot be saved.
        KeyboardInterrupt: The run was interrupted. Its results so far have been saved.
        typer.Exit: The run is complete, and some sources failed, or files beside them could not be written.
    """
    from stamina.instrumentation import set_on_retry_hooks

    from reelscribe.export.formats import check_formats
    from reelscribe.export.speakers import read_speaker_names

    check_formats(options.formats or [])
    _ = options.place  # is checked before anything is asked
    read_speaker_names(options.folder)  # what is wrong with it is said before hours of work
    beside = beside_formats(options.beside, options.formats, options.overwrite)
    rules = subtitles.rules(cues or "auto")
    cluster.check()
    if options.watch and (options.dry_run or options.limit):
        raise UsageError("--watch: expected it without --dry-run and --limit, which are for one run")
    progress = _progress(options)
    set_on_retry_hooks([])  # stamina would log each retry; the client logs once that it waits
    if options.dry_run:
        plan = asyncio.run(_plan(options, cluster, tracks))
        if options.json_log:
            progress.announce(plan)
        else:
            typer.echo(printable(str(plan)))
        return

    async def annotate(interrupts: _Interrupts | None = None) -> Summary:
        with _metrics_served(progress, options.metrics_port) as display, log_messages(display.message):
            return await _run(options, cluster, tracks, display, thumbnails, interrupts or _Interrupts())

    finish = partial(_finish, options, beside, progress, rules)
    try:
        if options.watch:
            status = asyncio.run(_watch(options, tracks, annotate, finish))
        else:
            status = finish(asyncio.run(annotate()))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if status:
        raise typer.Exit(status)


def _finish(
    options: RunOptions,
    beside: Sequence[str],
    progress: Progress,
    rules: CueRules,
    summary: Summary,
) -> int:
    """Report what a run has done, and export if it is complete; return the exit status."""
    from reelscribe.export.bucket_copy import send_exports

    exporting = bool(options.formats or beside) and not summary.interrupted
    _report(options, progress, summary, exporting=exporting)
    if summary.interrupted:
        raise KeyboardInterrupt
    with log_messages(progress.message):
        is_whole = _export(options, beside, rules, progress)
    _, bucket = options.place
    if bucket and exporting:
        send_exports(bucket, options.folder)
    return 0 if is_whole and not summary.failed else EXIT_SOME_SOURCES_FAILED


async def _watch(
    options: RunOptions,
    tracks: Sequence[TrackSpec],
    annotate: Callable[[_Interrupts], Awaitable[Summary]],
    finish: Callable[[Summary], int],
) -> int:
    """Run whenever there is something new, until interrupted; return the exit status of the last run.

    A server that is gone between two runs is waited for as long as within one.
    """
    from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES
    from reelscribe.run.watching import Watch

    suffixes = MEDIA_SUFFIXES if any(track.needs_audio for track in tracks) else VIDEO_SUFFIXES
    watch, interrupts = Watch(options.names, suffixes, options.selection), _Interrupts()
    told = asyncio.create_task(interrupts.told.wait())
    status: int | None = None
    refused = 0
    while True:
        interrupts.stops(lambda: None, lambda text: None)
        gc.collect()  # the objects of a run form cycles, and keep the memory of its decode processes
        waiting = asyncio.create_task(watch.wait())
        await asyncio.wait((waiting, told), return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            await cancel_all([waiting])
            return status or 0
        try:
            waiting.result()
            outcome = await annotate(interrupts)
        except (ServerError, StoreUnavailable) as error:
            refused += 1
            if status is None or refused > _SERVER_TRIES:
                raise
            typer.echo(f"reelscribe: {printable(str(error))}; trying again in a minute", err=True)
            watch.look_again()
        else:
            status, refused = await asyncio.to_thread(finish, outcome), 0  # so that signals are seen meanwhile


def _export(options: RunOptions, beside: Sequence[str], rules: CueRules, progress: Progress) -> bool:
    """Export to the formats of --format and --beside; return whether every file could be written."""
    from reelscribe.export.beside import write_beside
    from reelscribe.export.formats import export
    from reelscribe.reporting.progress import JsonLines
    from reelscribe.results.annotations import NAME

    failures: list[str] = []
    if options.formats:
        lines: list[str] = []
        exported = export(
            options.folder / NAME,
            options.folder,
            options.formats,
            rules,
            tell=lines.append,
            drop_doubtful=options.drop_doubtful,
            overwrite=options.overwrite,
        )
        _report_export(options, progress, exported, lines)
        failures += exported.failures  # the log has them
    if not beside:
        return not failures
    done = write_beside(
        options.folder / NAME,
        options.folder,
        beside,
        rules,
        overwrite=options.overwrite,
        drop_doubtful=options.drop_doubtful,
    )
    if isinstance(progress, JsonLines):
        progress.event("beside", **asdict(done))
    else:
        report_beside(done, quiet=options.quiet)
    return not (failures or done.failures)


def _report(options: RunOptions, progress: Progress, summary: Summary, *, exporting: bool) -> None:
    """Print what the run has done, before anything is exported, so that a failing export does not hide it."""
    from rich.console import Console

    from reelscribe.reporting.progress import JsonLines
    from reelscribe.reporting.summary import summary_table
    from reelscribe.results.annotations import NAME

    if isinstance(progress, JsonLines):
        progress.event("summary", **asdict(summary), annotations=str(options.folder / NAME))
    elif not options.quiet:
        table = summary_table(
            summary.snapshot,
            options.folder,
            interrupted=summary.interrupted,
            replaced_processes=summary.replaced_processes,
            exporting=exporting,
        )
        Console(highlight=False).print(table)


def _report_export(options: RunOptions, progress: Progress, exported: ExportFolder, lines: Sequence[str]) -> None:
    """Print which files the run has exported, and lines about them."""
    from reelscribe.reporting.progress import JsonLines

    if isinstance(progress, JsonLines):
        kept = {"kept": [*map(str, exported.kept)]} if exported.kept else {}
        progress.event("export", exported=[*map(str, exported.written)], **kept)
    elif not options.quiet:
        for line in (describe_written(exported.written, options.folder, exported.unchanged), *lines):
            typer.echo(printable(line))


async def _run(
    options: RunOptions,
    cluster: ClusterOptions,
    tracks: Sequence[TrackSpec],
    progress: Progress,
    thumbnails: int | None,
    interrupts: _Interrupts,
) -> Summary:
    async with _opened(options, cluster, tracks, progress, thumbnails) as run:
        interrupts.stops(run.stop, progress.message)
        return await run.run(options.names)


async def _plan(options: RunOptions, cluster: ClusterOptions, tracks: Sequence[TrackSpec]) -> Plan:
    """Find out what the run would do."""
    from reelscribe.export.bucket_copy import ledger_folder

    with ledger_folder(*options.place) as folder:
        async with _opened(replace(options, out=str(folder), work_dir=None), cluster, tracks) as run:
            return await run.plan(options.names)


@asynccontextmanager
async def _opened(
    options: RunOptions,
    cluster: ClusterOptions,
    specs: Sequence[TrackSpec],
    progress: Progress | None = None,
    thumbnails: int | None = 0,
) -> AsyncGenerator[Run, None]:
    """Yield the run, on this machine with its clients open, or on the nodes of a cluster."""
    from reelscribe.run.driver import Run

    async with AsyncExitStack() as stack:
        archives = cluster.archives()
        resolved = specs if archives else [await spec.resolved() for spec in specs]
        yield Run(
            [await spec.open(stack) for spec in resolved] if cluster.ray is None else cluster.nodes(resolved, archives),
            options.out,
            work_dir=options.work_dir,
            progress=progress,
            selection=options.selection,
            limit=options.limit,
            thumbnails=thumbnails,
            spool=options.spool_options,
        )


def _progress(options: RunOptions) -> Progress:
    from rich.console import Console

    from reelscribe.reporting.progress import ErrorLines, JsonLines, display_for

    if options.quiet and options.json_log:
        raise UsageError("--quiet and --json-log: expected one of them, got both")
    console = Console(stderr=True)
    if options.json_log:
        return JsonLines(console)
    if options.quiet:
        return ErrorLines(console)
    return display_for(console)


def _metrics_served(progress: Progress, port: int | None) -> AbstractContextManager[Progress]:
    if port is None:
        return nullcontext(progress)
    from reelscribe.reporting.metrics import metrics_served

    return metrics_served(progress, port)


class _Interrupts:
    """At the first SIGINT or SIGTERM, what is in progress is finished; at the second, the task is cancelled.

    One belongs to an event loop until its end: handlers of signals that come and go with runs would lose those between.
    """

    def __init__(self) -> None:
        self.told = asyncio.Event()
        """Is set at the first signal."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._stop: Callable[[], object] = task.cancel  # nothing is in progress yet
        self._show: Callable[[str], None] = lambda text: None
        for sig in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sig, self._interrupted)

    def stops(self, stop: Callable[[], object], show: Callable[[str], None]) -> None:
        """Set what stops what is in progress from now on, and what shows a message."""
        self._stop, self._show = stop, show
        if self.told.is_set():
            stop()

    def _interrupted(self) -> None:
        if self.told.is_set():
            self._task.cancel()
            return
        self.told.set()
        self._show("finishing what is in progress; interrupt again to stop at once")
        self._stop()
