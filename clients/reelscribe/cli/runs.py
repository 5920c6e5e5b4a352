"""`reelscribe caption`, `transcribe` and `annotate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from reelscribe.cli._errors import errors_as_one_line
from reelscribe.cli._flatten import flatten
from reelscribe.cli._options import (
    AudioOptions,
    CaptionModel,
    Cues,
    FrameOptions,
    RunOptions,
    ServerOptions,
    SpeechModel,
    server_option,
)
from reelscribe.cli._run import ServedModel, run_command
from reelscribe.errors import UsageError


@flatten
def caption(run: RunOptions, servers: ServerOptions, frames: FrameOptions, model: CaptionModel = "captioner") -> None:
    """Caption the frames of videos; write one JSON line for each source to OUT/annotations.jsonl.

    Results of earlier runs into OUT are used again. Ctrl-C finishes and saves the requests in flight; a second Ctrl-C
    stops at once.

    Exit status: 0 if all sources succeeded; 3 if some sources failed (their records hold the reason); 1 if the run
    could not start or ended early; 2 if an option is wrong; 130 if it was interrupted. After 1 or 130, run the same
    command again to continue.
    """
    with errors_as_one_line(json_log=run.json_log):
        options = frames.caption_options(run)
        captioner = ServedModel(model, servers.find(), servers.requests_in_flight)
        run_command(run, "captions", captions=(captioner, options))


@flatten
def transcribe(run: RunOptions, servers: ServerOptions, audio: AudioOptions, model: SpeechModel = "speech") -> None:
    """Transcribe the speech in videos and recordings; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`. A video without audio gets an empty
    transcript.
    """
    with errors_as_one_line(json_log=run.json_log):
        options = audio.speech_options(run)
        speech_model = ServedModel(model, servers.find(), servers.requests_in_flight)
        run_command(run, "transcript", speech=(speech_model, options))


@flatten
def annotate(
    run: RunOptions,
    servers: ServerOptions,
    frames: FrameOptions,
    audio: AudioOptions,
    model: CaptionModel = "captioner",
    speech_model: SpeechModel = "speech",
    speech_server: Annotated[
        list[str] | None,
        server_option(help="Inference address of a server for the speech model, if not --server. May be repeated."),
    ] = None,
    speech_key_file: Annotated[
        list[Path] | None, server_option(help="Key file for --speech-server, like --key-file for --server.")
    ] = None,
    cues: Cues = "auto",
) -> None:
    """Caption and transcribe in one pass; write one JSON line for each source to OUT/annotations.jsonl.

    Earlier results, Ctrl-C and exit statuses are as for `reelscribe caption`. A source may lack either video or audio.
    """
    with errors_as_one_line(json_log=run.json_log):
        from reelscribe._api import find_servers

        caption_options, speech_options = frames.caption_options(run), audio.speech_options(run)
        caption_servers = servers.find()
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_servers = find_servers(speech_server, speech_key_file) if speech_server else caption_servers
        run_command(
            run,
            cues,
            captions=(ServedModel(model, caption_servers, servers.requests_in_flight), caption_options),
            speech=(ServedModel(speech_model, speech_servers, servers.requests_in_flight), speech_options),
        )
