"""Choices about exported pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

MediaChoice = Literal["link", "copy", "none"]
"""What players open: the sources themselves, copies of them beside the pages, or nothing."""

MEDIA_CHOICES: tuple[MediaChoice, ...] = get_args(MediaChoice)


@dataclass(frozen=True)
class SiteOptions:
    """Choices about exported pages."""

    run: Path
    """Folder of the run, which has the thumbnails."""
    media: MediaChoice = "link"
    """What players open."""
