"""The options for audio: what to transcribe, and how to cut and send it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from reelscribe.cli.options.run import RunOptions, one_of, speed_option, text_of
from reelscribe.cli.options.servers import SpeakerModel
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe._track_specs import ModelSpec
    from reelscribe.run.tracks.transcripts import SpeechOptions
    from reelscribe.server.server_discovery import FoundServer

speech_option = partial(typer.Option, rich_help_panel=Heading.SPEECH)


@dataclass(frozen=True, kw_only=True)
class TranscriptOptions:
    """The options for audio: what to transcribe, and how to cut and send it."""

    language: Annotated[
        str | None,
        speech_option(
            metavar="CODE",
            help="Language of all speech, such as en; of several, such as en,de, it is detected in each chunk, and by"
            " default of all.",
        ),
    ] = None
    task: Annotated[
        str,
        speech_option(
            metavar="transcribe|translate|both",
            autocompletion=lambda: ("transcribe", "translate", "both"),
            help="Write what is said, its translation into English, or both.",
        ),
    ] = "transcribe"
    word_times: Annotated[
        bool,
        speech_option("--word-times/--no-word-times", help="Also record when each word was said."),
    ] = False
    align_model: Annotated[
        str | None,
        speech_option(
            metavar="NAME",
            help="Record when each word was said by forced alignment with this model, which has a CTC head, is served"
            " beside the speech model, and knows the language. With --word-times, words that it cannot align keep the"
            " times of the speech model.",
        ),
    ] = None
    channels: Annotated[
        str,
        speech_option(
            metavar="mix|separate",
            autocompletion=lambda: ("mix", "separate"),
            help="Transcribe the mix of all channels, or each channel by itself as that of a speaker: at most 8, each"
            " of which is sent, so two cost twice as much.",
        ),
    ] = "mix"
    speakers: Annotated[
        str | None,
        speech_option(
            metavar="auto|N|N..M",
            help="Also tell speakers apart by their voices, with a speaker model: any number of them, this number, or"
            " from N to M. Segments are cut where the speaker changes with --word-times. Needs reelscribe[speakers].",
        ),
    ] = None
    speaker_model: SpeakerModel = None
    initial_prompt: Annotated[
        str | None,
        speech_option(
            metavar="TEXT|@FILE",
            help="Text that a Whisper or a Qwen3-ASR takes for what was said before each chunk; it shows names,"
            " spelling and style. With the hot words, a Whisper takes at most 223 tokens, half of its positions.",
        ),
    ] = None
    hotwords: Annotated[
        str | None,
        speech_option(
            metavar="TEXT|@FILE",
            help="Words that may be said, such as names, with commas between them or in lines; for a Whisper or a"
            " Qwen3-ASR. It may also write one that is not said, so give few.",
        ),
    ] = None
    beams: Annotated[
        int,
        speech_option(
            min=1,
            max=10,
            metavar="N",
            help="Follow this many texts at once, 1 to 10, in search of the most probable one, with a Whisper. More are"
            " slower, and take more memory.",
        ),
    ] = 1
    search_seconds: Annotated[
        float | None,
        speech_option(
            min=0,
            metavar="SECONDS",
            help="Cut audio that is longer than a chunk at the quietest point within this many seconds before the end"
            " of the chunk; 0 cuts exactly at its end, also through a word.",
            show_default="half of a chunk",
        ),
    ] = None
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
            help="Skip chunks that are nowhere louder than this, in dB relative to full scale, so that no words are"
            " invented for them.",
        ),
    ] = -60.0
    vad: Annotated[
        bool,
        speech_option(
            "--vad/--no-vad",
            help="Also skip chunks in which a voice activity detector finds no voice. This helps against noise; it"
            " takes most music for voices. Needs reelscribe[vad].",
        ),
    ] = False
    chunks_per_request: Annotated[
        int,
        speed_option(
            min=1,
            metavar="N",
            help="Largest number of chunks in one request, which share a language where one is unsure; fewer if they"
            " would exceed 8 MB.",
        ),
    ] = 8
    audio_workers: Annotated[
        int | None,
        speed_option(
            min=1,
            metavar="N",
            envvar="REELSCRIBE_AUDIO_WORKERS",
            help="Number of processes that decode audio.",
            show_default="by the cores, at least 2",
        ),
    ] = None

    def speech_options(self, run: RunOptions) -> SpeechOptions:
        """Return the options of transcripts for a run.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.contract.speech import Channels, TranscriptionOptions
        from reelscribe.run.tracks.transcripts import SpeechOptions

        return SpeechOptions(
            transcription=TranscriptionOptions(
                self.language,
                self.task,
                self.word_times,
                None if self.initial_prompt is None else text_of("--initial-prompt", self.initial_prompt),
                None if self.hotwords is None else text_of("--hotwords", self.hotwords),
                self.beams,
            ),
            align_model=self.align_model,
            channels=one_of(self.channels, get_args(Channels), "--channels"),
            **self._shared(run),
        )

    def speaker_specs(
        self, run: RunOptions, found: Sequence[FoundServer], requests_in_flight: int | None
    ) -> list[ModelSpec]:
        """Return what tells speakers apart; nothing if that is not wanted.

        Args:
            run: The options of the run.
            found: The servers of the speaker model.
            requests_in_flight: Largest number of unanswered requests; None for what the servers take.

        Raises:
            UsageError: The value of an option is invalid, or two options do not fit together.
        """
        from reelscribe._track_specs import ModelSpec
        from reelscribe.contract.voices import SpeakerBounds
        from reelscribe.run.tracks.speakers import SpeakerOptions

        if self.speakers is None:
            if self.speaker_model is not None:
                raise UsageError("--speaker-model: expected --speakers with it, as it names the model that finds them")
            return []
        if self.channels == "separate":
            raise UsageError(
                "--speakers: expected it without --channels separate, which takes each channel for a speaker; voices"
                " are told apart in the mix of all channels"
            )
        options = SpeakerOptions(SpeakerBounds.parse(self.speakers), **self._shared(run))
        return [ModelSpec(options, found, self.speaker_model, requests_in_flight)]

    def _shared(self, run: RunOptions) -> dict[str, Any]:
        """Return what tracks of audio share."""
        from reelscribe.contract.chunking import Cutting

        return {
            "cutting": Cutting(self.search_seconds, self.window_seconds),
            "silence_db": self.silence_db,
            "vad": self.vad,
            "chunks_per_request": self.chunks_per_request,
            "audio_workers": self.audio_workers,
            "stall_seconds": run.stall_seconds,
            "retry_failed": run.retry_failed,
        }
