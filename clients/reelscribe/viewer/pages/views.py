"""The content of each page, as plain values. Texts are raw: the renderer escapes, isolates and shortens them.

Times are presentation times in seconds, as in records; a source is named by its id, 16 hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery, TextKind

State = Literal["ok", "error"]
"""The states of a source: done or failed."""

TrackKind = Literal["captions", "clips", "shots", "speakers", "transcript", "translations"]
"""Kinds of tracks on the timeline."""

SettingsKind = TrackKind | Literal["summary"]
"""Kinds of annotations that have a model and settings."""

Player = Literal["video", "audio", "preview", "none"]
"""The ways to play a source: its own bytes as video or audio, its preview, or not at all."""


@dataclass(frozen=True)
class Site:
    """The parts that all pages of a folder of results have in common."""

    folder: str
    """Path of the folder, as the user gave it."""
    running: str = ""
    """A sentence about the run that is going on, such as "A run is going on: 34 of 120 sources are done."; or empty."""
    notices: tuple[str, ...] = ()
    """Whole sentences that the user should know, such as that the index is not complete yet."""


@dataclass(frozen=True)
class Choice:
    """A value of a filter of the library."""

    value: str
    """Its value in the address."""
    label: str
    """Its name, as users read it."""
    count: int | None = None
    """Number of sources that have it in the whole folder; None if it is not counted."""


@dataclass(frozen=True)
class Counts:
    """Number of annotations of a source."""

    captions: int = 0
    clips: int = 0
    segments: int = 0
    shots: int = 0
    failures: int = 0
    """Number of frames, clips and chunks that have no annotation although they were chosen."""


@dataclass(frozen=True)
class Card:
    """A source, as the library shows it."""

    id: str
    name: str
    """Last part of its path."""
    folder: str
    """Path of its folder below the folder of all sources, such as "2024/beach"; empty for that one itself."""
    seconds: float | None
    """Duration; None if it is not known."""
    state: State
    missing: bool = False
    """True if it was gone from the disk when the last run ended."""
    error_type: str = ""
    """Such as "MediaError"; empty if it has not failed."""
    error: str = ""
    """The message of the error."""
    counts: Counts = Counts()
    languages: tuple[str, ...] = ()
    """Codes of the languages of the transcript, the most frequent one first."""
    flags: tuple[str, ...] = ()
    """Flags that occur in it."""
    thumbnail: float | None = None
    """Time of the thumbnail that stands for it; None if it has none."""
    title: str = ""
    """The title that its summary gives it; empty if it has none."""

    @property
    def path(self) -> str:
        """Its path below the folder of all sources."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass(frozen=True)
class LibraryView:
    """The library: one page of the sources that fit a query."""

    site: Site
    query: LibraryQuery
    cards: tuple[Card, ...]
    total: int
    """Number of sources that fit the query."""
    all_sources: int
    """Number of sources in the folder."""
    pages: int
    """Number of pages of the query, at least 1."""
    folders: tuple[Choice, ...] = ()
    """The folders in the folder that is shown, by their paths below the folder of all sources, in order."""
    folders_hidden: int = 0
    """Number of folders that are not in `folders`."""
    states: tuple[Choice, ...] = ()
    languages: tuple[Choice, ...] = ()
    errors: tuple[Choice, ...] = ()
    flags: tuple[Choice, ...] = ()
    durations: tuple[Choice, ...] = ()
    """Values such as "60-600"; see LibraryQuery."""


@dataclass(frozen=True)
class Part:
    """A part of a text that was found."""

    text: str
    marked: bool = False
    """True if it is a word or phrase that was searched."""


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    source: str
    """Id of its source."""
    path: str
    """Path of its source below the folder of all sources."""
    kind: TextKind
    start: float
    end: float | None
    parts: tuple[Part, ...]
    """The text, or the stretch of it around the words, with "…" where it was cut."""
    thumbnail: float | None = None
    """Time of the nearest thumbnail; None if there is none."""
    missing: bool = False
    """True if the source was gone from the disk when the last run ended."""


@dataclass(frozen=True)
class SearchView:
    """The search: one page of the hits of a query."""

    site: Site
    query: SearchQuery
    hits: tuple[Hit, ...] = ()
    total: int = 0
    """Number of hits."""
    more: bool = False
    """True if there are more than `total`, and counting ended there."""
    pages: int = 1
    """Number of pages, at least 1."""
    named: tuple[Card, ...] = ()
    """The first sources that the library finds by the same words: in their names, folders or tags."""
    named_total: int = 0
    """Number of such sources."""
    problem: str = ""
    """The reason why the query cannot be searched, as a sentence; empty if it can, and for the empty query."""


@dataclass(frozen=True)
class Fact:
    """Something that is known, as a label and its value."""

    label: str
    value: str


@dataclass(frozen=True)
class Word:
    """A word of a transcript, with its time."""

    start: float
    end: float
    text: str
    """The word with the spaces and punctuation that belong to it, so that the words together are the text."""


@dataclass(frozen=True)
class Speaker:
    """Somebody who speaks in a source."""

    name: str
    colour: int
    """Number of the colour of the name, from 0 to below SPEAKER_COLOURS."""


@dataclass(frozen=True)
class NamedSpeaker:
    """Somebody who speaks in a source, with the names that the user has given."""

    speaker: str
    """The speaker, as the record has it."""
    colour: int
    """As of Speaker."""
    own: str
    """The name in this source alone; empty if there is none."""
    everywhere: str
    """The name in all sources; empty if there is none."""


