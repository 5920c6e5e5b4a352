"""Objects in a real S3 server: lists, versions, ranges, and what it refuses."""

import io
import itertools

import boto3
import pytest
from werkzeug.wrappers import Response

from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, UsageError
from reelscribe.storage import s3
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.s3 import S3Store
from support.stores import every_third, refusal, s3_server, stalled, status

KEYS = ["a/1.mp4", "a/b/2.mp4", "a//3.mp4", "a/../4.mp4", "a/./5.mp4", "a/c d?e#f%20é.mp4", "b.mp4", "a" * 1000]


@pytest.fixture
def bucket(monkeypatch):
    with s3_server(monkeypatch) as server:
        client = boto3.client("s3")
        for key in KEYS:
            client.put_object(Bucket="bucket", Key=key, Body=b"0123456789")
        yield server


@pytest.fixture
def store(bucket):
    store = S3Store(5.0, attempts=2)
    yield store
    store.close()


def test_all_keys_are_listed_in_order_and_read_as_they_are(store):
    listed = list(store.list("s3://bucket/"))
    assert [each.address for each in listed] == [f"s3://bucket/{key}" for key in sorted(KEYS)]
    for each in listed:
        assert store.info(each.address) == each
        assert b"".join(store.read(each)) == b"0123456789"
    assert [each.address for each in store.list("s3://bucket/a/b")] == ["s3://bucket/a/b/2.mp4"]


def test_an_object_is_read_from_any_byte_on(store):
    assert b"".join(store.read(store.info("s3://bucket/b.mp4"), 4)) == b"456789"


def test_another_version_is_not_read(store):
    stored = store.info("s3://bucket/b.mp4")
    boto3.client("s3").put_object(Bucket="bucket", Key="b.mp4", Body=b"9876543210")
    for version in (stored, stored._replace(version="", size=9)):
        with pytest.raises(SourceChanged, match="changed while it was being read"):
            list(store.read(version))


@pytest.mark.parametrize(
    ("address", "reason"),
    [("s3://bucket/none.mp4", "no such object"), ("s3://bucket/", "expected the address of a bucket and an object")],
)
def test_what_is_not_there_is_said(store, address, reason):
    with pytest.raises(MediaError, match=reason):
        store.info(address)


def test_a_bucket_that_is_not_there_is_said(store):
    with pytest.raises(MediaError, match="the store has no bucket 'nowhere'; check the name"):
        next(iter(store.list("s3://nowhere/")))
    with pytest.raises(NoSuchObject):
        store.info("s3://nowhere/a.mp4")


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (refusal("AccessDenied", 403), MediaError, r"permission denied by the store to you; set AWS_PROFILE or .*"),
        (
            refusal("ExpiredToken", 400),
            MediaError,
            r"does not take the credentials \('ExpiredToken'\); set AWS_PROFILE",
        ),
        (refusal("PermanentRedirect", 301), MediaError, "in another region; set AWS_REGION"),
        (refusal("PreconditionFailed", 412), SourceChanged, "changed while"),
        (refusal("InvalidRange", 416), SourceChanged, "was cut while"),
        (refusal("SlowDown", 503), StoreUnavailable, "failed with 503 'SlowDown', 2 times in a row"),
        (refusal("InvalidRequest", 418), MediaError, "refused with 418 'InvalidRequest'"),
    ],
)
def test_what_the_store_refuses_is_an_error_that_says_what_to_do(store, bucket, fault, kind, reason):
    stored = store.info("s3://bucket/b.mp4")
    bucket.faults["b.mp4"] = fault
    with pytest.raises(kind, match=reason) as refused:
        list(store.read(stored))
    assert "secret" not in str(refused.value)


def test_requests_are_sent_again_while_the_store_is_busy(store, bucket):
    bucket.fault_of_all = every_third(503)
    for _ in range(5):
        assert store.info("s3://bucket/b.mp4").size == 10


def test_a_store_that_is_not_there_does_not_answer(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match="the store does not answer"):
        S3Store(5.0, attempts=2).info("s3://bucket/b.mp4")


@pytest.mark.parametrize(("name", "value"), [("AWS_PROFILE", "none"), ("AWS_ENDPOINT_URL", "none")])
def test_settings_that_name_nothing_are_said(bucket, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"the settings of AWS cannot be used: '.*none.*'; set AWS_PROFILE"):
        S3Store(5.0)


def test_without_credentials_nobody_asks(bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket.faults["b.mp4"] = status(403)
    with pytest.raises(MediaError, match="permission denied by the store to nobody, as no credentials were found"):
        S3Store(5.0, attempts=2).info("s3://bucket/b.mp4")


def test_a_list_that_begins_anew_has_an_end(store, bucket):
    page = """<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>
    <Contents><Key>a.mp4</Key><Size>1</Size><ETag>"1"</ETag></Contents></ListBucketResult>"""
    bucket.fault_of_all = lambda sending: Response(page, content_type="application/xml")
    with pytest.raises(MediaError, match="in the order of their keys, got one without end"):
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
    monkeypatch.setattr(s3, "_MOST_EMPTY_PAGES", 20)
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
    with pytest.raises(SourceChanged, match="something else was put there in the meantime"):
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
        with pytest.raises(SourceChanged, match="something else was put there"):
            store.write("s3://bucket/new", io.BytesIO(b"second"), replaced)
    store.write("s3://bucket/new", io.BytesIO(b"second"), StoredObject("s3://bucket/new", 0, first))
    store.delete("s3://bucket/new")
    store.delete("s3://bucket/new")
    with pytest.raises(NoSuchObject):
        store.info("s3://bucket/new")
