"""Sources that change while a run reads them: no record has results of other bytes."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient
from reelscribe.decode.sampling import Sampling
from reelscribe.results.ledger import Ledger
from reelscribe.run.driver import Run
from reelscribe.run.tracks.captions import CaptionOptions, CaptionTrack
from support.fake_torchserve import FakeTorchServe, captions
from support.videos import write


def grey(path: Path, level: int) -> Path:
    """A video of 30 frames of one level, by which the fake captioner names them."""
    write(path, "mpeg4", np.full(30, level))
    return path


async def caption(out: Path, library: Path, answer=captions) -> dict[str, set[str]]:
    """Caption all frames of a folder; return the texts of each record, or its error."""
    options = CaptionOptions(sampling=Sampling(every=1), frames_per_request=4, decode_workers=1)
    async with FakeTorchServe(answer) as server, CaptionClient([Server(server.url)], "captioner") as client:
        await Run([CaptionTrack(client, options)], out).run([str(library)])
    records = map(json.loads, (out / "annotations.jsonl").read_text().splitlines())
    return {
        Path(record["source"]["path"]).name: {caption["text"] for caption in record["captions"]}
        or {record["error"]["message"]}
        for record in records
    }


@pytest.fixture
def library(tmp_path):
    """A folder with a video and its copy, besides which there is another video."""
    library = tmp_path / "library"
    library.mkdir()
    shutil.copy(grey(tmp_path / "dark.mp4", 30), library / "a.mp4")
    shutil.copy(library / "a.mp4", library / "b.mp4")
    grey(tmp_path / "bright.mp4", 200)
    return library


def put(content: Path, place: Path) -> None:
    """Replace a file atomically."""
    shutil.copy(content, f"{place}.new")
    os.replace(f"{place}.new", place)


async def test_a_source_that_is_another_file_only_while_it_is_decoded_gets_no_captions_of_it(
    library, tmp_path, monkeypatch
):
    job = Ledger.job

    def replace_after_digest(ledger, sha256, settings):
        if not os.path.exists(tmp_path / "replaced"):
            put(tmp_path / "bright.mp4", library / "a.mp4")
            (tmp_path / "replaced").touch()
        return job(ledger, sha256, settings)

    async def put_back(request):
        put(tmp_path / "dark.mp4", library / "a.mp4")
        return await captions(request)

    monkeypatch.setattr(Ledger, "job", replace_after_digest)
    first = await caption(tmp_path / "out", library, put_back)
    assert set.union(*first.values()) <= {
        "frame 30",
        "it was changed while it was being read; run the same command again",
    }
    assert "frame 30" not in first["a.mp4"]
    assert await caption(tmp_path / "out", library) == {"a.mp4": {"frame 30"}, "b.mp4": {"frame 30"}}


async def test_what_came_of_a_source_that_changes_halfway_is_forgotten(library, tmp_path):
    (library / "b.mp4").unlink()

    async def replace(request):
        put(tmp_path / "bright.mp4", library / "a.mp4")
        return await captions(request)

    first = await caption(tmp_path / "out", library, replace)
    assert first == {"a.mp4": {"it was changed while it was being read; run the same command again"}}
    assert await caption(tmp_path / "out", library) == {"a.mp4": {"frame 200"}}
    put(tmp_path / "dark.mp4", library / "a.mp4")
    assert await caption(tmp_path / "out", library) == {"a.mp4": {"frame 30"}}
