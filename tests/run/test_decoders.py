"""Runs in which decord decodes: the files that it cannot read are read by PyAV, and the run says how many."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode import frame_reader
from reelscribe.decode.sampling import Sampling
from reelscribe.errors import UsageError
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from reelscribe.thumbnails.store import ThumbnailStore
from support.fake_torchserve import FakeTorchServe
from support.videos import write_noise, write_pictures

EVERY = Sampling(every=1)


@pytest.fixture
def library(tmp_path) -> Path:
    """A file for decord, one in which it finds other times, and one with packets that nobody can decode."""
    folder = tmp_path / "library"
    folder.mkdir()
    grey = [np.full((48, 64, 3), 100, np.uint8)] * 20
    write_pictures(folder / "good.mp4", "libx264", grey)
    write_pictures(folder / "recording.ts", "libx264", grey)
    content = bytearray(write_noise(folder / "damaged.mp4", 60).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 20_000] = bytes(20_000)
    (folder / "damaged.mp4").write_bytes(content)
    return folder


async def run(folder: Path, out: Path, options: CaptionOptions):
    """The summary, and the records by the names of files."""
    async with FakeTorchServe() as server, CaptionClient([Server(server.url)], "captioner") as client:
        summary = await Run([CaptionTrack(client, options)], out).run([str(folder)])
    records = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    return summary, {Path(record["source"]["path"]).name: record for record in records}


def frames_of(record: dict) -> list[tuple[int, float]]:
    """The frames that have a caption, and their times."""
    return [(caption["frame_index"], caption["pts_seconds"]) for caption in record["captions"]]


async def test_the_run_says_how_many_files_pyav_has_read_and_they_end_as_ever(library, tmp_path):
    summary, records = await run(library, tmp_path / "decord", CaptionOptions(EVERY, decoder="decord"))
    assert "2 of the sources read by PyAV in place of decord" in str(summary)
    by_pyav, expected = await run(library, tmp_path / "pyav", CaptionOptions(EVERY))
    assert "PyAV" not in str(by_pyav)
    assert (summary.replaced_processes, by_pyav.replaced_processes) == (1, 0)  # decord gives up at damage
    assert expected["damaged.mp4"]["error"] is not None
    for name, record in records.items():
        assert (record["error"], frames_of(record)) == (expected[name]["error"], frames_of(expected[name]))


async def test_decord_is_one_of_the_settings_and_pyav_is_not(library, tmp_path):
    for decoder in ("pyav", "decord"):
        await run(library / "good.mp4", tmp_path / "out", CaptionOptions(EVERY, decoder=decoder))
    found = json.loads((tmp_path / "out" / "run.json").read_text())["settings"].values()
    assert [each["settings"].get("decoder") for each in found] == ["decord"]
    _, records = await run(library / "good.mp4", tmp_path / "out", CaptionOptions(EVERY))
    assert len(records["good.mp4"]["captions"]) == 20


async def test_thumbnails_are_made_of_what_decord_has_scaled(library, tmp_path):
    _, records = await run(library / "good.mp4", tmp_path / "out", CaptionOptions(EVERY, decoder="decord"))
    store, sha256 = ThumbnailStore(tmp_path / "out"), records["good.mp4"]["source"]["sha256"]
    (seconds,) = store.times(sha256)
    assert store.read(sha256, seconds)


@pytest.mark.parametrize("options", [{"resize": "exact"}, {"deinterlace": True}])
async def test_decord_neither_scales_exactly_nor_deinterlaces(library, tmp_path, options):
    with pytest.raises(UsageError, match="expected --resize fast and no --deinterlace with decord"):
        await run(library, tmp_path / "out", CaptionOptions(EVERY, decoder="decord", **options))


async def test_decord_must_be_installed(library, tmp_path, monkeypatch):
    monkeypatch.setattr(frame_reader, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"expected the package decord, got none; install it with: .*\[decord\]"):
        await run(library, tmp_path / "out", CaptionOptions(EVERY, decoder="decord"))
    assert not list(tmp_path.glob("out/*.jsonl"))
