"""Objects in Google Cloud Storage.

Credentials come from where all programs with Google's library find them: ``GOOGLE_APPLICATION_CREDENTIALS``, what
``gcloud auth application-default login`` has written, or the machine's service account. Without any, objects are read
that everybody may read. The version of an object is its generation.
"""

from __future__ import annotations

import os
import warnings
from typing import IO, Any

import google.auth
from google.api_core.exceptions import GoogleAPICallError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests.exceptions import RequestException, TooManyRedirects
from urllib3.exceptions import HTTPError

from reelscribe.errors import MediaError
from reelscribe.storage.address import ObjectAddress
from reelscribe.storage.blocks import BlockStore, for_many_threads
from reelscribe.storage.buckets import Action, Entry, Vendor
from reelscribe.storage.objects import ATTEMPTS, CONNECT_SECONDS, StoredObject

_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GoogleStore(BlockStore):
    """Google Cloud Storage; see `ObjectStore`."""

    vendor = Vendor(
        name="Google Cloud",
        store="Google Cloud Storage",
        scheme="gs",
        bucket="bucket",
        sign_in=f"set {_KEY_FILE}, or run gcloud auth application-default login",
        rights={
            "read": "storage.objects.get",
            "list": "storage.objects.list",
            "write": "storage.objects.create and storage.objects.delete",
            "delete": "storage.objects.delete",
        },
        endpoints=("STORAGE_EMULATOR_HOST",),
    )
    library_errors = (GoogleAPICallError, GoogleAuthError, DataCorruption, InvalidResponse, RequestException, HTTPError)

    def __init__(self, stall_seconds: float, attempts: int = ATTEMPTS) -> None:
        """Find credentials, but ask the store nothing yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            attempts: Number of times that a request is sent until the store does not fail.

        Raises:
            UsageError: The settings of Google Cloud name what there is not, such as a file of a key.
        """
        self.vendor.check_addresses()
        self._once = {"timeout": (CONNECT_SECONDS, stall_seconds), "retry": None}
        try:
            credentials = _credentials()
            session = for_many_threads(AuthorizedSession(credentials))
            session.max_redirects = 0  # it would follow them to any host
            self._client: Any = storage.Client(project=None, credentials=credentials, _http=session)
        except (GoogleAuthError, ValueError, OSError) as error:
            raise self.vendor.unusable(str(error)) from None
        super().__init__(attempts, is_anonymous=isinstance(credentials, AnonymousCredentials))

    def _head(self, place: ObjectAddress) -> Entry:
        blob = self._blob(place)
        blob.reload(**self._once)
        return _entry(blob)

    def _page(self, place: ObjectAddress, token: str | None) -> tuple[list[Entry], str | None]:
        fields = "items(name,size,generation,updated),nextPageToken"
        found = self._client.list_blobs(
            place.bucket, prefix=place.key or None, page_token=token, fields=fields, **self._once
        )
        return [_entry(blob) for blob in next(found.pages, ())], found.next_page_token

    def _block(self, place: ObjectAddress, version: str, start: int, stop: int) -> bytes:
        content: bytes = self._blob(place).download_as_bytes(
            start=start,
            end=stop - 1,
            raw_download=True,  # not decompressed: other bytes would not be those that the size counts
            checksum=None,
            if_generation_match=int(version),
            **self._once,
        )
        return content

    def _put(self, place: ObjectAddress, content: IO[bytes], replaced: StoredObject | None) -> str:
        generation = int(replaced.version) if replaced and replaced.version else None if replaced else 0
        blob = self._blob(place)
        size = content.seek(0, os.SEEK_END)
        blob.upload_from_file(content, rewind=True, size=size, if_generation_match=generation, **self._once)
        return str(blob.generation)

    def _remove(self, place: ObjectAddress) -> None:
        try:
            self._blob(place).delete(**self._once)
        except NotFound:
            return

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _blob(self, place: ObjectAddress) -> Any:
        return self._client.bucket(place.bucket).blob(place.key)

    def _explained(self, error: Exception, action: Action, bucket: str) -> MediaError:
        kind = type(error).__name__
        if isinstance(error, GoogleAPICallError):
            status = int(error.code or 0)
            # For an object, the store does not tell whether that is missing or its bucket.
            if status == 404 and action in ("list", "write"):
                return self._no_bucket(bucket)
            return self._refused(status, kind, action)
        if isinstance(error, GoogleAuthError) and not (isinstance(error, TransportError) or error.retryable):
            return self._refused(401, kind, action)
        if isinstance(error, TooManyRedirects):
            return self._refused(302, kind, action)
        return self._broken(error)


def _credentials() -> Any:
    """Return what signs requests. Raises DefaultCredentialsError if it was named and is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one about the quota of users, which is meant for developers
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except DefaultCredentialsError:
            if os.environ.get(_KEY_FILE):
                raise
            return AnonymousCredentials()


def _entry(blob: Any) -> Entry:
    return Entry(blob.name, blob.size, str(int(blob.generation)), blob.updated)
