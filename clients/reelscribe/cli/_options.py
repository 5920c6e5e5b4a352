"""The options that `reelscribe caption`, `transcribe` and `annotate` share.

Each dataclass is a group of options: `flatten` gives them to a command, and a method converts them to the types of the
packages below. Defaults are repeated here, because importing them would import numpy for `reelscribe --help`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer

from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe.client.endpoint import Server
    from reelscribe.run.options import CaptionOptions, SpeechOptions

T = TypeVar("T")

INFERENCE_ADDRESS = "http://127.0.0.1:8080"

server_option = partial(typer.Option, rich_help_panel="Servers and models")
frame_option = partial(typer.Option, rich_help_panel="Frames")
audio_option = partial(typer.Option, rich_help_panel="Speech")

CaptionModel = Annotated[str, server_option(help="Name under which the server registered the captioner.")]
SpeechModel = Annotated[str, server_option(help="Name under which the server registered the speech model.")]
Cues = Annotated[
    str,
    typer.Option(
        help="What subtitles show: captions, transcript, both, or auto (the transcript where anybody speaks)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run: its sources, its output folder, and how it reports."""

    sources: Annotated[
        list[str],
        typer.Argument(help="Media files, folders (searched at every depth), or globs."),
    ]
    out: Annotated[
        Path,
        typer.Option(help="Folder for annotations.jsonl and for the ledger, which lets the same command continue."),
    ]
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Also export to vtt, srt, csv or parquet. Repeat it for several formats."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run would do, and end.")] = False
    limit: Annotated[int | None, typer.Option(min=1, help="Do at most this many sources, of those not yet done.")] = (
        None
    )
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Leave out sources whose path fits this glob. May be repeated."),
    ] = None
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Retry sources that failed in an earlier run into --out."),
    ] = False
    stall_seconds: Annotated[
        float,
        typer.Option(min=2, help="Replace a decode process that makes no progress for this many seconds."),
    ] = 60
    quiet: Annotated[bool, typer.Option("--quiet", help="Report errors only.")] = False
    json_log: Annotated[
        bool,
        typer.Option("--json-log", help="Report progress as lines of JSON on standard error."),
    ] = False
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve Prometheus metrics of the run at 127.0.0.1:PORT/metrics."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options for the servers of a run."""

    servers: Annotated[
        list[str] | None,
        server_option(
            "--server",
            help="Inference address of a server. Repeat it to share the load between several servers. By default the"
            " server that runs in .server, or otherwise the address below.",
            show_default=INFERENCE_ADDRESS,
        ),
    ] = None
    key_files: Annotated[
        list[Path] | None,
        server_option(
            "--key-file",
            help="Copy of the server's key_file.json, with mode 600. Give one for all servers, or one for each --server"
            " in the same order. The server in .server needs none.",
        ),
    ] = None
    management: Annotated[
        str | None,
        server_option(help="Management address, at which the key of a single --server is renewed before it expires."),
    ] = None
    requests_in_flight: Annotated[
        int,
        server_option(
            min=1,
            help="Largest number of unanswered requests for each model. The client uses fewer if more do not help.",
        ),
    ] = 32

    def find(self) -> list[Server]:
        """Return the servers, each with its credentials.

        Raises:
            UsageError: A key file or an address cannot be used, or their numbers do not fit together.
        """
        from reelscribe._api import find_servers

        return find_servers(self.servers, self.key_files, self.management)


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """The options for frames: which ones to caption, and how to decode and send them."""

    fps: Annotated[
        float | None,
        frame_option(help="Caption this many frames for each second of presentation time.", show_default="1"),
    ] = None
    all_frames: Annotated[bool, frame_option("--all-frames", help="Caption every frame.")] = False
    every: Annotated[
        int | None,
        frame_option(min=1, help="Caption every N-th frame: 0, N, 2N and so on."),
    ] = None
    frames: Annotated[
        int | None,
        frame_option(
            min=1,
            help="Caption this many frames of each video, evenly spread from the first to the last; 1 is the middle"
            " frame.",
        ),
    ] = None
    keyframes: Annotated[
        bool,
        frame_option("--keyframes", help="Caption only keyframes, which are the fastest to decode."),
    ] = False
    start: Annotated[
        float | None,
        frame_option(help="Begin this many seconds after the first frame."),
    ] = None
    end: Annotated[
        float | None,
        frame_option(help="Stop this many seconds after the first frame."),
    ] = None
    resize: Annotated[
        str,
        frame_option(
            help="How frames are scaled: exact (every pixel as the model's own processor makes it), planes (luma and"
            " chroma apart; faster) or fast (by FFmpeg; within 5 of 255 levels)."
        ),
    ] = "fast"
    reuse: Annotated[
        bool,
        frame_option("--reuse", help="If a frame is nearly equal to the last captioned one, reuse its caption."),
    ] = False
    frames_per_request: Annotated[
        int,
        frame_option(min=1, help="Largest number of frames in one request; fewer if they would exceed 8 MB."),
    ] = 32
    stream: Annotated[
        bool,
        frame_option(help="Send frames while the rest of their source is still being decoded."),
    ] = True
    decode_workers: Annotated[
        int,
        frame_option(min=1, envvar="REELSCRIBE_DECODE_WORKERS", help="Number of processes that decode video."),
    ] = 2

    def caption_options(self, run: RunOptions) -> CaptionOptions:
        """Return the options of captions for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.contract.frames import Resize
        from reelscribe.decode.sampling import Sampling
        from reelscribe.run.options import CaptionOptions

        if self.all_frames and self.every is not None:
            raise UsageError("--all-frames and --every: expected one of them, got both")
        every = 1 if self.all_frames else self.every
        return CaptionOptions(
            sampling=Sampling(every, self.fps, self.frames, self.keyframes, self.start, self.end),
            resize=one_of(self.resize, get_args(Resize), "--resize"),
            reuse=self.reuse,
            frames_per_request=self.frames_per_request,
            stream=self.stream,
            decode_workers=self.decode_workers,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )


@dataclass(frozen=True, kw_only=True)
class AudioOptions:
    """The options for audio: what to transcribe, and how to cut and send it."""

    language: Annotated[
        str | None,
        audio_option(help="Language of all speech, such as en. By default it is detected in each chunk."),
    ] = None
    task: Annotated[
        str,
        audio_option(help="transcribe, or translate (into English)."),
    ] = "transcribe"
    word_times: Annotated[
        bool,
        audio_option("--word-times", help="Also record when each word was said."),
    ] = False
    search_seconds: Annotated[
        float,
        audio_option(
            min=0,
            help="Cut audio that is longer than a chunk at the quietest point within this many seconds before the end"
            " of the chunk; 0 cuts exactly at its end.",
        ),
    ] = 5.0
    window_seconds: Annotated[
        float,
        audio_option(
            help="Length in seconds of the window over which loudness is measured to find the quietest point."
        ),
    ] = 0.3
    silence_db: Annotated[
        float,
        audio_option(max=0, help="Skip chunks that are nowhere louder than this, in dB relative to full scale."),
    ] = -60.0
    vad: Annotated[
        bool,
        audio_option(
            "--vad", help="Also skip chunks in which a voice activity detector finds no voice. Needs reelscribe\\[vad]."
        ),
    ] = False
    chunks_per_request: Annotated[
        int,
        audio_option(min=1, help="Largest number of chunks in one request; fewer if they would exceed 8 MB."),
    ] = 8
    audio_workers: Annotated[
        int,
        audio_option(min=1, envvar="REELSCRIBE_AUDIO_WORKERS", help="Number of processes that decode audio."),
    ] = 2

    def speech_options(self, run: RunOptions) -> SpeechOptions:
        """Return the options of transcripts for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.contract.chunking import Cutting
        from reelscribe.contract.speech import TranscriptionOptions
        from reelscribe.run.options import SpeechOptions

        return SpeechOptions(
            transcription=TranscriptionOptions(self.language, self.task, self.word_times),
            cutting=Cutting(self.search_seconds, self.window_seconds),
            silence_db=self.silence_db,
            vad=self.vad,
            chunks_per_request=self.chunks_per_request,
            audio_workers=self.audio_workers,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )


def one_of(value: str, allowed: tuple[T, ...], option: str) -> T:
    """Check the value of an option, and return the equal member of `allowed`, which has the narrower type.

    Raises:
        UsageError: The value is not in `allowed`.
    """
    for choice in allowed:
        if value == choice:
            return choice
    raise UsageError(f"{option}: expected one of {', '.join(map(str, allowed))}, got {value!r}")
