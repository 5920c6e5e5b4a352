"""Objects in the buckets of all vendors: lists, versions, ranges, conditions, and what stores refuse."""

import io
import os
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
from werkzeug.wrappers import Response

from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, UsageError
from reelscribe.storage.blocks import BLOCK_BYTES
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.stores import Stores
from support.buckets import SCHEMES, bucket_server
from support.stores import every_third, serving, status

KEYS = ["a/1.mp4", "a/b/2.mp4", "a//3.mp4", "a/c d?e#f%20é.mp4", "b.mp4", "a" * 1000]
DOTTED = ["a/../4.mp4", "a/./5.mp4"]
SIGN_IN = {"s3": "set AWS_PROFILE or ", "gs": "set GOOGLE_APPLICATION_CREDENTIALS, ", "az": "set AZURE_STORAGE_CONN"}
ADDRESS = {
    "s3": ["AWS_ENDPOINT_URL"],
    "gs": ["STORAGE_EMULATOR_HOST"],
    "az": ["AZURE_STORAGE_SERVICE_ENDPOINT"],
}
"""The variables that say where a store is."""
CREDENTIALS = {
    "s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
    "gs": ["GOOGLE_APPLICATION_CREDENTIALS"],
    "az": ["AZURE_STORAGE_KEY"],
}


@pytest.fixture(params=SCHEMES, scope="module")
def scheme(request):
    return request.param


@pytest.fixture(scope="module")
def server(scheme):
    with pytest.MonkeyPatch.context() as monkeypatch, bucket_server(scheme, monkeypatch) as server:
        for key in [*KEYS, *([] if scheme == "az" else DOTTED)]:  # Azure takes no such keys
            server.put(key, b"0123456789")
        yield server


@pytest.fixture
def bucket(server):
    server.requests.clear()
    yield server
    server.faults, server.fault_of_all = {}, None
    server.put("b.mp4", b"0123456789")


@pytest.fixture(scope="module")
def store(scheme, server):
    stores = Stores(5.0, attempts=2)
    yield stores.of(f"{scheme}://")
    stores.close()


@pytest.fixture
def base(scheme):
    return f"{scheme}://bucket"


def reopened(scheme):
    return Stores(5.0, attempts=2).of(f"{scheme}://")


def test_all_keys_are_listed_in_order_and_read_as_they_are(scheme, store, base):
    listed = [each for each in store.list(f"{base}/") if "/zz/" not in each.address]
    keys = KEYS if scheme == "az" else [*KEYS, *DOTTED]
    assert [each.address for each in listed] == [f"{base}/{key}" for key in sorted(keys)]
    for each in listed:
        assert store.info(each.address) == each
        assert each.modified > 1e9
        assert b"".join(store.read(each)) == b"0123456789"
    assert [each.address for each in store.list(f"{base}/a/b")] == [f"{base}/a/b/2.mp4"]


def test_a_list_has_many_pages(bucket, store, base):
    names = [f"zz/{number:03}" for number in range(45)]
    for name in names:
        bucket.put(name, b"")
    assert [each.address for each in store.list(f"{base}/zz/")] == [f"{base}/{name}" for name in names]


def test_an_object_is_read_from_any_byte_on(store, base):
    stored = store.info(f"{base}/b.mp4")
    assert b"".join(store.read(stored, 4)) == b"456789"
    assert b"".join(store.read(stored, 2, 5)) == b"234"


def test_a_large_object_is_read_whole(bucket, store, base):
    content = bytes(range(256)) * 2**14 + b"end"
    bucket.put("zz/large", content)
    stored = store.info(f"{base}/zz/large")
    assert b"".join(store.read(stored)) == content
    assert b"".join(store.read(stored, BLOCK_BYTES - 1, BLOCK_BYTES + 1)) == content[BLOCK_BYTES - 1 : BLOCK_BYTES + 1]


def test_another_version_is_not_read(bucket, store, base):
    stored = store.info(f"{base}/b.mp4")
    bucket.put("b.mp4", b"9876543210")
    with pytest.raises(SourceChanged, match="changed while it was being read"):
        list(store.read(stored))


@pytest.mark.parametrize(
    ("name", "reason"), [("/none.mp4", "no such object"), ("/", "expected the address of a .*, as .*://.*/key")]
)
def test_what_is_not_there_is_said(store, base, name, reason):
    with pytest.raises(MediaError, match=reason):
        store.info(base + name)


def test_a_bucket_that_is_not_there_is_said(scheme, store):
    for ask in (
        lambda: next(iter(store.list(f"{scheme}://nowhere/"))),
        lambda: store.write(f"{scheme}://nowhere/a", io.BytesIO(b""), None),
    ):
        with pytest.raises(MediaError, match=r"the store has no (bucket|container) 'nowhere'; check the name"):
            ask()


