"""Thumbnails that are made when somebody looks: for whom, how often, and how many are kept."""

import asyncio
import json
import os
from threading import Event

import aiohttp
import pytest

from reelscribe.errors import DecoderDied, MediaError
from reelscribe.viewer.index.source_row import read_line, source_id
from reelscribe.viewer.media import source_thumbnails
from reelscribe.viewer.media.media_files import MediaFiles
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails
from support.browsing import browsing, record_of_file, write_annotations
from support.patience import PATIENCE


def video(path, sha256: str) -> dict:
    """The record of a file as if it were a video."""
    path.write_bytes(b"any bytes")
    record = record_of_file(path, "a caption")
    record["source"]["sha256"] = sha256
    return record


def row_of(record: dict):
    return read_line(json.dumps(record).encode(), doc=1, file=0, start=0).row


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that were decoded, in order, each to one thumbnail of 60 bytes."""
    names = []

    def make(path, **_):
        names.append(os.path.basename(os.path.realpath(path)))
        yield 1.0, b"x" * 60

    monkeypatch.setattr(source_thumbnails, "make_thumbnails", make)
    return names


def test_a_copy_that_is_gone_does_not_hide_the_thumbnails_of_another(tmp_path, thumbnails, decoded):
    gone, there = (row_of(video(tmp_path / name, "ab" * 32)) for name in ("gone.mp4", "there.mp4"))
    (tmp_path / "gone.mp4").unlink()
    assert thumbnails.webp(gone, 1.0) is None
    assert thumbnails.webp(there, 1.0) == b"x" * 60


@pytest.mark.parametrize(("error", "made"), [(DecoderDied("killed"), b"late"), (MediaError("damaged"), None)])
def test_only_a_file_that_cannot_be_decoded_is_given_up(tmp_path, thumbnails, monkeypatch, error, made):
    def make(path, **_):
        raise error
        yield

    row = row_of(video(tmp_path / "a.mp4", "ab" * 32))
    monkeypatch.setattr(source_thumbnails, "make_thumbnails", make)
    assert thumbnails.webp(row, 1.0) is None
    monkeypatch.setattr(source_thumbnails, "make_thumbnails", lambda path, **_: iter([(1.0, b"late")]))
    assert thumbnails.webp(row, 1.0) == made


def test_where_there_is_no_room_the_oldest_thumbnails_go(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(source_thumbnails, "MOST_MADE_BYTES", 256 * 150)
    thumbnails = SourceThumbnails(tmp_path, tmp_path / "cache", MediaFiles(tmp_path))
    (tmp_path / "cache").mkdir()
    rows = [row_of(video(tmp_path / f"{k}.mp4", "ab" + f"{k:062}")) for k in range(3)]
    for row in rows:
        assert thumbnails.webp(row, 1.0) == b"x" * 60
        os.utime(tmp_path / "cache/thumbnails/ab" / row.content, (row.doc, len(decoded)))
    assert [thumbnails.existing_webp(row, 1.0) is not None for row in rows] == [False, True, True]


async def test_thumbnails_that_nobody_waits_for_any_more_are_not_made(tmp_path, monkeypatch):
    begun, ended, names = Event(), Event(), []

    def make(path, **_):
        names.append(os.path.basename(os.path.realpath(path)))
        if len(names) == 2:
            begun.set()
        ended.wait(PATIENCE)
        yield 1.0, b"x"

    monkeypatch.setattr(source_thumbnails, "make_thumbnails", make)
    files = [tmp_path / f"{k}.mp4" for k in range(12)]
    write_annotations(tmp_path / "out", *(video(file, f"{k:064}") for k, file in enumerate(files)))
    addresses = [f"thumbnail/{source_id(os.fsencode(file))}/1000.webp" for file in files]
    with browsing(tmp_path / "out") as address:
        try:
            async with aiohttp.ClientSession() as client:
                waiting = [asyncio.create_task(client.get(address + name)) for name in addresses[:-1]]
                assert await asyncio.to_thread(begun.wait, PATIENCE)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            async with aiohttp.ClientSession() as client:
                await client.get(address)  # the server sees who has left before it answers this
                ended.set()
                async with client.get(address + addresses[-1]) as response:
                    assert response.status == 200
        finally:
            ended.set()
    assert "11.mp4" in names
    assert len(names) <= 5  # those that were begun, and the one that somebody waits for
