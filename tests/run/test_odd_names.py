"""Names of every kind, wherever they come from: each is one record, and the sources beside them are done."""

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from reelscribe.run.driver import Run
from reelscribe.run.source_list import SourceList
from reelscribe.run.tracks.shots import ShotOptions, ShotTrack
from support.buckets import bucket_server
from support.videos import write_noise

GOOD = "zz-good.mp4"
NAMES = [
    "shard.tar::x.mp4",
    "a.tar::b.tar::c.mp4",
    ".tar::x.mp4",
    "folder.tar::y/x.mp4",
    "a::b.mp4",
    "two\nlines\r.mp4",
    "\x1b[2J\x7f.mp4",
    "\u202egnp.mp4",
    "%2e%2e%2f.mp4",
    "a?b#c&d=e;f.mp4",
    "*[!x]?.mp4",
    "~$HOME `x`.mp4",
    "é.mp4",
    " .mp4",
    "x" * 240 + ".mp4",
]
"""What nearly every place can have as a name; those with `.tar::` would be members of archives."""


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("video") / "noise.mp4"
    write_noise(path, 8)
    return path.read_bytes()


async def errors(out: Path, *names: str | SourceList) -> dict[str, str | None]:
    """Look for the shots of sources; returns the type of each one's error by its name."""
    await Run([ShotTrack(ShotOptions(decode_workers=1))], out).run(names)
    records = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    return {record["source"]["path"]: record["error"] and record["error"]["type"] for record in records}


def expected(folder: str, names: list[str]) -> dict[str, str | None]:
    """Every name has a record, with an error if it looks like that of a member of an archive."""
    return {f"{folder}{name}": "MediaError" if ".tar::" in name else None for name in names}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_key_in_a_bucket(scheme, monkeypatch, video, tmp_path):
    keys = [*NAMES, GOOD, "../up.mp4", "a//b.mp4", "/x.mp4", "y" * 1000 + ".mp4"]
    with bucket_server(scheme, monkeypatch) as bucket:
        if scheme == "s3":  # moto has no such keys
            keys = [key for key in keys if "\n" not in key]
        for key in keys:
            bucket.put(key, video)
        assert await errors(tmp_path, f"{scheme}://bucket/") == expected(f"{scheme}://bucket/", keys)


async def test_a_key_that_no_text_can_be_is_a_record(monkeypatch, video, tmp_path):
    with bucket_server("gs", monkeypatch) as bucket:
        for key in ("half \ud800.mp4", GOOD):
            bucket.put(key, video)
        found = await errors(tmp_path, "gs://bucket/")
    assert found == {"gs://bucket/half \\ud800.mp4": "MediaError", f"gs://bucket/{GOOD}": None}


async def test_a_file_in_a_folder(video, tmp_path):
    (folder := tmp_path / "films").mkdir()
    names = [*NAMES, GOOD, "caf\udce9.mp4"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(video)
    shown = [name.replace("\udce9", "\\udce9") for name in names if not name.startswith(".")]
    assert await errors(tmp_path / "out", str(folder)) == expected(f"{folder}/", shown)


async def test_a_member_of_an_archive(video, tmp_path):
    names = [*NAMES, GOOD, "../up.mp4", "/root.mp4", "caf\udce9.mp4", "long/" * 2000 + "x.mp4"]
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(video)
            tar.addfile(info, io.BytesIO(video))
    found = await errors(tmp_path / "out", f"{tmp_path}/s.tar")
    assert len(found) == len(names)
    assert set(found.values()) == {None}


async def test_a_name_in_a_list(video, tmp_path):
    (tmp_path / GOOD).write_bytes(video)
    names = [*NAMES, "x" * 10_000 + ".mp4", "y/" * 5000 + ".tar::z.mp4", "none.tar", "s3:/b.mp4", "nowhere\udcff/"]
    (listed := tmp_path / "list").write_bytes(b"\0".join(map(os.fsencode, [*names, str(tmp_path / GOOD)])))
    found = await errors(tmp_path / "out", SourceList(str(listed), null=True))
    assert found.pop(str(tmp_path / GOOD)) is None
    assert len(found) == len(names)
    assert None not in found.values()


async def test_a_file_below_a_folder_with_the_name_of_a_member(video, tmp_path, monkeypatch):
    (folder := tmp_path / "s.tar::x").mkdir()
    (folder / GOOD).write_bytes(video)
    monkeypatch.chdir(folder)
    (tmp_path / "list").write_text(GOOD)
    assert await errors(tmp_path / "out", GOOD) == {GOOD: "MediaError"}
    assert await errors(tmp_path / "out", SourceList("../list")) == {GOOD: "MediaError"}