SPEAKER_COLOURS = 8
"""Number of colours of speakers in pages.css. Of more speakers, some share one."""


@dataclass(frozen=True)
class Line:
    """A stretch of a track."""

    start: float
    end: float
    text: str = ""
    """Its text; for a shot usually empty; for a failure the reason."""
    flags: tuple[str, ...] = ()
    failed: bool = False
    """True if there is no annotation, and `text` says why."""
    words: tuple[Word, ...] = ()
    """The words of `text`, where their times are known."""
    speaker: Speaker | None = None
    """Who says it; None if that is not known."""


@dataclass(frozen=True)
class Track:
    """One kind of annotations of a source, in order of time."""

    kind: TrackKind
    lines: tuple[Line, ...]
    """Those of the section that is shown, failures among them."""
    total: int
    """Number of lines of the whole source."""


@dataclass(frozen=True)
class Section:
    """A stretch of a source that is too long for one page."""

    start: float
    end: float
    shown: bool
    """True if its lines are those on the page."""


@dataclass(frozen=True)
class Playback:
    """The way in which a source is played."""

    player: Player
    reason: str = ""
    """The reason why it is not its own bytes, and what to do, in whole sentences; empty if it is."""
    type: str = ""
    """Media type of what is played, such as "video/mp4"; may be empty."""
    or_preview: bool = False
    """True if a browser that cannot play the video itself gets its preview instead."""
    in_store: bool = False
    """True if it is played from a store, which may refuse it only then."""


@dataclass(frozen=True)
class Settings:
    """The model and the settings that made one kind of annotations."""

    kind: SettingsKind
    model: str
    revision: str
    facts: tuple[Fact, ...] = ()
    """The settings, by their names in run.json."""


@dataclass(frozen=True)
class SourceView:
    """One source with all that is known of it."""

    site: Site
    card: Card
    path: str
    """Path as the record has it."""
    playback: Playback
    start: float
    """Presentation time at which the timeline begins."""
    end: float
    """Presentation time at which it ends; not before `start`."""
    summary: SourceSummary | None = None
    """None if it has none."""
    tracks: tuple[Track, ...] = ()
    """In the order in which they are shown; kinds of which there is nothing are left out."""
    thumbnails: tuple[float, ...] = ()
    """Times of all thumbnails, ascending."""
    facts: tuple[Fact, ...] = ()
    """Facts about video, audio and file, such as Fact("Video", "1280 x 720, h264, 25 frames a second")."""
    settings: tuple[Settings, ...] = ()
    retry: str = ""
    """The command that tries again what failed, or how to get it; empty if nothing failed."""
    sections: tuple[Section, ...] = ()
    """All sections, if there is more than one."""
    speakers: tuple[NamedSpeaker, ...] = ()
    """Everybody who speaks in it."""
    refusal: str = ""
    """The reason why names of speakers were not saved, in whole sentences; empty if none were refused."""
    typed: Mapping[tuple[str, bool], str] = field(default_factory=dict)
    """The names that were refused, by the speaker, and whether they are for all sources."""


@dataclass(frozen=True)
class Figure:
    """A row of the figures of a run, as `reelscribe status` prints them."""

    label: str
    this_run: str
    whole_job: str


@dataclass(frozen=True)
class Rate:
    """The speed of a run at one time."""

    seconds: float
    """Seconds since the run began."""
    value: float
    """Hours of media per hour, which is how many times faster than real time it is."""


@dataclass(frozen=True)
class Share:
    """The share of time in which one side of a run is busy."""

    label: str
    """Such as "Decoding" or "Inference"."""
    share: float
    """The share, from 0 to 1."""


@dataclass(frozen=True)
class FailureExample:
    """A source that failed."""

    source: str
    """Its id."""
    path: str
    """Its path below the folder of all sources."""
    message: str


@dataclass(frozen=True)
class FailureGroup:
    """The sources that failed for one reason."""

    reason: str
    """Type of the error, as in `LibraryQuery.error`."""
    count: int
    meaning: str = ""
    """The meaning of the type, in a sentence."""
    examples: tuple[FailureExample, ...] = ()


@dataclass(frozen=True)
class NodeRow:
    """A machine of a run over many."""

    name: str
    state: str
    ready: bool
    done: int
    open: int
    speed: str


@dataclass(frozen=True)
class RunView:
    """The run that is going on, or the last one."""

    site: Site
    state: str
    """Its state, as `reelscribe status` prints it."""
    goes_on: bool
    done: int
    """Number of sources that are done, of the whole job."""
    sources: int
    """Number of sources of the whole job."""
    failed: int = 0
    """Number of sources that failed."""
    share: float = 0.0
    """Fraction of the work (0 to 1) that is done; long sources are more of it than short ones."""
    speed: str = ""
    """Such as "12.3 times real time"."""
    time_left: str = ""
    """Such as "25 ± 4 min"; empty if it is not known."""
    bottleneck: str = ""
    """The bottleneck, in words."""
    as_of: str = ""
    """The time of the figures."""
    figures: tuple[Figure, ...] = ()
    shares: tuple[Share, ...] = ()
    rates: tuple[Rate, ...] = ()
    """The speed over time, in order."""
    failures: tuple[FailureGroup, ...] = ()
    """Most frequent first."""
    retry: str = ""
    """The command that tries the failed ones again, or how to get it; empty if none failed."""
    nodes: tuple[NodeRow, ...] = ()
    """The machines, those first that are not ready; empty for a run on one."""
    nodes_hidden: int = 0
    """Number of machines that are not in `nodes`."""
