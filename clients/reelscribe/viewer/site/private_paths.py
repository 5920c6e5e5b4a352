"""Hides the paths of the machine from exported pages, which show only how sources lie to each other."""

from __future__ import annotations

import os
from dataclasses import replace

from reelscribe.viewer.pages.views import Line, Settings, SourceView, Track


class PrivatePaths:
    """Takes the path of the folder that has all sources out of what is shown of one of them."""

    def __init__(self, absolute_path: str, path: str, common_folder: str) -> None:
        """Describe a source.

        Args:
            absolute_path: Its absolute path.
            path: Its path as it was given to the run.
            common_folder: Deepest folder that holds all sources, from `folder.common_folder_of`.
        """
        prefix = common_folder.rstrip("/") + "/"
        inside = absolute_path.startswith(prefix)
        self.path = absolute_path[len(prefix) :] if inside else os.path.basename(absolute_path)
        """Its path as counted from that folder."""
        given = [path] if path.startswith("/") else []
        self._shown = [(text, self.path) for text in (absolute_path, *given)]
        self._shown += [(prefix, "")] if prefix != "/" else []

    def text(self, text: str) -> str:
        """Return a text of the run, such as the message of an error, without the path of the folder.

        Args:
            text: The text.
        """
        for path, shown in self._shown:
            if path in text:
                text = text.replace(path, shown)
        return text

    def view(self, view: SourceView) -> SourceView:
        """Return what the page of the source shows to somebody else.

        Args:
            view: What it shows to the user who made it.
        """
        return replace(
            view,
            card=replace(view.card, error=self.text(view.card.error)),
            path=self.path,
            playback=replace(view.playback, reason=self.text(view.playback.reason)),
            tracks=tuple(map(self._track, view.tracks)),
            settings=tuple(map(_settings, view.settings)),
        )

    def _track(self, track: Track) -> Track:
        return replace(track, lines=tuple(map(self._line, track.lines)))

    def _line(self, line: Line) -> Line:
        return replace(line, text=self.text(line.text)) if line.failed else line


def _settings(settings: Settings) -> Settings:
    """Return settings whose model is named, and not located, if it was a folder on the server."""
    return replace(settings, model=os.path.basename(settings.model)) if settings.model.startswith("/") else settings
