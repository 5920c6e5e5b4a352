"""Models and versions are read from the archives of a model store."""

import json
import zipfile
from pathlib import Path

import pytest

from reelscribe.archive.model_store import stored_models
from reelscribe.errors import StartupError


def archive(store: Path, file: str, **model: str) -> None:
    with zipfile.ZipFile(store / file, "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))


def test_an_empty_store_is_refused(tmp_path):
    with pytest.raises(StartupError, match="no archive to serve; build one"):
        stored_models(tmp_path, "all")


def test_the_newest_version_of_each_model_comes_first(tmp_path):
    archive(tmp_path, "a.mar", modelName="captioner", modelVersion="9.0")
    archive(tmp_path, "b.mar", modelName="captioner", modelVersion="10.0")
    archive(tmp_path, "old name.mar")
    found = [(str(model), model.path.name) for model in stored_models(tmp_path, "all")]
    assert found == [("captioner 10.0", "b.mar"), ("captioner 9.0", "a.mar"), ("old_name 1.0", "old name.mar")]
    assert [str(model) for model in stored_models(tmp_path, "a.mar")] == ["captioner 9.0"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_archive_is_named(tmp_path, content):
    (tmp_path / "bad.mar").write_bytes(content)
    with pytest.raises(StartupError, match=r"bad\.mar: not a model archive"):
        stored_models(tmp_path, "all")


@pytest.mark.parametrize("member", ["MAR-INF/MANIFEST.json", "model-config.yaml"])
@pytest.mark.parametrize("damage", ["data", "method", "encrypted"])
def test_an_archive_with_a_damaged_member_is_named(tmp_path, member, damage):
    with zipfile.ZipFile(tmp_path / "bad.mar", "w", zipfile.ZIP_DEFLATED) as mar:
        mar.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"configFile": "model-config.yaml"}}))
        mar.writestr("model-config.yaml", "minWorkers: 1\n" * 9)
        start = mar.getinfo(member).header_offset + 30 + len(member)
    content = bytearray((tmp_path / "bad.mar").read_bytes())
    entry = content.rindex(member.encode()) - 46  # in the directory at the end
    place, value = {"data": (start, 255), "method": (entry + 10, 77), "encrypted": (entry + 8, 1)}[damage]
    content[place] = value
    (tmp_path / "bad.mar").write_bytes(content)
    with pytest.raises(StartupError, match=r"bad\.mar: not a model archive, or a damaged one .*; build it again"):
        stored_models(tmp_path, "all")


def test_two_archives_of_one_version_are_refused(tmp_path):
    for file in ("a.mar", "b.mar"):
        archive(tmp_path, file, modelName="captioner", modelVersion="1.0")
    with pytest.raises(StartupError, match=r"a\.mar and .*b\.mar are both captioner 1\.0"):
        stored_models(tmp_path, "all")
