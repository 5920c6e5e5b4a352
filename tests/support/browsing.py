"""Servers of `reelscribe browse` and indexes, over folders of results that tests write."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.viewer.browse.serve import serving
from reelscribe.viewer.content.search_page import SearchPage
from reelscribe.viewer.index.queries import find_sources, find_texts, rows_in_order, source_row
from reelscribe.viewer.index.source_index import SourceIndex
from reelscribe.viewer.index.source_row import SourceRow, source_id
from reelscribe.viewer.index.word_rules import parse_query
from reelscribe.viewer.pages.parameters import TEXT_KINDS, LibraryQuery, SearchQuery
from reelscribe.viewer.pages.views import Site
from support.exporting import record
from support.fake_torchserve import FakeTorchServe, captions


def segments(*texts: str, language: str = "en") -> list[dict]:
    """A transcript of one text a second."""
    common = {"language": language, "no_speech_prob": None, "avg_logprob": None, "words": None}
    return [{"start": float(k), "end": k + 1.0, "text": text, **common} for k, text in enumerate(texts)]


def write_annotations(out: Path, *records: dict) -> Path:
    """Write annotations.jsonl as a run does: a new file in place of the old one."""
    out.mkdir(exist_ok=True)
    path = out / "annotations.jsonl"
    partial = out / "annotations.jsonl.partial"
    partial.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in records))
    partial.replace(path)
    return path


def record_of_file(path: Path, *captions: str, **changes) -> dict:
    """A record of a file that exists."""
    value = record(str(path), *captions, **changes)
    value["source"]["bytes"] = path.stat().st_size
    return value


@contextmanager
def open_index(out: Path) -> Iterator[SourceIndex]:
    """An index of a folder that is up to date."""
    folder = out / ".browse"
    folder.mkdir(exist_ok=True)
    with SourceIndex(out, folder) as index:
        index.refresh()
        yield index


def row_of(index: SourceIndex, path: Path) -> SourceRow:
    """The row of a source in an index."""
    with index.reader() as reader:
        row = source_row(reader, source_id(os.fsencode(path)))
    assert row
    return row


async def caption(out: Path, *paths: Path, **options) -> None:
    """Caption videos with a model that is none."""
    async with FakeTorchServe(captions) as server, CaptionClient([Server(server.url)], "captioner") as client:
        track = CaptionTrack(client, CaptionOptions(sampling=Sampling(every=1), **options))
        await Run([track], out, thumbnails=0).run([*map(str, paths)])


def names(index: SourceIndex, **filters) -> list[str]:
    """The names of the sources that fit filters, in the order of a query."""
    with index.reader() as reader:
        return [
            os.path.basename(row.path) for row in rows_in_order(reader, find_sources(reader, LibraryQuery(**filters)))
        ]


def count_hits(index: SourceIndex, query: str) -> int:
    """The number of texts that a query finds."""
    with index.reader() as reader:
        return len(find_texts(reader, parse_query(query), TEXT_KINDS).numbers)


def found(index: SourceIndex, query: str, thumbnails, **changes) -> list[str]:
    """The texts that a query finds, with [brackets] around what is marked."""
    view = SearchPage(index, thumbnails).view(Site("out"), SearchQuery(query, **changes))
    return ["".join(f"[{part.text}]" if part.marked else part.text for part in hit.parts) for hit in view.hits]


@contextmanager
def browsing(out: Path, **options) -> Iterator[str]:
    """Run `reelscribe browse` in a thread, and return its address."""
    with serving(out, **options) as server:
        thread = Thread(target=server.run)
        thread.start()
        try:
            yield server.address
        finally:
            server.stop()
            thread.join()
