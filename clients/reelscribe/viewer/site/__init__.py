"""The export of results as pages: files that a browser opens from a folder, without a server or an installation.

`site_writer.write_site` is the entry. It makes the pages with the renderer of `reelscribe.viewer.pages`, each source in
turn, and beside them a search index in pieces (search_pieces.py), thumbnails (site_thumbnails.py), and the files that
players open (played_media.py). The choices of the user are here, where the command line has them without the renderer.

Below `html/` lie, with ID for the first 16 hexadecimal digits of the SHA-256 of the absolute path of a source::

    index.html, library-2.html    the library, with 96 sources on a page
    failed.html, failed-2.html    the sources that failed
    search.html                   the search
    source/ID.html, ID-2.html     a source; one with more than 2,000 lines of text has several sections
    thumbnails/ID/*.webp          its thumbnails, named after their times in milliseconds
    media/ID.*                    with `copy`, the copy of a source that browsers can play
    index/*.js                    the pieces of the search and of the library
    static/*                      style sheets and scripts

Names of sources are in no name of a file. Only files with such names are removed, and none in `media/`, because a
source may be gone by now. The library and the manifest of the index are replaced last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

MediaChoice = Literal["link", "copy", "none"]
"""The files that players open: the sources themselves, copies of them beside the pages, or nothing."""

MEDIA_CHOICES: tuple[MediaChoice, ...] = get_args(MediaChoice)


@dataclass(frozen=True)
class SiteOptions:
    """Choices about exported pages."""

    run: Path
    """Folder of the run, which has the thumbnails."""
    media: MediaChoice = "link"
    """The files that players open."""
