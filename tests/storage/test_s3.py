"""What only S3 has: answers as they come, large objects in parts, stores without conditions, and hostile lists."""

import io
import itertools

import boto3
import pytest
from werkzeug.wrappers import Response

from reelscribe.errors import MediaError, NoSuchObject, SourceChanged
from reelscribe.storage import buckets, s3
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.s3 import S3Store
from support.stores import refusal, s3_server, stalled


@pytest.fixture
def bucket(monkeypatch):
    with s3_server(monkeypatch) as server:
        server.put("b.mp4", b"0123456789")
        yield server


@pytest.fixture
def store(bucket):
    store = S3Store(5.0, attempts=2)
    yield store
    store.close()


def test_a_store_without_versions_is_known_by_its_size(store):
    stored = store.info("s3://bucket/b.mp4")
    with pytest.raises(SourceChanged, match="changed while it was being read"):
        list(store.read(stored._replace(version="", size=9)))


@pytest.mark.parametrize(
    ("code", "number", "reason"),
    [
        ("ExpiredToken", 400, r"does not take the credentials \('ExpiredToken'\); set AWS_PROFILE"),
        ("PermanentRedirect", 301, r"in another region; set AWS_REGION"),
    ],
)
def test_what_only_s3_refuses_is_said(store, bucket, code, number, reason):
    bucket.faults["b.mp4"] = refusal(code, number)
    with pytest.raises(MediaError, match=reason) as refused:
        list(store.read(StoredObject("s3://bucket/b.mp4", 10, "")))
    assert "secret" not in str(refused.value)


def test_a_list_that_begins_anew_has_an_end(store, bucket):
    page = """<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>
    <Contents><Key>a.mp4</Key><Size>1</Size><ETag>"1"</ETag></Contents>
    <Contents><Key>b.mp4</Key><Size>1</Size><ETag>"1"</ETag></Contents>
    <Contents><Key>c.mp4</Key><Size>1</Size><ETag>"1"</ETag></Contents></ListBucketResult>"""
    bucket.fault_of_all = lambda sending: Response(page, content_type="application/xml")
    with pytest.raises(MediaError, match=r"each object once, got 'a.mp4' again, and no end"):
        list(store.list("s3://bucket/"))


@pytest.mark.parametrize(
    "entry",
    [
        "<Key>a</Key><Size>many</Size>",
        "<Key>a</Key>",
        "<Size>1</Size>",
        "<Key>a</Key><Size>99999999999999999999999</Size>",
        "<Key>a</Key><Size>-1</Size>",
        "<Key>a</Key><Size>1</Size><LastModified>never</LastModified>",
    ],
)
def test_answers_that_are_not_those_of_s3_are_one_error(store, bucket, entry):
    page = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"
    bucket.fault_of_all = lambda sending: Response(page, content_type="application/xml")
    with pytest.raises(MediaError, match="expected"):
        list(store.list("s3://bucket/"))


def test_pages_without_objects_have_an_end(store, bucket, monkeypatch):
    monkeypatch.setattr(buckets, "_MOST_EMPTY_PAGES", 20)
    numbers = itertools.count()

    def page(sending):
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{next(numbers)}</NextContinuationToken>"
        return Response(f"<ListBucketResult>{more}</ListBucketResult>", content_type="application/xml")

    bucket.fault_of_all = page
    with pytest.raises(MediaError, match="pages without any"):
        list(store.list("s3://bucket/"))


def test_a_piece_is_there_as_soon_as_it_has_come(store, bucket):
    bucket.faults["b.mp4"] = stalled
    pieces = store.read(store.info("s3://bucket/b.mp4"))
    assert next(pieces) == b"0123456789"
    pieces.close()


def test_a_large_object_is_sent_in_parts_and_replaces_only_what_was_there(store, monkeypatch):
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 2**20)  # the least that S3 takes
    address, content = "s3://bucket/large", bytes(11 * 2**20)
    first = store.write(address, io.BytesIO(content), None)
    assert first == store.info(address).version
    with pytest.raises(SourceChanged, match="was put there meanwhile"):
        store.write(address, io.BytesIO(content[1:]), None)
    store.write(address, io.BytesIO(content[1:]), StoredObject(address, 0, first))
    assert store.info(address).size == len(content) - 1
    store.write(address, io.BytesIO(b""), StoredObject(address, 0, ""))
    assert store.info(address).size == 0
    assert boto3.client("s3").list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []


def test_a_store_without_conditions_is_asked_before_it_is_written_to(store, bucket):
    def refuse_conditions(sending):
        has_condition = "If-Match" in sending.headers or "If-None-Match" in sending.headers
        return refusal("NotImplemented", 501)(sending) if has_condition else None

    bucket.fault_of_writes = refuse_conditions
    first = store.write("s3://bucket/new", io.BytesIO(b"first"), None)
    for replaced in (None, StoredObject("s3://bucket/new", 0, '"other"')):
        with pytest.raises(SourceChanged, match="was put there meanwhile"):
            store.write("s3://bucket/new", io.BytesIO(b"second"), replaced)
    store.write("s3://bucket/new", io.BytesIO(b"second"), StoredObject("s3://bucket/new", 0, first))
    store.delete("s3://bucket/new")
    store.delete("s3://bucket/new")
    with pytest.raises(NoSuchObject):
        store.info("s3://bucket/new")
