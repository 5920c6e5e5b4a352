"""The options for video: its frames, clips and shots."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reelscribe.cli.options.run import RunOptions, output_option, speed_option, text_of
from reelscribe.cli.options.servers import ShotModel
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe.contract.frames import Resize
    from reelscribe.decode.shots import ShotDetection
    from reelscribe.run.tracks.captions import CaptionOptions
    from reelscribe.run.tracks.clips import ClipOptions as ClipTrackOptions
    from reelscribe.run.tracks.shots import LearnedShotOptions, ShotOptions

frame_option = partial(typer.Option, rich_help_panel=Heading.FRAMES)
clip_option = partial(typer.Option, rich_help_panel=Heading.CLIPS)
shot_option = partial(typer.Option, rich_help_panel=Heading.SHOTS)


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """The options for all video: what counts as a cut, and how frames are decoded."""

    shot_threshold: Annotated[
        float | None,
        shot_option(
            metavar="X",
            help="How much the pictures of two shots differ at least, as a multiple of their contrast; for transnetv2,"
            " the probability above which a frame ends a shot. A larger number finds fewer cuts.",
            show_default="0.75; for transnetv2 0.5",
        ),
    ] = None
    shot_detector: Annotated[
        Literal["reelscribe", "transnetv2"],
        shot_option(
            metavar="reelscribe|transnetv2",
            help="What looks for shots: reelscribe, which needs no server, or a TransNetV2 on a server, which takes"
            " every frame and also finds dissolves and fades.",
        ),
    ] = "reelscribe"
    shot_model: ShotModel = None
    deinterlace: Annotated[
        bool,
        speed_option(
            "--deinterlace/--no-deinterlace",
            help="Deinterlace the frames that are marked as interlaced, by FFmpeg's bwdif. Their neighbours are"
            " decoded, too, so with --keyframes about every frame is.",
        ),
    ] = False
    decode_workers: Annotated[
        int | None,
        speed_option(
            min=1,
            metavar="N",
            envvar="REELSCRIBE_DECODE_WORKERS",
            help="Number of processes that decode video.",
            show_default="by the cores, at least 2",
        ),
    ] = None

    @property
    def asks_shot_model(self) -> bool:
        """Return `True` if a model looks for shots. Raises UsageError if a model is named that is not asked."""
        if self.shot_detector == "reelscribe" and self.shot_model is not None:
            raise UsageError("--shot-model: expected --shot-detector transnetv2 with it, as it names that model")
        return self.shot_detector != "reelscribe"

    def detection(self) -> ShotDetection:
        """Return how our own detector finds shots. Raises UsageError if the threshold is out of its range."""
        from reelscribe.decode.shots import ShotDetection

        own = None if self.asks_shot_model else self.shot_threshold
        return ShotDetection() if own is None else ShotDetection(own)

    def shot_options(self, run: RunOptions) -> ShotOptions:
        """Return the options of our own detector of shots. Raises UsageError if the threshold is out of its range."""
        from reelscribe.run.tracks.shots import ShotOptions

        return ShotOptions(
            self.detection(),
            self.deinterlace,
            self.decode_workers,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )

    def learned_shot_options(self, run: RunOptions) -> LearnedShotOptions:
        """Return the options of a shot model. Raises UsageError if the threshold is out of its range."""
        from reelscribe.run.tracks.shots import DEFAULT_PROBABILITY, LearnedShotOptions

        return LearnedShotOptions(
            DEFAULT_PROBABILITY if self.shot_threshold is None else self.shot_threshold,
            self.deinterlace,
            decode_workers=self.decode_workers,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """The options for clips: where they are, and what the model is asked about them."""

    clips: Annotated[
        Literal["shots", "windows"] | None,
        clip_option(
            metavar="shots|windows",
            help="Describe clips with a video-language model: shots, or windows of --clip-seconds. Without it,"
            " --clip-seconds and --clip-overlap mean windows, and the other options of clips mean shots.",
        ),
    ] = None
    clip_seconds: Annotated[
        float | None, clip_option(metavar="SECONDS", help="Length of a window.", show_default="10")
    ] = None
    clip_overlap: Annotated[
        float | None,
        clip_option(min=0, metavar="SECONDS", help="How long successive windows overlap.", show_default="0"),
    ] = None
    clip_seconds_min: Annotated[
        float | None,
        clip_option(
            min=0,
            metavar="SECONDS",
            help="Join shots that are shorter than this, and a last window, to a neighbour.",
            show_default="1",
        ),
    ] = None
    clip_seconds_max: Annotated[
        float | None,
        clip_option(metavar="SECONDS", help="Divide shots that are longer than this evenly.", show_default="30"),
    ] = None
    clip_fps: Annotated[
        float | None,
        clip_option(
            metavar="RATE",
            help="Show the model this many frames for each second of a clip, within its own limits.",
            show_default="its own, which is 2 for Qwen-VL",
        ),
    ] = None
    clip_max_frames: Annotated[
        int | None,
        clip_option(
            min=1, metavar="N", help="Show the model at most this many frames of a clip.", show_default="its own"
        ),
    ] = None
    clip_frame_pixels: Annotated[
        int | None,
        clip_option(
            min=1, metavar="N", help="Show the model at most this many pixels of each frame.", show_default="its own"
        ),
    ] = None
    clip_total_pixels: Annotated[
        int | None,
        clip_option(
            min=1,
            metavar="N",
            help="Show the model at most this many pixels of a clip, in all its frames together.",
            show_default="its own",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        clip_option(
            metavar="TEXT|@FILE",
            help="What to ask the model about each clip. {start} and {end} become its times in seconds, {name} the name"
            " of the file without its suffix, {schema} the JSON schema and, with annotate, {transcript} the words that"
            " are said in it; other braces stay.",
            show_default="its own",
        ),
    ] = None
    json_schema: Annotated[
        Path | None,
        clip_option(
            metavar="FILE",
            help="JSON schema that answers must fit; it may refer to parts of itself alone. An answer that does not fit"
            " is asked for once more, with the reason, and then fails.",
        ),
    ] = None
    clips_per_request: Annotated[
        int,
        speed_option(
            min=1, metavar="N", help="Largest number of clips in one request; fewer if they would exceed 8 MB."
        ),
    ] = 8

    @property
    def wanted(self) -> bool:
        """Return `True` if an option is given that decides something about clips, and not only about speed."""
        decides = (each.name for each in fields(self) if each.name != "clips_per_request")
        return any(getattr(self, name) is not None for name in decides)

    def clip_options(self, run: RunOptions, video: VideoOptions, resize: Resize) -> ClipTrackOptions:
        """Return the options of clips for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.decode.clips import ClipCutting
        from reelscribe.run.tracks.clips import ClipOptions as ClipTrackOptions

        cutting = ClipCutting(
            self.clips,
            video.detection(),
            ClipCutting.min_seconds if self.clip_seconds_min is None else self.clip_seconds_min,
            self.clip_seconds_max,
            self.clip_seconds,
            self.clip_overlap,
        )
        return ClipTrackOptions(
            cutting=cutting,
            fps=self.clip_fps,
            max_frames=self.clip_max_frames,
            frame_pixels=self.clip_frame_pixels,
            total_pixels=self.clip_total_pixels,
            prompt=None if self.prompt is None else text_of("--prompt", self.prompt),
            json_schema=None if self.json_schema is None else _json_of(self.json_schema),
            resize=resize,
            deinterlace=video.deinterlace,
            clips_per_request=self.clips_per_request,
            decode_workers=video.decode_workers,
            model_shots=video.asks_shot_model,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--json-schema: expected a file with a JSON schema, got {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--json-schema: expected a file with a JSON schema, got {path}, which is no JSON") from None


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
            help="Caption this many frames of each video, or all if it has fewer, evenly spread from the first to the"
            " last; 1 is the middle frame.",
        ),
    ] = None
    keyframes: Annotated[
        bool,
        frame_option("--keyframes", help="Caption only keyframes, which are the fastest to decode."),
    ] = False
    per_shot: Annotated[
        int | None,
        frame_option(
            min=1,
            metavar="N",
            help="Caption this many frames of each shot, evenly spread; 1 is the middle frame. Every frame is decoded"
            " to find the shots.",
        ),
    ] = None
    start: Annotated[
        float | None,
        frame_option(
            metavar="SECONDS",
            help="Begin this many seconds after the first frame. With annotate, all audio is transcribed nevertheless.",
        ),
    ] = None
    end: Annotated[
        float | None,
        frame_option(metavar="SECONDS", help="Stop this many seconds after the first frame."),
    ] = None
    reuse: Annotated[
        bool,
        frame_option(
            "--reuse/--no-reuse",
            help="If a frame is nearly equal to the last captioned one, reuse its caption. Where a picture changes"
            " slowly, a caption may follow a frame or two late.",
        ),
    ] = False
    thumbnails: Annotated[
        int | None,
        output_option(
            min=0,
            max=1000,
            metavar="N",
            help="Keep so many small pictures of each video in OUT/thumbnails, of frames that are decoded anyway; 0 for"
            " none.",
            show_default="one a shot, or one in 5 s and at most 12 where shots are not known",
        ),
    ] = None
    resize: Annotated[
        Literal["fast", "exact"],
        speed_option(
            metavar="fast|exact",
            help="How frames are scaled: fast (by FFmpeg; on average 0.3 to 1.3 of 255 levels off) or exact (every"
            " pixel as the model's own processor makes it; slower).",
        ),
    ] = "fast"
    decoder: Annotated[
        Literal["pyav", "decord"],
        speed_option(
            metavar="pyav|decord",
            help="What decodes frames to caption: pyav, or decord for files in which both find the same frames at the"
            " same times; PyAV reads the others. decord has an FFmpeg of 2018, so give it only files of your own. Needs"
            " reelscribe[decord].",
        ),
    ] = "pyav"
    frames_per_request: Annotated[
        int,
        speed_option(
            min=1,
            metavar="N",
            help="Largest number of frames in one request; fewer if they would exceed 8 MB. Use 1 for a server that"
            " joins single frames.",
        ),
    ] = 32

    def caption_options(self, run: RunOptions, video: VideoOptions) -> CaptionOptions:
        """Return the options of captions for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.decode.sampling import Sampling
        from reelscribe.run.tracks.captions import CaptionOptions

        if self.all_frames and self.every is not None:
            raise UsageError("--all-frames and --every: expected one of them, got both")
        every = 1 if self.all_frames else self.every
        return CaptionOptions(
            sampling=Sampling(every, self.fps, self.frames, self.keyframes, self.per_shot, self.start, self.end),
            detection=video.detection(),
            resize=self.resize,
            decoder=self.decoder,
            deinterlace=video.deinterlace,
            reuse=self.reuse,
            frames_per_request=self.frames_per_request,
            decode_workers=video.decode_workers,
            model_shots=video.asks_shot_model,
            stall_seconds=run.stall_seconds,
            retry_failed=run.retry_failed,
        )
