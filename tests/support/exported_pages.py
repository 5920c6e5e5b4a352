"""Folders of results with real media, their exported pages, and what those refer to."""

import hashlib
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np

from reelscribe.export.formats import export
from reelscribe.thumbnails.pictures import to_webp
from reelscribe.thumbnails.store import ThumbnailStore
from reelscribe.viewer.site import SiteOptions
from support.exporting import annotations, record, video

MEDIA = Path(__file__).parents[2] / "demo" / "media"

PICTURE = to_webp(np.full((18, 32, 3), 90, np.uint8))

ADDRESSES = {"href", "src", "poster", "action"}


def source_record(path, *captions, of="same-640x360.webm", **changes):
    """A record of a copy of a video of the demo, which is made at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(MEDIA / of, path)
    value = record(str(path), *captions, media=video() | {"video_codec": "vp9"}, **changes)
    value["source"] |= {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return value


def page_id(path):
    """The id of a source, by which its page is named."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:16]


def exported_site(run, records, media="none", *, pictures=True):
    """Export pages of records; returns the folder of the site, and the line that was told.

    Where the run shall have `pictures`, each source with a digest has thumbnails of the seconds 0 to 2.
    """
    run.mkdir(exist_ok=True)
    told = []
    for digest in {each["source"]["sha256"] for each in records if each and pictures} - {"00ff"}:
        for seconds in range(3):
            ThumbnailStore(run).write(digest, seconds, PICTURE)
    export(annotations(run, records), run, ["html"], site=SiteOptions(run, media), tell=told.append)
    (line,) = told
    return run / "html", line


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.addresses += [value for name, value in attributes if name in ADDRESSES]


def tags_of(path):
    """The elements of a page, each with its attributes."""
    return _Page(path.read_text()).tags


def files_of(path):
    """The files that a page refers to, as absolute paths."""
    addresses = [urlsplit(address) for address in _Page(path.read_text()).addresses]
    assert not any(address.scheme or address.netloc for address in addresses)
    return [Path(path.parent, unquote(address.path)).resolve() for address in addresses if address.path]


def pieces(site, kind):
    """The content of the pieces of a search index, in the order of the manifest."""
    names = [name for name, _, _ in _value(site / "index/manifest.js")[kind]]
    return [row for name in names for row in _value(site / f"index/{name}.js")]


def _value(path):
    start, _, value = path.read_bytes().decode().partition(", ")
    assert start == f'reelscribe.piece("{path.stem}"'
    assert value.endswith(");\n")
    return json.loads(value.removesuffix(");\n"))
