"""Objects in Azure Blob Storage, whose buckets are the containers of one account.

The account and its credentials come from the environment, by the names that ``az storage`` has for them. Without a key
or a signature there, Azure's library looks for others: those of ``az login``, of the environment, or the machine's
identity. Without any, objects are read that everybody may read.
"""

from __future__ import annotations

import logging
import os
import re
from typing import IO, Any

import requests
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobClient, BlobProperties, BlobServiceClient

from reelscribe.errors import MediaError
from reelscribe.storage.address import ObjectAddress
from reelscribe.storage.blocks import BLOCK_BYTES, BlockStore, for_many_threads
from reelscribe.storage.buckets import Action, Entry, Vendor
from reelscribe.storage.objects import ATTEMPTS, CONNECT_SECONDS, READ_BYTES, StoredObject

logging.getLogger("azure").addHandler(logging.NullHandler())  # what it logs is in our errors, and may be long

_SCOPE = "https://storage.azure.com/.default"
_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"

_BAD_CREDENTIALS = {"AuthenticationFailed", "InvalidAuthenticationInfo"}
"""Codes of errors that other credentials would not have."""

_HIDDEN = {"PublicAccessNotPermitted", "ResourceNotFound"}
"""Codes of errors that whoever has no credentials gets in place of a refusal."""


class AzureStore(BlockStore):
    """The storage account of the environment; see `ObjectStore`."""

    vendor = Vendor(
        name="Azure",
        store="Azure Blob Storage",
        scheme="az",
        bucket="container",
        sign_in="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT and a key, or run az login",
        rights={"read": _READER, "list": _READER, "write": _WRITER, "delete": _WRITER},
        endpoints=("AZURE_STORAGE_SERVICE_ENDPOINT",),
    )
    library_errors = (AzureError,)

    def __init__(self, stall_seconds: float, attempts: int = ATTEMPTS) -> None:
        """Find the account and its credentials.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            attempts: Number of times that a request is sent until the store does not fail.

        Raises:
            UsageError: The environment names no account, or what is named cannot be used.
        """
        self.vendor.check_addresses()
        transport = RequestsTransport(
            session=for_many_threads(requests.Session()),
            connection_timeout=CONNECT_SECONDS,
            read_timeout=stall_seconds,
            connection_data_block_size=READ_BYTES,  # by default, 4096
        )
        options: dict[str, Any] = {
            "transport": transport,
            "retry_total": 0,
            "permit_redirects": False,
            "max_single_get_size": BLOCK_BYTES,
            "max_chunk_get_size": BLOCK_BYTES,
        }
        try:
            self._service, is_anonymous = _open(options)
        except (AzureError, ValueError) as error:
            raise self.vendor.unusable(str(error)) from None
        self.vendor.check_addresses(self._service.primary_endpoint)
        super().__init__(attempts, is_anonymous=is_anonymous)

    def _head(self, place: ObjectAddress) -> Entry:
        return _entry(self._blob(place).get_blob_properties())

    def _page(self, place: ObjectAddress, token: str | None) -> tuple[list[Entry], str | None]:
        container = self._service.get_container_client(place.bucket)
        pages: Any = container.list_blobs(name_starts_with=place.key or None).by_page(token)
        return [_entry(each) for each in next(pages, ())], pages.continuation_token

    def _block(self, place: ObjectAddress, version: str, start: int, stop: int) -> bytes:
        content: bytes = (
            self._blob(place).download_blob(start, stop - start, decompress=False, **_only(version)).readall()
        )
        return content

    def _put(self, place: ObjectAddress, content: IO[bytes], replaced: StoredObject | None) -> str:
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        condition = _only(replaced.version) if replaced and replaced.version else {}
        put = self._blob(place).upload_blob(content, length=size, overwrite=replaced is not None, **condition)
        return _version(put["etag"])

    def _remove(self, place: ObjectAddress) -> None:
        try:
            self._blob(place).delete_blob()
        except ResourceNotFoundError:
            return

    def close(self) -> None:
        """Close all connections."""
        self._service.close()

    def _blob(self, place: ObjectAddress) -> BlobClient:
        if re.search(r"(^|/)\.\.?(/|$)", place.key):  # on their way, these would become another address
            raise MediaError("expected a name without the parts . and .., which Azure cannot be asked for; rename it")
        return self._service.get_blob_client(place.bucket, place.key)

    def _explained(self, error: Exception, action: Action, bucket: str) -> MediaError:
        status = error.status_code or 0 if isinstance(error, HttpResponseError) else 0
        told = getattr(error, "error_code", None) or type(error).__name__
        code = str(getattr(told, "value", told))
        if code in ("ContainerNotFound", "ContainerBeingDeleted"):
            return self._no_bucket(bucket)
        if code in _BAD_CREDENTIALS or (isinstance(error, ClientAuthenticationError) and not status):
            status = 401
        if code in _HIDDEN and self._is_anonymous:
            status = 403
        return self._refused(status, code, action) if status else self._broken(error)


def _open(options: dict[str, Any]) -> tuple[BlobServiceClient, bool]:
    """Return the account that the environment names, and whether there are no credentials for it."""
    if connection := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        return BlobServiceClient.from_connection_string(connection, **options), False
    account, endpoint = os.environ.get("AZURE_STORAGE_ACCOUNT"), os.environ.get("AZURE_STORAGE_SERVICE_ENDPOINT")
    if not account:
        raise ValueError("AZURE_STORAGE_ACCOUNT names no storage account")
    if not re.fullmatch("[a-z0-9]{3,24}", account):  # it becomes part of the host that is sent the user's credentials
        raise ValueError("AZURE_STORAGE_ACCOUNT is not the name of a storage account, 3 to 24 letters and digits")
    credential = _credential(account)
    url = endpoint or f"https://{account}.blob.core.windows.net"
    return BlobServiceClient(url, credential=credential, **options), credential is None


def _credential(account: str) -> Any:
    """Return what signs requests; None if nothing is found, or what is found is not valid any more."""
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        return AzureNamedKeyCredential(account, key)
    if signature := os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        return AzureSasCredential(signature.lstrip("?"))
    found = DefaultAzureCredential()
    try:
        found.get_token(_SCOPE)
    except ClientAuthenticationError:
        found.close()
        return None
    return found


def _entry(properties: BlobProperties) -> Entry:
    return Entry(properties.name, properties.size, _version(properties.etag), properties.last_modified)


def _version(etag: str) -> str:
    """Return an ETag without quotes, as lists have them."""
    return etag.strip('"')


def _only(version: str) -> dict[str, Any]:
    """Return the condition that an object has a version."""
    return {"etag": f'"{version}"', "match_condition": MatchConditions.IfNotModified}
