"""The plan of a run: the figures of the line at its start, which is all that --dry-run prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reelscribe.reporting.formatting import count, describe_duration, describe_time_left
from reelscribe.reporting.time_left import TimeLeft

SHOWN_KINDS = 8
"""Number of kinds of files that are left out which the line names."""


@dataclass(frozen=True)
class Choice:
    """The choice of a track among the contents of sources."""

    name: str
    """The choice in words, such as "one frame a second"."""
    item: str | None
    """Item of a request, in the singular: "frame", "chunk" or "clip"; None if nothing is sent."""
    count: int | None
    """Likely number of items to come; None if it cannot be told from what headers say."""
    track: str = ""
    """Name of the track, such as "frames"."""
    processes: int = 0
    """Number of its decode processes; 0 if it reads no media."""


@dataclass(frozen=True)
class Plan:
    """The work that a run has before it."""

    sources: int
    """Number of its sources."""
    before: int
    """Number of these that earlier runs have done."""
    excluded: int
    """Number of sources that --exclude and --limit leave out."""
    media_seconds: float
    """Duration of all its sources, in seconds."""
    estimated: bool
    """True if that is an estimate, because not all headers of many small files were read."""
    unknown: int
    """Number of its sources whose duration is not known, because their headers do not state it or cannot be read."""
    choices: tuple[Choice, ...]
    """The choice of each track."""
    replaced: int
    """Number of sources whose records will show other results, because settings differ from those of now."""
    changed_settings: tuple[str, ...]
    """Names of these settings."""
    left: TimeLeft | None
    """Likely duration of the run, by what earlier runs into the same folder took; None if there is none."""
    why_processes: str = ""
    """Why tracks have so many decode processes, in words; empty if the user has chosen them."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Numbers of other files in folders and archives by what they are, such as ".txt" or "hidden"."""

    def __str__(self) -> str:
        about = "about " if self.estimated else ""
        parts = [f"{count(self.sources, 'source')}, {about}{describe_duration(self.media_seconds)} of media"]
        if self.unknown:
            parts[0] += f" ({self.unknown:,} of unknown length)"
        if self.excluded:
            parts.append(f"{self.excluded:,} left out")
        if self.left_out:
            parts.append(other_files(self.left_out))
        if self.replaced:
            parts.append(other_results(self.replaced, self.changed_settings))
        if self.before == self.sources:
            return "; ".join([*parts, "all done before"])
        if self.before:
            parts.append(f"{self.before:,} done before")
        parts += [_describe_choice(choice) for choice in self.choices]
        parts += self._describe_processes()
        parts.append(f"{describe_time_left(*self.left)} to go" if self.left else "time to go not known yet")
        return "; ".join(parts)

    def _describe_processes(self) -> list[str]:
        """Return how many processes decode, and why, unless none do."""
        decoding = [choice for choice in self.choices if choice.processes]
        if not decoding:
            return []
        first, *others = decoding
        text = f"{first.processes:,} decode processes" if first.processes > 1 else "1 decode process"
        if others:
            text += f" for {first.track}" + "".join(f", {each.processes:,} for {each.track}" for each in others)
        return [f"{text}: {self.why_processes}" if self.why_processes else text]


def other_results(replaced: int, changed_settings: Sequence[str]) -> str:
    """Return how many records will show other results than now, and why."""
    records = "1 record" if replaced == 1 else f"{replaced:,} records"
    return f"{records} will show other results than now, as other settings were chosen ({', '.join(changed_settings)})"


def other_files(left_out: Mapping[str, int]) -> str:
    """Return how many files are no media by their names, and what they are."""
    total = sum(left_out.values())
    most = sorted(left_out.items(), key=lambda each: (-each[1], each[0]))[:SHOWN_KINDS]
    rest = total - sum(number for _, number in most)
    kinds = [f"{kind} {number:,}" for kind, number in [*most, *([("others", rest)] if rest else [])]]
    return f"{count(total, 'other file')}: {', '.join(kinds)}"


def _describe_choice(choice: Choice) -> str:
    if choice.count is None or choice.item is None:
        return choice.name
    return f"{choice.name}: about {count(choice.count, choice.item)} to come"
