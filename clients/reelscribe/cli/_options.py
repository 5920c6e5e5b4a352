"""The options that `reelscribe caption`, `transcribe` and `annotate` share.

Each dataclass is a group of options: `flatten` gives them to a command, and a method converts them to the types of the
packages below. Defaults are repeated here, because importing them would import numpy for `reelscribe --help`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError
from reelscribe.server.options import DIRECTORY, INFERENCE_ADDRESS, KEY_FILE_VARIABLE, SERVER_VARIABLE

if TYPE_CHECKING:
    from reelscribe.run.options import CaptionOptions, SpeechOptions
    from reelscribe.server.finding import FoundServer

T = TypeVar("T")

CUES = ("auto", "captions", "transcript", "both")
FORMATS = ("vtt", "srt", "csv", "parquet")

source_option = partial(typer.Option, rich_help_panel=Heading.SOURCES)
frame_option = partial(typer.Option, rich_help_panel=Heading.FRAMES)
speech_option = partial(typer.Option, rich_help_panel=Heading.SPEECH)
output_option = partial(typer.Option, rich_help_panel=Heading.OUTPUT)
server_option = partial(typer.Option, rich_help_panel=Heading.SERVER)
speed_option = partial(typer.Option, rich_help_panel=Heading.SPEED)

CaptionModel = Annotated[
    str | None,
    server_option(
        "--model", metavar="NAME", help="Name of the captioner on the server. By default the only one that is served."
    ),
]
SpeechModel = Annotated[
    str | None,
    server_option(metavar="NAME", help="Name of the speech model on the server. By default the only one."),
]
TranscribingModel = Annotated[
    str | None,
    server_option("--model", metavar="NAME", help="Name of the speech model on the server. By default the only one."),
]
Cues = Annotated[
    str,
    output_option(
        metavar="|".join(CUES),
        autocompletion=lambda: CUES,
        help="What subtitles show: captions, transcript, both, or auto: what is said, or else captions.",
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
        output_option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for annotations.jsonl and for the ledger, which lets the same command continue.",
        ),
    ]
    formats: Annotated[
        list[str] | None,
        output_option(
            "--format",
            metavar="|".join(FORMATS),
            autocompletion=lambda: FORMATS,
            help="Also export to this format. May be repeated.",
        ),
    ] = None
    dry_run: Annotated[bool, source_option("--dry-run", help="Say what the run would do, and end.")] = False
    limit: Annotated[
        int | None,
        source_option(min=1, metavar="N", help="Do at most this many sources, of those not yet done."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        source_option(metavar="GLOB", help="Leave out sources whose path fits this glob. May be repeated."),
    ] = None
    retry_failed: Annotated[
        bool,
        source_option(
            "--retry-failed/--no-retry-failed", help="Retry sources that failed in an earlier run into --out."
        ),
    ] = False
    stall_seconds: Annotated[
        float,
        speed_option(
            min=2, metavar="SECONDS", help="Replace a decode process that makes no progress for this many seconds."
        ),
    ] = 60
    quiet: Annotated[bool, output_option("--quiet/--no-quiet", "-q", help="Report errors only.")] = False
    json_log: Annotated[
        bool,
        output_option("--json-log/--no-json-log", help="Report progress as lines of JSON on standard error."),
    ] = False
    metrics_port: Annotated[
        int | None,
        output_option(
            min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics of the run at 127.0.0.1:PORT/metrics."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options for the servers of a run."""

    servers: Annotated[
        list[str] | None,
        server_option(
            "--server",
            metavar="URL",
            envvar=SERVER_VARIABLE,
            help="Inference address of a server. May be repeated to share the load between several servers. By default"
            " the server that runs in --directory, or otherwise the address below.",
            show_default=INFERENCE_ADDRESS,
        ),
    ] = None
    key_files: Annotated[
        list[Path] | None,
        server_option(
            "--key-file",
            metavar="FILE",
            envvar=KEY_FILE_VARIABLE,
            help="Copy of the server's key_file.json, with mode 600. Give one for all servers, or one for each --server"
            " in the same order. By default the key of the server in --directory if --server is its address, or"
            " otherwise key_file.json in the working folder if there is one.",
        ),
    ] = None
    directory: Annotated[
        Path | None,
        server_option(
            metavar="FOLDER",
            help="Folder of a server on this machine, with its address and key.",
            show_default=str(DIRECTORY),
        ),
    ] = None
    management: Annotated[
        str | None,
        server_option(
            metavar="URL",
            help="Management address, at which the key of a single --server is renewed before it expires.",
        ),
    ] = None
    requests_in_flight: Annotated[
        int,
        speed_option(
            min=1,
            metavar="N",
            help="Largest number of unanswered requests for each model. The client uses fewer if more do not help.",
        ),
    ] = 32

    def find(self) -> list[FoundServer]:
        """Return the servers, each with its key.

        Raises:
            UsageError: A key file or an address cannot be used, or their numbers do not fit together.
        """
        from reelscribe.server.finding import find_servers

        return find_servers(self.servers, self.key_files, self.management, self.directory)


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """The options for frames: which ones to caption, and how to decode and send them."""

    fps: Annotated[
        float | None,
        frame_option(
            metavar="RATE", help="Caption this many frames for each second of presentation time.", show_default="1"
        ),
    ] = None
    all_frames: Annotated[bool, frame_option("--all-frames", help="Caption every frame.")] = False
    every: Annotated[
        int | None,
        frame_option(min=1, metavar="N", help="Caption every N-th frame: 0, N, 2N and so on."),
    ] = None
    frames: Annotated[
        int | None,
        frame_option(
            min=1,
            metavar="N",
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
        frame_option(metavar="SECONDS", help="Begin this many seconds after the first frame."),
    ] = None
    end: Annotated[
        float | None,
        frame_option(metavar="SECONDS", help="Stop this many seconds after the first frame."),
    ] = None
    reuse: Annotated[
        bool,
        frame_option(
            "--reuse/--no-reuse", help="If a frame is nearly equal to the last captioned one, reuse its caption."
        ),
    ] = False
    resize: Annotated[
        Literal["fast", "planes", "exact"],
        speed_option(
            metavar="fast|planes|exact",
            help="How frames are scaled: fast (by FFmpeg; within 5 of 255 levels), planes (luma and chroma apart;"
            " slower) or exact (every pixel as the model's own processor makes it; slowest).",
        ),
    ] = "fast"
    frames_per_request: Annotated[
        int,
        speed_option(
            min=1, metavar="N", help="Largest number of frames in one request; fewer if they would exceed 8 MB."
        ),
    ] = 32
    stream: Annotated[
        bool,
        speed_option(help="Send frames while the rest of their source is still being decoded."),
    ] = True
    decode_workers: Annotated[
        int,
        speed_option(
            min=1, metavar="N", envvar="REELSCRIBE_DECODE_WORKERS", help="Number of processes that decode video."
        ),
    ] = 2

    def caption_options(self, run: RunOptions) -> CaptionOptions:
        """Return the options of captions for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.decode.sampling import Sampling
        from reelscribe.run.options import CaptionOptions

        if self.all_frames and self.every is not None:
            raise UsageError("--all-frames and --every: expected one of them, got both")
        every = 1 if self.all_frames else self.every
        return CaptionOptions(
            sampling=Sampling(every, self.fps, self.frames, self.keyframes, self.start, self.end),
            resize=self.resize,
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
        speech_option(
            metavar="CODE", help="Language of all speech, such as en. By default it is detected in each chunk."
        ),
    ] = None
    task: Annotated[
        str,
        speech_option(
            metavar="transcribe|translate",
            autocompletion=lambda: ("transcribe", "translate"),
            help="Write what is said, or its translation into English.",
        ),
    ] = "transcribe"
    word_times: Annotated[
        bool,
        speech_option("--word-times/--no-word-times", help="Also record when each word was said."),
    ] = False
    search_seconds: Annotated[
        float,
        speech_option(
            min=0,
            metavar="SECONDS",
            help="Cut audio that is longer than a chunk at the quietest point within this many seconds before the end"
            " of the chunk; 0 cuts exactly at its end.",
        ),
    ] = 5.0
    window_seconds: Annotated[
        float,
        speech_option(
            metavar="SECONDS",
            help="Length of the window over which loudness is measured to find the quietest point.",
        ),
    ] = 0.3
    silence_db: Annotated[
        float,
        speech_option(
            max=0,
            metavar="DB",
            help="Skip chunks that are nowhere louder than this, in dB relative to full scale.",
        ),
    ] = -60.0
    vad: Annotated[
        bool,
        speech_option(
            "--vad/--no-vad",
            help="Also skip chunks in which a voice activity detector finds no voice. Needs reelscribe[vad].",
        ),
    ] = False
    chunks_per_request: Annotated[
        int,
        speed_option(
            min=1, metavar="N", help="Largest number of chunks in one request; fewer if they would exceed 8 MB."
        ),
    ] = 8
    audio_workers: Annotated[
        int,
        speed_option(
            min=1, metavar="N", envvar="REELSCRIBE_AUDIO_WORKERS", help="Number of processes that decode audio."
        ),
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
