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

    Sources that an earlier run into OUT has finished are not processed again. Ctrl-C finishes and saves what is in
    progress; a second Ctrl-C stops at once.

    Exit status: 0 if all sources succeeded; 3 if some sources failed, whose records say why; 1 if the run could not be
    done or ended early; 2 if an option is wrong; 130 if it was interrupted. After 1 and 130, run the same command again
    to continue.
    """
    with errors_as_one_line():
        options = frames.caption_options(run)
        captioner = ServedModel(model, servers.find(), servers.requests_in_flight)
        run_command(run, "captions", captions=(captioner, options))


@flatten
def transcribe(run: RunOptions, servers: ServerOptions, audio: AudioOptions, model: SpeechModel = "speech") -> None:
    """Transcribe what is said in videos and recordings; write one JSON line for each source to OUT/annotations.jsonl.

    Runs, interrupts and exit statuses are those of `reelscribe caption`. The transcript of a video without audio is
    empty.
    """
    with errors_as_one_line():
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
        server_option(help="Inference address of the speech model, if other servers serve it. May be repeated."),
    ] = None,
    speech_key_file: Annotated[
        list[Path] | None, server_option(help="Key files for --speech-server, as --key-file for --server.")
    ] = None,
    cues: Cues = "both",
) -> None:
    """Caption and transcribe in one pass; write one JSON line for each source to OUT/annotations.jsonl.

    Runs, interrupts and exit statuses are those of `reelscribe caption`. A source may lack either video or audio.
    """
    with errors_as_one_line():
        from reelscribe._api import find_servers

        caption_options, speech_options = frames.caption_options(run), audio.speech_options(run)
        at = servers.find()
        if speech_key_file and not speech_server:
            raise UsageError("--speech-key-file: expected --speech-server with it, as --key-file is for --server")
        speech_at = find_servers(speech_server, speech_key_file) if speech_server else at
        run_command(
            run,
            cues,
            captions=(ServedModel(model, at, servers.requests_in_flight), caption_options),
            speech=(ServedModel(speech_model, speech_at, servers.requests_in_flight), speech_options),
        )
