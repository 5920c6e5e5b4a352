"""The rules by which cues are made: what they show, how much at once, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from reelscribe.errors import UsageError, brief

CueSource = Literal["auto", "captions", "clips", "transcript", "both"]
"""The annotations that cues are made from. "both" means what is said and what is seen: the transcript, and the
descriptions of clips or, where there are none, the captions. "auto" means the transcript if anybody speaks, or else the
descriptions of clips, or else the captions.
"""

CUE_SOURCES: tuple[CueSource, ...] = get_args(CueSource)
"""The annotations that the cues of subtitles can be made from."""


@dataclass(frozen=True, kw_only=True)
class CueRules:
    """What cues show, how much text at once, and for how long. The defaults are those of broadcasters.

    Raises:
        UsageError: A value is out of range.
    """

    made_from: CueSource = "auto"
    """The annotations that cues are made from."""
    max_line_chars: int = 42
    """Most characters of a line, at least 1; a full-width character counts as two."""
    max_lines: int = 2
    """Most lines of a cue of speech whose words have times, at least 1."""
    max_cue_seconds: float = 7.0
    """Longest time that such a cue is shown, in seconds, more than 0."""
    min_cue_seconds: float = 1.0
    """Shortest time that a cue of speech is shown where the next one leaves room, in seconds, from 0 to
    `max_cue_seconds`.
    """
    max_chars_per_second: float = 20.0
    """Reading speed: a cue of speech is shown for so long that no more characters have to be read in a second, where
    the next one leaves room; more than 0.
    """
    karaoke: bool = False
    """Whether each word whose time is known is marked while it is spoken."""
    speaker_names: bool = False
    """Whether lines of SubRip, ASS and plain text begin with the name of who speaks, where it is known. WebVTT has
    names in any case, in a form that players can hide."""

    def __post_init__(self) -> None:
        if self.made_from not in CUE_SOURCES:
            raise UsageError(f"export: expected cues out of {', '.join(CUE_SOURCES)}, got {brief(self.made_from)}")
        for name in ("max_line_chars", "max_lines", "max_cue_seconds", "max_chars_per_second"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"--{name.replace('_', '-')}: expected more than 0, got {getattr(self, name)}")
        if not 0 <= self.min_cue_seconds <= self.max_cue_seconds:
            raise UsageError(
                f"--min-cue-seconds: expected 0 to {self.max_cue_seconds:g}, which is --max-cue-seconds, got"
                f" {self.min_cue_seconds:g}"
            )

    @property
    def show_speech(self) -> bool:
        """True if cues show what is said, where somebody speaks."""
        return self.made_from not in ("captions", "clips")


DEFAULT_RULES = CueRules()
