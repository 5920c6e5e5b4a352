"""`reelscribe caption`, `transcribe`, `annotate` and `shots`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._run import ServedModel, open_captions, open_shots, open_transcripts, run_command
from reelscribe.cli.options.pictures import FrameOptions, PictureOptions
from reelscribe.cli.options.run import Cues, RunOptions
from reelscribe.cli.options.servers import CaptionModel, ServerOptions, SpeechModel, TranscribingModel, server_option
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
    pictures: PictureOptions,
    servers: ServerOptions,
    model: CaptionModel = None,
) -> None:
    """Caption frames of videos; write one JSON line for each source to OUT/annotations.jsonl.

    One frame a second is captioned, unless an option chooses others. Results of earlier runs into OUT are used again.
    Ctrl-C finishes and saves the requests in flight; a second Ctrl-C stops at once.

    Exit status: 0 if all sources succeeded; 3 if some sources failed (their records hold the reason); 1 if the run
    could not start or ended early; 2 if an option is wrong; 130 if it was interrupted. After 1 or 130, run the same
    command again to continue.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe.contract.model import CaptionerDescription

        options = frames.caption_options(run, pictures)
        captioner = _served(servers.find(), model, CaptionerDescription, servers.requests_in_flight)
        run_command(run, "captions", [partial(open_captions, captioner, options)])


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
        run_command(run, "transcript", [partial(open_transcripts, speech_model, options)])


@flatten
def annotate(
    run: RunOptions,
    frames: FrameOptions,
    pictures: PictureOptions,
    audio: AudioOptions,
    servers: ServerOptions,
    model: CaptionModel = None,
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

    One frame a second is captioned, unless an option chooses others. Earlier results, Ctrl-C and exit statuses are as
    for `reelscribe caption`. A source may lack either video or audio.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe.contract.model import CaptionerDescription, SpeechDescription
        from reelscribe.server.finding import find_servers

        caption_options, speech_options = frames.caption_options(run, pictures), audio.speech_options(run)
        caption_servers = servers.find()
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = (
            find_servers(speech_server, speech_key_file, find_keys=False) if speech_server else caption_servers
        )
        captioner = _served(caption_servers, model, CaptionerDescription, servers.requests_in_flight)
        speech = _served(speech_servers, speech_model, SpeechDescription, servers.requests_in_flight)
        tracks = [partial(open_captions, captioner, caption_options), partial(open_transcripts, speech, speech_options)]
        run_command(run, cues, tracks)


@flatten
def shots(run: RunOptions, pictures: PictureOptions) -> None:
    """Find the shots of videos, without a server; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe.run.tracks.shots import ShotOptions

        options = ShotOptions(pictures.detection(), pictures.decode_workers, run.stall_seconds, run.retry_failed)
        run_command(run, "auto", [partial(open_shots, options)])


def _served(
    found: list[FoundServer], name: str | None, kind: type[ModelDescription], requests_in_flight: int
) -> ServedModel:
    """Return the model of this name, or the only one of its kind, which is looked for when the run begins."""
    from reelscribe.server.model_names import find_model

    async def find_name() -> str:
        return name or await find_model(found[0], kind)

    return ServedModel(find_name, [each.server for each in found], requests_in_flight)
