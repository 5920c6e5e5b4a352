"""An output folder between runs: files that are brought up to date, and sources that are forgotten."""

import hashlib
import json
from pathlib import Path

import pytest

from reelscribe._files import FolderLock
from reelscribe.contract.outcomes import Caption
from reelscribe.contract.source import Source
from reelscribe.errors import OutputError, UsageError
from reelscribe.results.annotations import current_annotations
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.forget import forget
from reelscribe.results.ledger import Ledger
from reelscribe.thumbnails.store import ThumbnailStore

SETTINGS = {"model": ["some/model", "abc"], "sampling": {"every": 1}}


async def save(out: Path, *paths: str) -> None:
    """Save sources that are done, each with the content and the caption of its path."""
    async with Ledger(out) as ledger:
        for path in paths:
            sha256 = sha256_of(path)
            job = await ledger.job(sha256, await ledger.settings_id(SETTINGS))
            await ledger.save_batch(job.id, SavedFrameBatch(0, 1, 0, captions=[Caption(0, 0.0, path)]))
            await ledger.save_source(Source(path, 5, sha256), {"captions": job})


def sha256_of(path: str) -> str:
    """The digest of a source whose content is its path."""
    return hashlib.sha256(path.encode()).hexdigest()


def paths_in(annotations: Path) -> list[str]:
    return [json.loads(line)["source"]["path"] for line in annotations.read_text().splitlines()]


async def test_the_files_are_written_anew_from_the_ledger(tmp_path):
    await save(tmp_path, "/v/a.mp4", "/v/b.mp4")
    (tmp_path / "annotations.jsonl").write_text("of an earlier run\n")
    with current_annotations(tmp_path) as annotations:
        assert annotations == tmp_path / "annotations.jsonl"
        assert paths_in(annotations) == ["/v/a.mp4", "/v/b.mp4"]
        assert (tmp_path / "run.json").exists()


async def test_while_a_run_is_writing_its_files_are_not_touched(tmp_path):
    await save(tmp_path, "/v/a.mp4")
    (tmp_path / "annotations.jsonl").write_text("of an earlier run\n")
    with FolderLock(tmp_path), current_annotations(tmp_path) as annotations:
        assert paths_in(annotations) == ["/v/a.mp4"]
        assert annotations.with_name("run.json").exists()
    assert not annotations.exists()
    assert (tmp_path / "annotations.jsonl").read_text() == "of an earlier run\n"


def test_a_folder_without_a_ledger_is_taken_as_it_is(tmp_path):
    with current_annotations(tmp_path) as annotations:
        assert annotations == tmp_path / "annotations.jsonl"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["/v/a.mp4"], ["/v/deep/b.mp4", "/v/deep/c.mkv", "/w/a.mp4"]),
        (["/v/deep"], ["/v/a.mp4", "/w/a.mp4"]),
        (["/*/a.mp4"], ["/v/deep/b.mp4", "/v/deep/c.mkv"]),
        (["/v", "/w/a.mp4"], []),
    ],
)
async def test_files_folders_and_globs_are_forgotten(tmp_path, names, left):
    everything = ["/v/a.mp4", "/v/deep/b.mp4", "/v/deep/c.mkv", "/w/a.mp4"]
    await save(tmp_path, *everything)
    would = await forget(tmp_path, names, dry_run=True)
    assert not (tmp_path / "annotations.jsonl").exists()
    assert await forget(tmp_path, names) == would
    assert [source.name for source in would] == [path for path in everything if path not in left]
    assert paths_in(tmp_path / "annotations.jsonl") == left


@pytest.mark.parametrize(
    ("name", "forgotten"),
    [
        ("/v/films [2]", ["/v/films [2]/a.mp4"]),
        ("/v/films [2]/*", ["/v/films [2]/a.mp4"]),
        ("/v/what?.mp4", ["/v/what?.mp4"]),
        ("/v/wha[t]?.mp4", ["/v/what?.mp4", "/v/whats.mp4"]),
    ],
)
async def test_a_name_that_is_known_is_no_glob(tmp_path, name, forgotten):
    await save(tmp_path, "/v/films 2/a.mp4", "/v/films [2]/a.mp4", "/v/what?.mp4", "/v/whats.mp4")
    assert [source.name for source in await forget(tmp_path, [name], dry_run=True)] == forgotten


async def test_all_that_is_gone_from_the_disk_can_be_forgotten(tmp_path):
    (tmp_path / "there.mp4").touch()
    await save(tmp_path, str(tmp_path / "there.mp4"), "/v/gone.mp4")
    async with Ledger(tmp_path) as ledger:
        await ledger.mark_missing()
    assert [source.name for source in await forget(tmp_path, [], missing=True)] == ["/v/gone.mp4"]
    assert paths_in(tmp_path / "annotations.jsonl") == [str(tmp_path / "there.mp4")]


async def test_what_is_back_on_its_disk_is_not_forgotten(tmp_path):
    await save(tmp_path, str(tmp_path / "back.mp4"))
    async with Ledger(tmp_path) as ledger:
        await ledger.mark_missing()
    (tmp_path / "back.mp4").touch()
    assert await forget(tmp_path, [], missing=True) == []


async def test_what_cannot_be_forgotten_is_an_error_and_changes_nothing(tmp_path):
    with pytest.raises(OutputError, match=r"ledger.sqlite: no such file; expected the folder of a run"):
        await forget(tmp_path / "typo", ["/v/a.mp4"])
    assert not (tmp_path / "typo").exists()
    await save(tmp_path, "/v/a.mp4")
    with pytest.raises(UsageError, match=r"'/v/typo.mp4': expected a file, folder or glob that matches a known source"):
        await forget(tmp_path, ["/v/a.mp4", "/v/typo.mp4"])
    with FolderLock(tmp_path), pytest.raises(OutputError, match="another run is writing there"):
        await forget(tmp_path, ["/v/a.mp4"])
    with current_annotations(tmp_path) as annotations:
        assert paths_in(annotations) == ["/v/a.mp4"]


async def test_the_thumbnails_of_forgotten_sources_are_deleted(tmp_path):
    await save(tmp_path, "/v/a.mp4", "/v/b.mp4")
    store = ThumbnailStore(tmp_path)
    for path in ("/v/a.mp4", "/v/b.mp4"):
        store.write(sha256_of(path), 1.0, b"picture")
    await forget(tmp_path, ["/v/a.mp4"])
    assert store.times(sha256_of("/v/a.mp4")) == []
    assert store.times(sha256_of("/v/b.mp4")) == [1.0]
