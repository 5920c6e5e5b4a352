"""Writes the pages of a folder of results: `html/index.html` is the library, from which a browser reaches the others.

Records are read one at a time. The pages of sources come first, then the search index, and the library last, so that
an export that breaks off leaves no library that promises more than is there, or else the one of an earlier export.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from reelscribe.export.annotations_reader import annotated_source, read_lines, read_models, read_settings, source_path
from reelscribe.export.folder import ExportFolder, common_folder_of
from reelscribe.export.speakers import SpeakerNames, read_speaker_names
from reelscribe.reporting.formatting import count
from reelscribe.viewer.content.source_page import source_view, used_settings
from reelscribe.viewer.index.saved_record import SavedRecord, UnreadableRecord, in_order, read_record
from reelscribe.viewer.index.source_row import BadLine, SourceRow, read_line
from reelscribe.viewer.index.word_rules import folded
from reelscribe.viewer.media.media_files import MediaFiles, MediaRefused, playback_of_format
from reelscribe.viewer.media.source_thumbnails import line_thumbnail_time
from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, SearchQuery
from reelscribe.viewer.pages.render import STATIC as STATIC_FILES
from reelscribe.viewer.pages.render import Renderer
from reelscribe.viewer.pages.views import Line, Playback, SearchView, Site, SourceView
from reelscribe.viewer.site import SiteOptions
from reelscribe.viewer.site.card_file import CardFile
from reelscribe.viewer.site.file_links import MEDIA, SOURCES, STATIC, THUMBNAILS, FileLinks, page_address
from reelscribe.viewer.site.played_media import PlayedMedia
from reelscribe.viewer.site.private_paths import PrivatePaths
from reelscribe.viewer.site.search_pieces import IndexedPage, IndexedText, SearchIndex
from reelscribe.viewer.site.site_thumbnails import THUMBNAIL_NAME, SiteThumbnails

ROOT = "html"
"""Name of the folder of the site."""

_SOURCE_PAGE = re.compile(r"[0-9a-f]{16}(-[0-9]+)?\.html")
_SOURCE_ID = re.compile(r"[0-9a-f]{16}")
_LIBRARY_PAGE = re.compile(r"(library-[0-9]+|failed(-[0-9]+)?)\.html")
_CANNOT_PLAY = "Browsers cannot play this file. Its texts and thumbnails are here."


def write_site(folder: ExportFolder, annotations: Path, options: SiteOptions, tell: Callable[[str], None]) -> None:
    """Write the pages of all sources, the search and the library.

    Args:
        folder: The folder of the export.
        annotations: Path of annotations.jsonl, with run.json beside it.
        options: Choices.
        tell: Called with a line that says what was done.

    Raises:
        UsageError: A line is not a record, `speakers.toml` is not as it should be, or a file cannot be read or
            written.
    """
    models = read_models(annotations)
    settings = read_settings(annotations)
    common_folder = common_folder_of(read_lines(annotations, source_path))
    names = read_speaker_names(options.run)
    with SearchIndex(folder, ROOT) as index, CardFile() as cards:
        pages = _SourcePages(folder, options, settings, common_folder, index, cards)
        for row, record in read_lines(annotations, partial(_parsed, models=models)):
            pages.write(row, record, names)
            del record  # it may take hundreds of megabytes, so that it must not stay while the next one is read
        index.finish()
        pages.finish()
    for line in (pages.summary(), *names.unused()):
        tell(line)


def _parsed(line: bytes, models: Mapping[str, Any]) -> tuple[SourceRow, SavedRecord]:
    """Parse a line after the same checks as for all other formats."""
    annotated_source(line, models)
    try:
        return read_line(line, doc=0, file=0, start=0).row, read_record(line)
    except (BadLine, UnreadableRecord) as error:
        raise ValueError(str(error)) from None


class _SourcePages:
    """Writes the pages of one source after the other, and what belongs to all of them at the end."""

    def __init__(
        self,
        folder: ExportFolder,
        options: SiteOptions,
        settings: Mapping[str, Any],
        common_folder: str,
        index: SearchIndex,
        cards: CardFile,
    ) -> None:
        self._folder, self._settings, self._index, self._cards = folder, settings, index, cards
        self._common_folder = common_folder
        self._site = Site(os.path.basename(os.path.abspath(options.run)))
        self._files = MediaFiles(options.run)
        self._media = PlayedMedia(folder, ROOT, self._files, options.media)
        self._thumbnails = SiteThumbnails(folder, ROOT, options.run, self._files)
        self._links = FileLinks()
        self._renderer = Renderer(self._links)
        self._names: set[str] = set()
        self._sources: set[str] = set()

    def write(self, row: SourceRow, record: SavedRecord, names: SpeakerNames) -> None:
        """Write the pages of a source, with these names of speakers, and what they refer to."""
        private = PrivatePaths(row.path, record.source.path, self._common_folder)
        times = self._thumbnails.write(row, video=record.media is not None)
        view = partial(
            source_view,
            self._site,
            row,
            record,
            common_folder=self._common_folder,
            playback=self._playback(row, record),
            thumbnails=times,
            settings=list(used_settings(record, self._settings)),
            retry="",
            names=names,
        )
        first = private.view(view(seconds=record.start_seconds))
        self._sources.add(row.id)
        self._cards.add(first.card)
        found_by = row.found_by[len(folded(self._common_folder)) :].lstrip("/")
        self._index.add_card(first.path, page_address(row.id, 1), found_by, self._renderer.card(first.card))
        self._links.sections_of.pop(row.id, None)
        if first.sections:
            self._links.sections_of[row.id] = [section.start for section in first.sections]
        self._write_page(first, 1)
        for number, section in enumerate(first.sections[1:], 2):
            self._write_page(private.view(view(seconds=section.start)), number)

    def finish(self) -> None:
        """Write what the pages have in common, and remove what no page refers to any more."""
        self._write("search.html", self._renderer.search(SearchView(self._site, SearchQuery())))
        written, home = set[str](), ""
        for query in (LibraryQuery(state="error"), LibraryQuery()):
            for view in self._cards.views(self._site, query):
                if view.query == LibraryQuery():
                    home = self._renderer.library(view)
                else:
                    written.add(self._links.library(view.query))
                    self._write(self._links.library(view.query), self._renderer.library(view))
        for name in sorted(self._links.static_names):
            with self._folder.file(f"{ROOT}/{STATIC}/{name}", listed=False) as file:
                file.write((STATIC_FILES / name).read_bytes())
        self._write("index.html", home, listed=True)  # all that it leads to is there
        self._removed = self._folder.remove(f"{ROOT}/{SOURCES}", _SOURCE_PAGE, self._names)
        self._folder.remove(ROOT, _LIBRARY_PAGE, written)
        self._folder.remove_folders(f"{ROOT}/{THUMBNAILS}", _SOURCE_ID, self._sources, THUMBNAIL_NAME)

    def summary(self) -> str:
        """Return in one line what was written beside the pages, and what is missing."""
        thumbnails, media = self._thumbnails, self._media
        parts = [f"pages of {count(len(self._sources), 'source')}", count(thumbnails.written, "thumbnail")]
        if thumbnails.sources_made:
            parts.append(f"made for {count(thumbnails.sources_made, 'source')} that had none")
        if thumbnails.sources_without:
            parts.append(f"{count(thumbnails.sources_without, 'video')} without any")
        if media.copied:
            parts.append(f"{count(media.copied, 'file')} of media copied ({_in_bytes(media.copied_bytes)})")
        if media.kept:
            parts.append(f"{count(media.kept, 'copy').replace('copys', 'copies')} of an earlier export kept")
        if unused := media.unused():
            parts.append(f"{count(unused, 'file')} in {ROOT}/{MEDIA} that no page plays")
        if self._removed:
            parts.append(f"{count(self._removed, 'page')} of sources removed that are no longer in the results")
        return f"open {self._folder.path / ROOT / 'index.html'} in a browser; {', '.join(parts)}"

    def _playback(self, row: SourceRow, record: SavedRecord) -> Playback:
        played = playback_of_format(row, record, previews=False)
        if played.player == "none":
            return replace(played, reason=_CANNOT_PLAY)  # commands are of no use to somebody who was given the pages
        try:
            self._links.media_of[row.id] = self._media.address(row)
        except MediaRefused as error:
            return Playback("none", f"{error}.")
        return played

    def _write_page(self, view: SourceView, number: int) -> None:
        address = page_address(view.card.id, number)
        self._names.add(os.path.basename(address))
        self._write(address, self._renderer.source(view))
        page = IndexedPage(address, f"{THUMBNAILS}/{view.card.id}", view.path, view.card.missing)
        self._index.add(page, _texts(view, number))

    def _write(self, name: str, text: str, *, listed: bool = False) -> None:
        with self._folder.file(f"{ROOT}/{name}", listed=listed) as file:
            file.write(text.encode())


def _in_bytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 1e6 else count(number, "byte")


def _texts(view: SourceView, number: int) -> Iterator[IndexedText]:
    times = list(view.thumbnails)
    if view.summary and number == 1:  # each page of a source has its summary, which is found once
        yield IndexedText("summary", view.start, line_thumbnail_time(times, view.start, view.start), view.summary.line)
    tracks: dict[str, tuple[Line, ...]] = {track.kind: track.lines for track in view.tracks}
    tracks["transcript"] = tuple(in_order([*tracks.get("transcript", ()), *tracks.get("translations", ())]))
    for kind in TEXT_KINDS:
        for line in tracks.get(kind, ()):
            if not line.failed:
                yield IndexedText(kind, line.start, line_thumbnail_time(times, line.start, line.end), line.text)