@pytest.mark.parametrize(
    ("code", "number", "kind", "reason"),
    [
        ("AccessDenied", 403, MediaError, "permission denied by the store to you; SIGN_IN.*, or ask for .* on it"),
        ("Unauthorized", 401, MediaError, r"does not take the credentials \('.*'\); SIGN_IN"),
        ("PreconditionFailed", 412, SourceChanged, "changed while"),
        ("InvalidRange", 416, SourceChanged, "was cut while"),
        ("SlowDown", 503, StoreUnavailable, "failed with 503 '.*', 2 times in a row"),
        ("TooManyRequests", 429, StoreUnavailable, "failed with 429 '.*', 2 times in a row"),
        ("InvalidRequest", 418, MediaError, "refused with 418 '.*'"),
    ],
)
def test_what_the_store_refuses_is_an_error_that_says_what_to_do(
    scheme, bucket, store, base, code, number, kind, reason
):
    stored = store.info(f"{base}/b.mp4")
    bucket.faults["b.mp4"] = bucket.refusal(code, number)
    with pytest.raises(kind, match=reason.replace("SIGN_IN", SIGN_IN[scheme])) as refused:
        list(store.read(stored))
    assert type(refused.value) is kind
    assert "secret" not in str(refused.value)


def test_a_store_gets_no_password_of_netrc(bucket, store, base, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hidden\ndefault login me password hidden\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = []
    bucket.fault_of_all = lambda sending: seen.append(sending.headers.get("Authorization", ""))
    store.info(f"{base}/b.mp4")
    assert seen
    assert not any(each.startswith("Basic") for each in seen)


def test_a_redirect_is_not_followed(bucket, store, base):
    elsewhere = bucket.refusal("Found", 302)

    def redirect(sending):
        answer = elsewhere(sending)
        answer.headers["Location"] = "http://127.0.0.1:1/secret"
        return answer

    bucket.faults["b.mp4"] = redirect
    with pytest.raises(MediaError, match="refused with 302") as refused:
        store.info(f"{base}/b.mp4")
    assert "secret" not in str(refused.value)


def test_requests_are_sent_again_while_the_store_is_busy(bucket, store, base):
    bucket.fault_of_all = every_third(503)
    for _ in range(5):
        assert store.info(f"{base}/b.mp4").size == 10
        assert len(list(store.list(f"{base}/a/b/"))) == 1


def test_a_connection_that_breaks_is_said(scheme, bucket, store, base):
    stored = store.info(f"{base}/b.mp4")
    bucket.faults["b.mp4"] = lambda sending: iter([b"0123"])
    with pytest.raises(StoreUnavailable, match=r"the connection .*broke"):
        list(store.read(stored))


def test_a_store_that_is_not_there_does_not_answer(scheme, bucket, base, monkeypatch):
    for name in ADDRESS[scheme]:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match="the store does not answer"):
        reopened(scheme).info(f"{base}/b.mp4")


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("s3 AWS_PROFILE", "none", "the settings of AWS cannot be used: '.*none.*'; set AWS_PROFILE"),
        ("s3 AWS_ENDPOINT_URL", "none", "AWS_ENDPOINT_URL: expected a host after http:// or https://"),
        ("gs GOOGLE_APPLICATION_CREDENTIALS", "/none", "the settings of Google Cloud cannot be used: '.*/none.*'; set"),
        ("az AZURE_STORAGE_CONNECTION_STRING", "none", "the settings of Azure cannot be used: '.*'; set AZURE_"),
        (
            "az AZURE_STORAGE_ACCOUNT",
            "",
            "the settings of Azure cannot be used: 'AZURE_STORAGE_ACCOUNT names no storage account'; set",
        ),
    ],
)
def test_settings_that_name_nothing_are_said(monkeypatch, setting, value, reason):
    scheme, name = setting.split()
    with bucket_server(scheme, monkeypatch, bucket="settings"):
        monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=f"{scheme}://: {reason}"):
            reopened(scheme)


WITH_LOGIN = "http://me:hidden@127.0.0.1:1"
CONNECTION = "AccountName=account1;AccountKey=a2V5;BlobEndpoint="


@pytest.mark.parametrize("address", [WITH_LOGIN, "http://me:hid/hidden@h", "http://127.0.0.1:1\\\\@hidden", "hidden@h"])
@pytest.mark.parametrize(
    ("setting", "before"),
    [
        ("s3 AWS_ENDPOINT_URL", ""),
        ("s3 AWS_ENDPOINT_URL_S3", ""),
        ("s3 AWS_CONFIG_FILE", "[default]\nendpoint_url = "),
        ("gs STORAGE_EMULATOR_HOST", ""),
        ("az AZURE_STORAGE_SERVICE_ENDPOINT", ""),
        ("az AZURE_STORAGE_CONNECTION_STRING", CONNECTION),
    ],
)
def test_no_error_shows_the_password_of_an_address_in_the_settings(monkeypatch, tmp_path, setting, before, address):
    scheme, name = setting.split()
    for variable in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_CONNECTION_STRING", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account1")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    (tmp_path / "config").write_text(before + address)
    monkeypatch.setenv(name, str(tmp_path / "config") if "FILE" in name else before + address)
    with pytest.raises(UsageError, match=f"^{scheme}://: ") as refused:
        Stores(5.0, 1).of(f"{scheme}://bucket/one.mp4").info(f"{scheme}://bucket/one.mp4")
    assert "hidden" not in str(refused.value)


