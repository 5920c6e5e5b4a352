"""Results beside sources in a real S3 server: in the same bucket, whole, and never in the place of others' objects."""

import io

import boto3
import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.errors import MediaError, SourceChanged
from reelscribe.export.beside import write_beside
from reelscribe.export.formats import export
from reelscribe.storage.s3 import S3Store
from reelscribe.storage.stores import Stores
from support.exporting import annotations, transcript_record
from support.stores import s3_server, status


@pytest.fixture
def client(monkeypatch):
    """A client of a store that runs."""
    with s3_server(monkeypatch) as server:
        client = boto3.client("s3")
        client.server = server
        yield client
        client.close()


def speech(address, *texts):
    value = transcript_record(address, *texts)
    value["source"]["absolute_path"] = address
    return value


def objects(client) -> dict[str, bytes]:
    listed = client.list_objects_v2(Bucket="bucket").get("Contents", ())
    return {each["Key"]: client.get_object(Bucket="bucket", Key=each["Key"])["Body"].read() for each in listed}


def test_results_are_put_beside_objects_once_and_are_those_of_format(client, tmp_path):
    path = annotations(tmp_path, [speech("s3://bucket/a/b.mp4", "hello"), speech("s3://bucket/c#d.mp4", "you")])
    assert write_beside(path, tmp_path, ["srt", "json"]).written == 4
    found = objects(client)
    assert list(found) == ["a/b.en.srt", "a/b.reelscribe.json", "c#d.en.srt", "c#d.reelscribe.json"]
    assert found["a/b.reelscribe.json"] + found["c#d.reelscribe.json"] == path.read_bytes()
    exported = export(path, tmp_path / "exported", ["srt"])
    assert [file.read_bytes() for file in exported] == [found["a/b.en.srt"], found["c#d.en.srt"]]
    times = [each["LastModified"] for each in client.list_objects_v2(Bucket="bucket")["Contents"]]
    assert write_beside(path, tmp_path, ["srt", "json"]).unchanged == 4
    assert [each["LastModified"] for each in client.list_objects_v2(Bucket="bucket")["Contents"]] == times


def test_an_object_of_somebody_else_stays_and_ours_is_replaced(client, tmp_path):
    client.put_object(Bucket="bucket", Key="a.en.srt", Body=b"mine")
    path = annotations(tmp_path, [speech("s3://bucket/a.mp4", "hello"), speech("s3://bucket/b.mp4", "hello")])
    done = write_beside(path, tmp_path, ["srt"])
    assert (done.written, done.kept) == (1, ["s3://bucket/a.en.srt"])
    path = annotations(tmp_path, [speech("s3://bucket/a.mp4", "new"), speech("s3://bucket/b.mp4", "new")])
    assert write_beside(path, tmp_path, ["srt"]).written == 1
    assert (objects(client)["a.en.srt"], b"new" in objects(client)["b.en.srt"]) == (b"mine", True)
    assert write_beside(path, tmp_path, ["srt"], overwrite=True).written == 1
    assert b"new" in objects(client)["a.en.srt"]


@pytest.mark.parametrize("there", [None, b"old"])
def test_what_is_put_there_in_the_meantime_stays(client, there):
    """Whether there was nothing, or an object that may be replaced."""
    store = S3Store(5.0)
    if there:
        client.put_object(Bucket="bucket", Key="a.srt", Body=there)
    replaced = store.info("s3://bucket/a.srt") if there else None
    client.put_object(Bucket="bucket", Key="a.srt", Body=b"mine")
    with pytest.raises(SourceChanged, match="something else was put there in the meantime"):
        store.write("s3://bucket/a.srt", io.BytesIO(b"ours"), replaced)
    assert objects(client) == {"a.srt": b"mine"}
    store.close()


def test_what_cannot_be_written_is_one_line_and_the_others_are_written(client, tmp_path):
    client.server.faults["a.en.srt"] = status(403)
    names = ("s3://bucket/a.mp4", "s3://none/b.mp4", "s3://bucket/c.mp4", "https://example.org/d.mp4")
    path = annotations(tmp_path, [speech(name, "hello") for name in names])
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--beside", "srt"])
    assert result.exit_code == 3
    forbidden, missing = result.stderr.splitlines()
    assert "s3://bucket/a.en.srt: cannot be written beside its source: permission denied by the store" in forbidden
    assert "s3://none/b.en.srt: cannot be written beside its source: the store has no bucket 'none'" in missing
    assert result.stdout.startswith("wrote 1 file beside the sources")
    assert "wrote nothing beside 1 source on web servers" in result.stdout
    assert list(objects(client)) == ["c.en.srt"]
    assert path.exists()


def test_nothing_can_be_written_to_a_web_server():
    stores = Stores()
    with pytest.raises(MediaError, match="nothing can be written to web servers"):
        stores.of("https://example.org/a.srt").write("https://example.org/a.srt", io.BytesIO(), None)
    stores.close()
