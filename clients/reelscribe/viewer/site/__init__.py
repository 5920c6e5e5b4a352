"""The export of results as pages: files that a browser opens from a folder, without a server or an installation.

`site_writer.write_site` is the entry. It makes the pages with the renderer of `reelscribe.viewer.pages`, each source in
turn, and beside them a search index in pieces (search_pieces.py), thumbnails (site_thumbnails.py), and the files that
players open (played_media.py). The choices of the user are here, where the command line has them without the renderer.
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
