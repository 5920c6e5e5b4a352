"""The page of a source: how it is played, its tracks as lines in time, and what made them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from reelscribe.errors import MALFORMED, OutputError, UsageError, brief
from reelscribe.export.annotations_reader import read_settings
from reelscribe.export.speakers import NameChange, SpeakerNames, change_speaker_names, read_speaker_names
from reelscribe.reporting.formatting import count
from reelscribe.results.annotations import NAME as ANNOTATIONS
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.results.schema import NAME as LEDGER
from reelscribe.viewer.content.library_page import card_of
from reelscribe.viewer.index.index_reader import RecordChanged
from reelscribe.viewer.index.queries import common_folder_of, source_row
from reelscribe.viewer.index.saved_record import SavedCaption, SavedRecord, Segment, Text, UnreadableRecord, read_record
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.index.source_row import SourceRow
from reelscribe.viewer.media.media_files import MediaFiles, playback
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails, card_thumbnail_time
from reelscribe.viewer.pages.views import (
    SPEAKER_COLOURS,
    Fact,
    Line,
    NamedSpeaker,
    Playback,
    Section,
    Settings,
    SettingsKind,
    Site,
    SourceView,
    Speaker,
    Track,
    TrackKind,
    Word,
)

LINES_A_SECTION = 2000
"""Number of lines of all tracks together from which on a page shows a section of the source only. Lines that begin at
one time are in one section, of which twice as many are shown."""

_MOST_WORDS = 50 * LINES_A_SECTION  # of a page, that are marked as they are said; each is an element
_MOST_VALUE_CHARACTERS = 2000


class SourcePage:
    """Makes pages of sources. Any thread may use it."""

    def __init__(
        self, out: Path, index: SourceIndex, thumbnails: SourceThumbnails, files: MediaFiles, *, previews: bool = False
    ) -> None:
        self._out, self._index, self._thumbnails, self._files, self._previews = out, index, thumbnails, files, previews

    def view(self, site: Site, id_: str, seconds: float, retry: str) -> SourceView | None:
        """Return what the page of a source shows.

        Args:
            site: What all pages have in common.
            id_: The id of the source.
            seconds: A time of the section to show, if the source has several.
            retry: How sources that failed are tried again.

        Returns:
            The view, which says so where the record cannot be read; None if there is no such source, or its record is
            just being written.
        """
        if (found := self._find(id_)) is None:
            return None
        row, common, line = found
        try:
            return self._view(site, row, read_record(line), common, seconds, retry)
        except UnreadableRecord as error:
            return unreadable_view(site, row, common, str(error))

    def change_speaker_names(self, id_: str, changes: Sequence[NameChange]) -> None:
        """Change names of speakers of a source.

        Args:
            id_: The id of the source.
            changes: The changes.

        Raises:
            UsageError: They cannot be made, or the source has no such speaker.
        """
        found = self._find(id_)
        if found is None:
            raise UsageError("expected a source with a record, got none: a run is just writing it; save again")
        try:
            record = read_record(found[2])
        except UnreadableRecord as error:
            raise UsageError(f"expected a record that can be read, got: {error}; docs/records.md says more") from None
        known = _speakers(record, SpeakerNames({}, {}))
        if unknown := [each.speaker for each in changes if each.speaker not in known]:
            got = f"expected a speaker of this source, got {brief(unknown[0])}"
            raise UsageError(f"{got}: the record has changed; name the speakers that are shown now")
        change_speaker_names(self._out, _paths(record), changes)

    def _find(self, id_: str) -> tuple[SourceRow, str, bytes] | None:
        """Return what the index has of a source, the folder of all sources, and the line of its record.

        None if there is no such source, or its record is just being written.
        """
        for _ in range(2):  # a record that is written anew is found in its new place the second time
            try:
                with self._index.reader() as reader:
                    row = source_row(reader, id_)
                    if row is None:
                        return None
                    line = reader.line(row.file, row.start, row.size, row.digest)
                    return row, common_folder_of(reader), line
            except RecordChanged:
                self._index.refresh_soon()
        return None

    def _view(
        self, site: Site, row: SourceRow, record: SavedRecord, common_folder: str, seconds: float, retry: str
    ) -> SourceView:
        try:
            names = read_speaker_names(self._out)
        except UsageError as error:
            site, names = replace(site, notices=(*site.notices, f"{error}.")), SpeakerNames({}, {})
        return source_view(
            site,
            row,
            record,
            common_folder=common_folder,
            seconds=seconds,
            playback=playback(row, record, self._files, previews=self._previews),
            thumbnails=self._thumbnails.times(row),
            settings=used_settings(record, self._known_settings()),
            retry=retry,
            names=names,
        )

    def _known_settings(self) -> Mapping[str, Any]:
        """Return what run.json has under `settings`, from the ledger if there is one."""
        try:
            if (self._out / LEDGER).exists():
                with LedgerReader(self._out) as ledger:
                    return {
                        used.id: {"model": vars(used.model), "settings": used.settings} for used in ledger.settings()
                    }
            settings = read_settings(self._out / ANNOTATIONS)
            return settings if isinstance(settings, dict) else {}
        except (OutputError, OSError, *MALFORMED):
            return {}


def source_view(
    site: Site,
    row: SourceRow,
    record: SavedRecord,
    *,
    common_folder: str,
    seconds: float,
    playback: Playback,
    thumbnails: Sequence[float],
    settings: Iterable[Settings],
    retry: str,
    names: SpeakerNames,
) -> SourceView:
    """Return what the page of a source shows of its record.

    Args:
        site: What all pages have in common.
        row: What the index has of the source.
        record: Its record.
        common_folder: Path of the deepest folder that holds all sources.
        seconds: A time of the section to show, if the source has several.
        playback: How it is played.
        thumbnails: Times of its thumbnails, ascending.
        settings: What made its annotations.
        retry: How sources that failed are tried again.
        names: The names to show for speakers.
    """
    tracks = tracks_of(record, names)
    start = record.start_seconds
    ends = [line.end for track in tracks for line in track.lines]
    ends += [record.media.end_seconds] if record.media else []
    ends += [record.audio.start_seconds + record.audio.seconds] if record.audio else []
    sections = sections_of(tracks, start, max([start, *ends]), seconds)
    if shown := next((section for section in sections if section.shown), None):
        tracks = [_only(track, shown, last=shown is sections[-1]) for track in tracks]
    tracks, hidden = _first_lines(tracks, 2 * LINES_A_SECTION)
    if sum(len(line.words) for track in tracks for line in track.lines) > _MOST_WORDS:
        tracks = [replace(track, lines=tuple(replace(line, words=()) for line in track.lines)) for track in tracks]
    if hidden:
        notice = f"{hidden:,} lines that begin at the same time as others are not shown; annotations.jsonl has them."
        site = replace(site, notices=(*site.notices, notice))
    return SourceView(
        site,
        card_of(row, card_thumbnail_time(thumbnails), common_folder),
        path=record.source.path,
        playback=playback,
        start=start,
        end=max([start, *ends]),
        summary=record.summary,
        tracks=tuple(tracks),
        speakers=tuple(_named_speakers(record, names)),
        thumbnails=tuple(thumbnails),
        facts=tuple(_facts(record)),
        settings=tuple(settings),
        retry=retry if row.failures or row.state == "error" else "",
        sections=tuple(sections),
    )


def unreadable_view(site: Site, row: SourceRow, common_folder: str, problem: str) -> SourceView:
    """Return what the page of a source shows that has a row in the index, and a record that has not what it should.

    Args:
        site: What all pages have in common.
        row: Its row in the index.
        common_folder: Path of the deepest folder that holds all sources.
        problem: What is wrong with the record.
    """
    notice = f"The record of this source cannot be read: {problem}. docs/records.md says what a record has."
    site = replace(site, notices=(*site.notices, notice))
    card = card_of(row, None, common_folder)
    return SourceView(site, card, path=row.path, playback=Playback("none"), start=0.0, end=0.0)


def used_settings(record: SavedRecord, known: Mapping[str, Any]) -> Iterator[Settings]:
    """Yield what made the annotations of a record.

    Args:
        record: The record.
        known: What run.json has under `settings`.
    """
    ids: dict[SettingsKind, str | None] = {
        "transcript": record.speech_settings,
        "speakers": record.speaker_settings,
        "captions": record.caption_settings,
        "clips": record.clip_settings,
        "shots": record.shot_settings,
        "summary": record.summary_settings,
    }
    for kind, id_ in ids.items():
        if id_ is not None and id_ in known:
            yield settings_of(kind, known[id_])


def tracks_of(record: SavedRecord, names: SpeakerNames) -> list[Track]:
    """Return the tracks of a record with all their lines.

    Args:
        record: The record.
        names: The names to show for speakers.
    """
    speakers = _speakers(record, names)

    def spoken(segments: Iterable[Segment]) -> Iterator[Line]:
        for each in segments:
            speaker = speakers.get(each.speaker)
            yield Line(each.start, each.end, each.text, each.flags, words=_words(each), speaker=speaker)

    lines: dict[TrackKind, Iterable[Line]] = {
        "transcript": [
            *spoken(record.segments),
            *(
                Line(each.start, each.end, each.error, failed=True, speaker=speakers.get(each.speaker))
                for each in record.speech_failures
            ),
        ],
        "translations": spoken(record.translations),
        "captions": [
            *_captions(record.caption_spans, record.captions),
            *(Line(each.pts_seconds, each.pts_seconds, each.error, failed=True) for each in record.caption_failures),
        ],
        "clips": [
            *(Line(each.start, each.end, each.text, each.flags) for each in record.clips),
            *(Line(each.start, each.end, each.error, failed=True) for each in record.clip_failures),
        ],
        "shots": [Line(each.start, each.end) for each in record.shots],
        "speakers": [  # of a source whose speakers are not beside what they say
            Line(each.start, each.end, speaker=speakers[each.speaker]) for each in record.turns if not record.segments
        ],
    }
    tracks = []
    for kind, unordered in lines.items():
        ordered = tuple(sorted(unordered, key=lambda line: line.start))
        if ordered:
            tracks.append(Track(kind, ordered, len(ordered)))
    return tracks


def sections_of(tracks: Iterable[Track], start: float, end: float, seconds: float) -> list[Section]:
    """Return the sections of a source that is too long for one page; none if it is not.

    Args:
        tracks: Its tracks.
        start: Presentation time at which it begins.
        end: Presentation time at which it ends.
        seconds: A time of the section that is shown.
    """
    starts = sorted(line.start for track in tracks for line in track.lines)
    if len(starts) <= LINES_A_SECTION:
        return []
    # A record may say anything, such as that lines begin before the source, or all at one time.
    inner = {*starts[LINES_A_SECTION::LINES_A_SECTION]} - {starts[0]}
    limits = [min(start, starts[0]), *sorted(inner), max(end, starts[-1])]
    bounds = list(pairwise(limits))
    if len(bounds) == 1:
        return []
    chosen = max((k for k, (first, _) in enumerate(bounds) if first <= seconds), default=0)
    return [Section(first, last, k == chosen) for k, (first, last) in enumerate(bounds)]


def settings_of(kind: SettingsKind, value: Any) -> Settings:
    """Return what made annotations of a kind.

    Args:
        kind: The kind.
        value: What run.json has for it: `model` and `settings`.
    """
    value = value if isinstance(value, dict) else {}
    model, settings = value.get("model"), value.get("settings")
    model, settings = (each if isinstance(each, dict) else {} for each in (model, settings))
    facts = tuple(Fact(str(name), _in_words(each)) for name, each in settings.items())
    return Settings(kind, str(model.get("name", "")), str(model.get("revision", "")), facts)


def _in_words(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:_MOST_VALUE_CHARACTERS]


def _only(track: Track, section: Section, *, last: bool) -> Track:
    lines = [line for line in track.lines if section.start <= line.start and (last or line.start < section.end)]
    return Track(track.kind, tuple(lines), track.total)


def _first_lines(tracks: Sequence[Track], most: int) -> tuple[list[Track], int]:
    """Return the tracks with at most so many lines together, and how many of their last ones are left out."""
    lines = sum(len(track.lines) for track in tracks)
    if lines <= most:
        return list(tracks), 0
    kept = [replace(track, lines=track.lines[: len(track.lines) * most // lines]) for track in tracks]
    return kept, lines - sum(len(track.lines) for track in kept)


def _captions(spans: list[Text], captions: list[SavedCaption]) -> Iterator[Line]:
    """Yield the spans of captions, each with the flags of its frames."""
    at = 0
    for span in spans:
        flags: dict[str, None] = {}
        while at < len(captions) and captions[at].pts_seconds < span.start:
            at += 1
        while at < len(captions) and captions[at].pts_seconds < span.end:
            flags |= dict.fromkeys(captions[at].flags)
            at += 1
        yield Line(span.start, span.end, span.text, tuple(flags))


def _speakers(record: SavedRecord, names: SpeakerNames) -> dict[str | None, Speaker]:
    """Return the speakers of a record. Those that are shown by one name have one colour."""
    found = {each.speaker for each in (*record.segments, *record.translations)}
    found |= {each.speaker for each in record.speech_failures} | {each.speaker for each in record.turns}
    shown = names.of(_paths(record), found)
    ordered = sorted(shown, key=lambda each: (len(each), each))  # "speaker 10" comes after "speaker 9"
    colours = {name: k % SPEAKER_COLOURS for k, name in enumerate(dict.fromkeys(map(shown.get, ordered)))}
    return {each: Speaker(shown[each], colours[shown[each]]) for each in ordered}


def _named_speakers(record: SavedRecord, names: SpeakerNames) -> Iterator[NamedSpeaker]:
    own = names.of_source(_paths(record))
    for each, speaker in _speakers(record, names).items():
        if each is not None:
            yield NamedSpeaker(each, speaker.colour, own.get(each, ""), names.everywhere.get(each, ""))


def _paths(record: SavedRecord) -> tuple[str, str]:
    """Return the paths by which speakers.toml may name a source."""
    return record.source.path, record.source.absolute_path


def _words(segment: Segment) -> tuple[Word, ...]:
    """Return the words of a segment with all that is between them; none if they are not those of its text."""
    words, text, at = segment.words or [], segment.text, 0
    found = []
    for number, word in enumerate(words):
        begin = text.find(word.text.strip(), at)
        if begin < 0:
            return ()
        stop = len(text) if number == len(words) - 1 else begin + len(word.text.strip())
        found.append(Word(word.start, word.end, text[at:stop]))
        at = stop
    return tuple(found)


def _left(others: int | None) -> str:
    """Return what is said of streams of the same kind that are not read."""
    return f"; {count(others, 'other stream')} of the file not read" if others else ""


def _facts(record: SavedRecord) -> Iterator[Fact]:
    media, audio = record.media, record.audio
    if media:
        (width, height), stored = media.shown_size, (media.width, media.height)
        size = f"{width} x {height}" + ("" if (width, height) == stored else f" (stored as {stored[0]} x {stored[1]})")
        left = _left(media.other_streams)
        yield Fact("Video", f"{size}, {media.video_codec}, {media.average_fps:g} frames a second{left}")
    if audio:
        channels = "1 channel" if audio.channels == 1 else f"{audio.channels} channels"
        yield Fact("Audio", f"{audio.codec}, {audio.sample_rate:,} Hz, {channels}{_left(audio.other_streams)}")
    elif media and media.audio_codec:
        yield Fact("Audio", media.audio_codec)
    if record.source.bytes is not None:
        yield Fact("Size", f"{record.source.bytes:,} bytes")
    if record.source.sha256:
        yield Fact("SHA-256", record.source.sha256)
