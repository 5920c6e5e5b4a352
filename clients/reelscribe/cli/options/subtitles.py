"""The options for subtitles: what they show, how much at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from reelscribe.cli.options.run import one_of
from reelscribe.cli.parser.help import Heading
from reelscribe.errors import UsageError

if TYPE_CHECKING:
    from reelscribe.export.cue_rules import CueRules

CUES = ("auto", "captions", "clips", "transcript", "both")

subtitle_option = partial(typer.Option, rich_help_panel=Heading.SUBTITLES)

Cues = Annotated[
    str,
    subtitle_option(
        metavar="KIND",
        autocompletion=lambda: CUES,
        help="What subtitles show: captions, clips, transcript, both (what is said, with clips or captions), or auto:"
        " what is said, or else clips, or else captions.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """The options for subtitles: how much they show at once, and for how long."""

    max_line_chars: Annotated[
        int,
        subtitle_option(min=1, metavar="N", help="Most characters of a line; full-width characters count as two."),
    ] = 42
    max_lines: Annotated[
        int, subtitle_option(min=1, metavar="N", help="Most lines at once of speech whose words have times.")
    ] = 2
    max_cue_seconds: Annotated[
        float, subtitle_option(metavar="SECONDS", help="Longest time for which such speech is shown at once.")
    ] = 7.0
    min_cue_seconds: Annotated[
        float,
        subtitle_option(
            metavar="SECONDS", help="Shortest time for which speech is shown, unless the next words come sooner."
        ),
    ] = 1.0
    max_chars_per_second: Annotated[
        float,
        subtitle_option(
            metavar="N",
            help="Reading speed: where nothing follows, speech is shown for so long that no more have to be read.",
        ),
    ] = 20.0
    karaoke: Annotated[
        bool,
        subtitle_option("--karaoke/--no-karaoke", help="Mark each word while it is spoken. Needs the times of words."),
    ] = False
    speaker_names: Annotated[
        bool,
        subtitle_option(
            "--speaker-names/--no-speaker-names",
            help="Begin lines of srt, ass and txt with the name of who speaks, where it is known.",
        ),
    ] = False

    def check(self, *, word_times: bool) -> None:
        """Raise UsageError if words shall be marked whose times the run does not record."""
        if self.karaoke and not word_times:
            raise UsageError(
                "--karaoke: expected --word-times or --align-model with it, as it marks words while spoken"
            )

    def rules(self, cues: str = "auto") -> CueRules:
        """Return the rules by which subtitles are made.

        Args:
            cues: The value of --cues.

        Raises:
            UsageError: The value of an option is invalid.
        """
        from reelscribe.export.cue_rules import CUE_SOURCES, CueRules

        return CueRules(
            made_from=one_of(cues, CUE_SOURCES, "--cues"),
            max_line_chars=self.max_line_chars,
            max_lines=self.max_lines,
            max_cue_seconds=self.max_cue_seconds,
            min_cue_seconds=self.min_cue_seconds,
            max_chars_per_second=self.max_chars_per_second,
            karaoke=self.karaoke,
            speaker_names=self.speaker_names,
        )