def test_without_credentials_nobody_asks(scheme, bucket, base, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in CREDENTIALS[scheme]:
        monkeypatch.delenv(name)
    bucket.faults["b.mp4"] = status(403)
    with pytest.raises(MediaError, match=r"permission denied by the store to nobody, as no credentials were found"):
        reopened(scheme).info(f"{base}/b.mp4")


@pytest.mark.parametrize("items", ["[" * 100_000, '[{"name": "a", "generation": 1, "size": 1e999}]', '[{"name": "a"}]'])
def test_a_list_that_no_store_would_give_is_an_error_of_the_store(monkeypatch, tmp_path, items):
    answer = Response(f'{{"items": {items}}}', content_type="application/json")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with serving(answer) as (_, address), closing(Stores(5.0, attempts=1)) as stores:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        with pytest.raises(MediaError, match="expected answers of Google Cloud Storage, got others"):
            next(stores.of("gs://").list("gs://bucket/"))


def test_everybody_reads_what_is_public(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with bucket_server("gs", monkeypatch, bucket="public") as server:
        server.put("a.mp4", b"all")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        store = reopened("gs")
        assert [b"".join(store.read(each)) for each in store.list("gs://public/")] == [b"all"]
        with pytest.raises(MediaError, match=r"permission denied by the store to nobody, .* or ask for .*create"):
            store.write("gs://public/b.mp4", io.BytesIO(b""), None)


@pytest.mark.parametrize("way", ["key", "signature", "connection string", "connection string with a signature"])
def test_azure_takes_all_ways_to_sign_in_and_tells_none(monkeypatch, way):
    with bucket_server("az", monkeypatch, bucket="ways") as server:
        server.put("a.mp4", b"all")
        account, key, endpoint = (
            os.environ[f"AZURE_STORAGE_{name}"] for name in ("ACCOUNT", "KEY", "SERVICE_ENDPOINT")
        )
        until = datetime.now(UTC) + timedelta(hours=1)
        signature = generate_account_sas(
            account, key, ResourceTypes(object=True), AccountSasPermissions(read=True), until
        )
        secret = f"SharedAccessSignature={signature}" if "with" in way else f"AccountName={account};AccountKey={key}"
        if way != "key":
            monkeypatch.delenv("AZURE_STORAGE_KEY")
        if way == "signature":
            monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature)
        elif way != "key":
            monkeypatch.delenv("AZURE_STORAGE_ACCOUNT")
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={endpoint};{secret}")
        store = reopened("az")
        assert b"".join(store.read(store.info("az://ways/a.mp4"))) == b"all"
        for fault in (lambda sending: iter(()), server.refusal("AuthenticationFailed", 403)):
            server.faults["a.mp4"] = fault
            with pytest.raises(MediaError) as refused:
                list(store.read(StoredObject("az://ways/a.mp4", 3, "0x1")))
            assert "sig=" not in str(refused.value)
            assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", DOTTED)
def test_a_name_that_azure_cannot_be_asked_for_is_said(monkeypatch, key):
    with bucket_server("az", monkeypatch, bucket="dots"), pytest.raises(MediaError, match=r"without the parts \. and"):
        reopened("az").info(f"az://dots/{key}")


@pytest.mark.parametrize(
    ("module", "address", "package"),
    [
        ("boto3", "s3://b/a.mp4", "boto3"),
        ("google.cloud.storage", "gs://b/a.mp4", "google-cloud-storage"),
        ("azure.identity", "az://b/a.mp4", "azure-storage-blob"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(module, address, package):
    code = f"import sys; sys.modules[{module!r}] = None; from reelscribe.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, "shots", address, "--out", "/nonexistent", "--dry-run"],
        capture_output=True,
        text=True,
    )
    assert f"{address[:5]}: expected the package {package}, got none; install it with: pip install " in done.stderr


@pytest.mark.parametrize("size", [5, 11 * 2**20])
def test_an_object_is_written_where_nothing_is_and_replaces_only_what_was_there(store, base, size):
    address, content = f"{base}/zz/new#?{size}.srt", bytes(size)
    first = store.write(address, io.BytesIO(content), None)
    there = store.info(address)
    assert (there.size, there.version) == (size, first)
    with pytest.raises(SourceChanged, match="was put there meanwhile"):
        store.write(address, io.BytesIO(content[1:]), None)
    second = store.write(address, io.BytesIO(content[1:]), there)
    with pytest.raises(SourceChanged, match="was put there meanwhile"):
        store.write(address, io.BytesIO(content[2:]), there)
    assert store.info(address) == there._replace(size=size - 1, version=second, modified=store.info(address).modified)
    store.write(address, io.BytesIO(b""), there._replace(version=""))
    assert store.info(address).size == 0
    there = store.info(address)
    store.delete(address)
    with pytest.raises(SourceChanged, match="was put there meanwhile"):
        store.write(address, io.BytesIO(content), there)


def test_an_object_is_deleted_whether_it_is_there_or_not(store, base):
    for _ in range(2):
        store.delete(f"{base}/b.mp4")
    with pytest.raises(NoSuchObject):
        store.info(f"{base}/b.mp4")
