"""`reelscribe caption`, `transcribe`, `annotate` and `shots`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reelscribe.cli._run import run_command
from reelscribe.cli.messages import errors_as_one_line
from reelscribe.cli.options.audio import AudioOptions
from reelscribe.cli.options.cluster import ClusterOptions
from reelscribe.cli.options.run import Cues, RunOptions
from reelscribe.cli.options.servers import (
    CaptionModel,
    ClipModel,
    ServerOptions,
    SpeechModel,
    TranscribingModel,
    server_option,
)
from reelscribe.cli.options.video import ClipOptions, FrameOptions, VideoOptions
from reelscribe.cli.parser.command import flatten
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe._track_specs import TrackSpec


@flatten
def caption(
    run: RunOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    video: VideoOptions,
    servers: ServerOptions,
    cluster: ClusterOptions,
    model: CaptionModel = None,
) -> None:
    """Caption frames or describe clips of videos; write one JSON line for each source to OUT/annotations.jsonl.

    A captioner captions one frame a second, unless an option chooses others. A video-language model describes a clip
    for each shot; use --clips if both are served. Results of earlier runs into OUT are used again. Ctrl-C finishes and
    saves the requests in flight; a second Ctrl-C stops at once.

    Exit status: 0 if all sources succeeded; 3 if some sources failed (their records hold the reason); 1 if the run
    could not start or ended early; 2 if an option is wrong; 130 if it was interrupted. After 1 or 130, run the same
    command again to continue.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ModelSpec, PictureSpec

        found, in_flight = cluster.servers(servers), servers.requests_in_flight
        of_clips = ModelSpec(clips.clip_options(run, video, frames.resize), found, model, in_flight)
        of_frames = ModelSpec(frames.caption_options(run, video), found, model, in_flight)
        track = of_clips if clips.wanted else PictureSpec(of_frames, of_clips)
        run_command(run, cluster, None, [track], frames.thumbnails)


@flatten
def transcribe(
    run: RunOptions,
    audio: AudioOptions,
    servers: ServerOptions,
    cluster: ClusterOptions,
    model: TranscribingModel = None,
) -> None:
    """Transcribe the speech in videos and recordings; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`. A video without audio gets an empty
    transcript.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ModelSpec

        options = audio.speech_options(run)
        found = cluster.servers(servers)
        run_command(run, cluster, None, [ModelSpec(options, found, model, servers.requests_in_flight)])


@flatten
def annotate(
    run: RunOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    video: VideoOptions,
    audio: AudioOptions,
    servers: ServerOptions,
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

        caption_options, speech_options = frames.caption_options(run, video), audio.speech_options(run)
        caption_servers = cluster.servers(servers, speech_server)
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = (
            find_servers(speech_server, speech_key_file, find_keys=False) if speech_server else caption_servers
        )
        in_flight = servers.requests_in_flight
        tracks: list[TrackSpec] = [ModelSpec(speech_options, speech_servers, speech_model, in_flight)]
        if clips.wanted or clip_model:
            clip_options = clips.clip_options(run, video, frames.resize)
            tracks.insert(0, ModelSpec(clip_options, caption_servers, clip_model, in_flight))
        if model or not (clips.wanted or clip_model):
            tracks.insert(0, ModelSpec(caption_options, caption_servers, model, in_flight))
        run_command(run, cluster, cues, tracks, frames.thumbnails)


@flatten
def shots(run: RunOptions, video: VideoOptions, cluster: ClusterOptions) -> None:
    """Find the shots of videos, without a server; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._track_specs import ShotSpec
        from reelscribe.run.tracks.shots import ShotOptions

        options = ShotOptions(
            video.detection(),
            video.deinterlace,
            video.decode_workers,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )
        run_command(run, cluster, None, [ShotSpec(options)])
