"""`reelscribe caption`, `transcribe`, `annotate` and `shots`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._run import (
    OpenTrack,
    ServedModel,
    open_captions,
    open_clips,
    open_either,
    open_shots,
    open_transcripts,
    run_command,
)
from reelscribe.cli.options.pictures import ClipOptions, FrameOptions, PictureOptions
from reelscribe.cli.options.run import Cues, RunOptions
from reelscribe.cli.options.servers import (
    CaptionModel,
    ClipModel,
    ServerOptions,
    SpeechModel,
    TranscribingModel,
    server_option,
)
from reelscribe.cli.options.sound import AudioOptions
from reelscribe.cli.parser.flatten import flatten
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe.contract.model import ModelDescription
    from reelscribe.server.finding import FoundServer


@flatten
def caption(
    run: RunOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    pictures: PictureOptions,
    servers: ServerOptions,
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
        from reelscribe.contract.model import CaptionerDescription, ClipModelDescription

        found = servers.find()
        in_flight = servers.requests_in_flight
        clip_options = clips.clip_options(run, pictures, frames.resize)
        of_clips = partial(open_clips, _served(found, model, ClipModelDescription, in_flight), clip_options)
        of_frames = partial(
            open_captions,
            _served(found, model, CaptionerDescription, in_flight),
            frames.caption_options(run, pictures),
        )
        open_track = of_clips if clips.wanted else partial(open_either, found[0], model, of_frames, of_clips)
        run_command(run, None, [open_track])


@flatten
def transcribe(run: RunOptions, audio: AudioOptions, servers: ServerOptions, model: TranscribingModel = None) -> None:
    """Transcribe the speech in videos and recordings; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`. A video without audio gets an empty
    transcript.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe.contract.model import SpeechDescription

        options = audio.speech_options(run)
        speech_model = _served(servers.find(), model, SpeechDescription, servers.requests_in_flight)
        run_command(run, None, [partial(open_transcripts, speech_model, options)])


@flatten
def annotate(
    run: RunOptions,
    frames: FrameOptions,
    clips: ClipOptions,
    pictures: PictureOptions,
    audio: AudioOptions,
    servers: ServerOptions,
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
        from reelscribe.contract.model import CaptionerDescription, ClipModelDescription, SpeechDescription
        from reelscribe.server.finding import find_servers

        caption_options, speech_options = frames.caption_options(run, pictures), audio.speech_options(run)
        caption_servers = servers.find()
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = (
            find_servers(speech_server, speech_key_file, find_keys=False) if speech_server else caption_servers
        )
        in_flight = servers.requests_in_flight
        speech = _served(speech_servers, speech_model, SpeechDescription, in_flight)
        tracks: list[OpenTrack] = [partial(open_transcripts, speech, speech_options)]
        if clips.wanted or clip_model:
            described = _served(caption_servers, clip_model, ClipModelDescription, in_flight)
            clip_options = clips.clip_options(run, pictures, frames.resize)
            tracks.insert(0, partial(open_clips, described, clip_options))
        if model or not (clips.wanted or clip_model):
            captioner = _served(caption_servers, model, CaptionerDescription, in_flight)
            tracks.insert(0, partial(open_captions, captioner, caption_options))
        run_command(run, cues, tracks)


@flatten
def shots(run: RunOptions, pictures: PictureOptions) -> None:
    """Find the shots of videos, without a server; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe.run.tracks.shots import ShotOptions

        options = ShotOptions(pictures.detection(), pictures.decode_workers, run.stall_seconds, run.retry_failed)
        run_command(run, None, [partial(open_shots, options)])


def _served(
    found: list[FoundServer], name: str | None, kind: type[ModelDescription], requests_in_flight: int
) -> ServedModel:
    """Return the model of this name, or the only one of its kind, which is looked for when the run begins."""
    from reelscribe.server.model_names import find_model

    async def find_name() -> str:
        return name or await find_model(found[0], kind)

    return ServedModel(find_name, [each.server for each in found], requests_in_flight)
