"""The units in which tracks count what they have done, with the words for them in tables and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reelscribe.reporting.formatting import describe_duration

Counts = Literal[
    "frames", "seconds of audio", "clips", "seconds of video", "frames of video", "seconds of voices", "summaries"
]
"""Units in which tracks count their progress. They appear in ledgers and in --json-log."""


@dataclass(frozen=True)
class Unit:
    """How to speak of an amount in one of these units."""

    track: str
    """Name of the track in metrics."""
    made: str
    """Name of the results of the track, as a row of `reelscribe status`."""
    option: str
    """Option that adds decode processes to the track."""
    pictures: bool
    """True if the track takes the pictures of a source, and not its audio."""
    counted: str
    """Name of an amount, as the summary says it: an item in the singular, such as "caption", or media with what was
    done to it, such as "audio transcribed"."""
    unsent: str = ""
    """Words for the part of an amount that was not sent to a server."""
    is_time: bool = False
    """True if an amount is a number of seconds of media."""
    verb: str = "made"
    """What was done to an item, as the summary says it."""

    def amount(self, amount: float) -> str:
        """Return an amount as a number or as a duration."""
        return describe_duration(amount) if self.is_time else f"{amount:,.0f}"

    def done(self, amount: float, seconds: float) -> tuple[str, str]:
        """Return an amount, and what it counts with its rate over so many seconds."""
        rate = amount / seconds
        if self.is_time:
            return self.amount(amount), f"of {self.counted}, {rate:,.0f} times real time"
        noun = self.counted if round(amount) == 1 else f"{self.counted}s"
        return self.amount(amount), f"{noun} {self.verb}, {rate:,.0f} a second"


UNITS: dict[Counts, Unit] = {
    "frames": Unit("frames", "captions", "--decode-workers", True, "caption", "of these reused from an earlier frame"),
    "seconds of audio": Unit(
        "audio", "audio", "--audio-workers", False, "audio transcribed", "of this silent", is_time=True
    ),
    "clips": Unit("clips", "clips", "--decode-workers", True, "description"),
    "seconds of video": Unit("shots", "shots", "--decode-workers", True, "video searched for shots", is_time=True),
    "frames of video": Unit("shots", "shots", "--decode-workers", True, "frame", verb="searched for shots"),
    "seconds of voices": Unit(
        "speakers",
        "speakers",
        "--audio-workers",
        False,
        "audio searched for speakers",
        "of this silent",
        is_time=True,
    ),
    "summaries": Unit(
        "summaries",
        "summaries",
        "--requests-in-flight",
        False,
        "source",
        "of these without any text",
        verb="summarised",
    ),
}
