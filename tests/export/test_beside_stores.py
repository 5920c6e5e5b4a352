"""Results beside sources in buckets: in the same one, whole, and never in the place of others' objects."""

import io

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.errors import MediaError
from reelscribe.export.beside import write_beside
from reelscribe.export.formats import export
from reelscribe.storage.stores import Stores
from support.buckets import SCHEMES, bucket_server
from support.exporting import annotations, transcript_record
from support.stores import status


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


@pytest.fixture
def bucket(scheme, monkeypatch):
    with bucket_server(scheme, monkeypatch) as server:
        yield server


def speech(address, *texts):
    value = transcript_record(address, *texts)
    value["source"]["absolute_path"] = address
    return value


def test_results_are_put_beside_objects_once_and_are_those_of_format(scheme, bucket, tmp_path):
    names = (f"{scheme}://bucket/a/b.mp4", f"{scheme}://bucket/c#d.mp4")
    path = annotations(tmp_path, [speech(names[0], "hello"), speech(names[1], "you")])
    assert write_beside(path, tmp_path, ["srt", "json"]).written == 4
    found = bucket.contents()
    assert list(found) == ["a/b.en.srt", "a/b.reelscribe.json", "c#d.en.srt", "c#d.reelscribe.json"]
    assert found["a/b.reelscribe.json"] + found["c#d.reelscribe.json"] == path.read_bytes()
    exported = export(path, tmp_path / "exported", ["srt"]).written
    assert [file.read_bytes() for file in exported] == [found["a/b.en.srt"], found["c#d.en.srt"]]
    bucket.written.clear()
    assert write_beside(path, tmp_path, ["srt", "json"]).unchanged == 4
    assert not +bucket.written


def test_an_object_of_somebody_else_stays_and_ours_is_replaced(scheme, bucket, tmp_path):
    bucket.put("a.en.srt", b"mine")
    names = (f"{scheme}://bucket/a.mp4", f"{scheme}://bucket/b.mp4")
    path = annotations(tmp_path, [speech(name, "hello") for name in names])
    done = write_beside(path, tmp_path, ["srt"])
    assert (done.written, done.kept) == (1, [f"{scheme}://bucket/a.en.srt"])
    path = annotations(tmp_path, [speech(name, "new") for name in names])
    assert write_beside(path, tmp_path, ["srt"]).written == 1
    assert (bucket.contents()["a.en.srt"], b"new" in bucket.contents()["b.en.srt"]) == (b"mine", True)
    assert write_beside(path, tmp_path, ["srt"], overwrite=True).written == 1
    assert b"new" in bucket.contents()["a.en.srt"]


def test_what_cannot_be_written_is_one_line_and_the_others_are_written(scheme, bucket, tmp_path):
    bucket.faults["a.en.srt"] = status(403)
    names = (
        f"{scheme}://bucket/a.mp4",
        f"{scheme}://none/b.mp4",
        f"{scheme}://bucket/c.mp4",
        "https://example.org/d.mp4",
    )
    path = annotations(tmp_path, [speech(name, "hello") for name in names])
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--beside", "srt"])
    assert result.exit_code == 3
    forbidden, missing = result.stderr.splitlines()
    assert (
        f"{scheme}://bucket/a.en.srt: cannot be written beside its source: permission denied by the store" in forbidden
    )
    assert f"{scheme}://none/b.en.srt: cannot be written beside its source: the store has no " in missing
    assert result.stdout.startswith("wrote 1 file beside the sources")
    assert "wrote nothing beside 1 source on web servers" in result.stdout
    assert list(bucket.contents()) == ["c.en.srt"]
    assert path.exists()


def test_nothing_can_be_written_to_a_web_server():
    stores = Stores()
    with pytest.raises(MediaError, match="nothing can be written to web servers"):
        stores.of("https://example.org/a.srt").write("https://example.org/a.srt", io.BytesIO(), None)
    stores.close()
