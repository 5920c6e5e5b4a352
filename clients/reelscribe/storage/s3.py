"""Objects in S3, or in a store with its interface, such as MinIO, Ceph and R2.

Credentials, the region and the address of the store come from where all programs with AWS's library find them: the
environment, ``~/.aws``, or the machine's role. Without any, objects are read that everybody may read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.exceptions import ConnectionError as NotConnected
from urllib3.exceptions import HTTPError

from reelscribe.errors import MediaError, SourceChanged, StoreUnavailable, brief
from reelscribe.storage.address import ObjectAddress
from reelscribe.storage.buckets import CHANGED, REPLACED, Action, BucketStore, Entry, Vendor
from reelscribe.storage.objects import (
    ATTEMPTS,
    CONNECT_SECONDS,
    CONNECTIONS,
    READ_BYTES,
    StoredObject,
    byte_range,
)

PART_BYTES = 2**25
"""Size of an object above which it is sent in parts, and of all but the last part, in bytes."""

_MOST_PARTS = 10_000
"""Largest number of parts that S3 takes of an object."""

_CREDENTIALS = {
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "InvalidAccessKeyId"),
    *("SignatureDoesNotMatch", "RequestTimeTooSkewed", "400"),
}
"""Codes of errors that other credentials would not have. A request without a body is only 400 because of those."""


class S3Store(BucketStore):
    """A store with the interface of S3; see `ObjectStore`."""

    vendor = Vendor(
        name="AWS",
        store="S3",
        scheme="s3",
        bucket="bucket",
        sign_in="set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure or aws sso login",
        rights={
            "read": "s3:GetObject",
            "list": "s3:ListBucket",
            "write": "s3:PutObject",
            "delete": "s3:DeleteObject",
        },
        endpoints=("AWS_ENDPOINT_URL", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    )
    library_errors = (BotoCoreError, ClientError, HTTPError)

    def __init__(self, stall_seconds: float, attempts: int = ATTEMPTS) -> None:
        """Find credentials, but ask the store nothing yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            attempts: Number of times that a request is sent until the store does not fail.

        Raises:
            UsageError: The settings of AWS name what there is not, such as a profile.
        """
        self.vendor.check_addresses()
        try:
            session = boto3.session.Session()
            is_anonymous = session.get_credentials() is None
            config = Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=stall_seconds,
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": attempts},
                **({"signature_version": UNSIGNED} if is_anonymous else {}),
            )
            self._client: Any = session.client("s3", config=config, region_name=session.region_name or "us-east-1")
        except (BotoCoreError, ValueError) as error:
            raise self.vendor.unusable(str(error)) from None
        self.vendor.check_addresses(self._client.meta.endpoint_url)
        super().__init__(attempts, is_anonymous=is_anonymous)

    def _head(self, place: ObjectAddress) -> Entry:
        head = self._client.head_object(Bucket=place.bucket, Key=place.key)
        return Entry(place.key, head["ContentLength"], head.get("ETag", ""), head.get("LastModified"))

    def _page(self, place: ObjectAddress, token: str | None) -> tuple[list[Entry], str | None]:
        page = self._client.list_objects_v2(
            Bucket=place.bucket, Prefix=place.key, **({"ContinuationToken": token} if token else {})
        )
        entries = [
            Entry(each["Key"], each["Size"], each.get("ETag", ""), each.get("LastModified"))
            for each in page.get("Contents", ())
        ]
        return entries, page["NextContinuationToken"] if page.get("IsTruncated") else None

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object from a byte on, up to another one, as it comes."""
        place, end = self._split(stored.address), stored.size if stop is None else stop
        conditions = {"IfMatch": stored.version} if stored.version else {}
        with self._errors("read", stored.address):
            answer = self._client.get_object(
                Bucket=place.bucket, Key=place.key, Range=byte_range(start, stop), **conditions
            )
            with answer["Body"] as body:  # without a layer that waits until all that is asked for has come
                told = answer.get("ContentRange", "")
                size = told.rpartition("/")[2] or str(answer["ContentLength"])
                if size != str(stored.size) or (stored.version and answer.get("ETag") != stored.version):
                    raise SourceChanged(CHANGED)
                if start and not told.startswith(f"bytes {start}-"):
                    raise MediaError("expected a store that sends the part that it is asked for, got another one")
                read: Callable[[int], bytes] = body.read1
                while block := read(READ_BYTES):
                    yield block
                    start += len(block)
        if start < end:  # the library does not tell
            raise StoreUnavailable("the connection to the store broke before everything had come")

    def _put(self, place: ObjectAddress, content: IO[bytes], replaced: StoredObject | None) -> str:
        condition = {"IfMatch": replaced.version} if replaced else {"IfNoneMatch": "*"}
        if replaced and not replaced.version:
            condition = {}
        try:
            return self._send(place, content, condition)
        except ClientError as error:
            if not condition or _code(error) != "NotImplemented":
                raise
        self._check_replaceable(place, replaced)  # the next best, in a store that knows no conditions
        return self._send(place, content, {})

    def _check_replaceable(self, place: ObjectAddress, replaced: StoredObject | None) -> None:
        """Raise SourceChanged if something else is there than what may be replaced."""
        try:
            version = self._head(place).version
        except ClientError as error:
            if _status(error) != 404:
                raise
            version = None
        if version != (replaced.version if replaced else None):
            raise SourceChanged(REPLACED)

    def _send(self, place: ObjectAddress, content: IO[bytes], condition: Mapping[str, str]) -> str:
        """Put an object, in parts if it is large, and return its version."""
        named: dict[str, str] = {"Bucket": place.bucket, "Key": place.key}
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        if size <= PART_BYTES:
            return str(self._client.put_object(**named, Body=content, **condition).get("ETag", ""))
        named["UploadId"] = self._client.create_multipart_upload(**named)["UploadId"]
        part_bytes = max(PART_BYTES, -(-size // _MOST_PARTS))
        try:
            parts: list[dict[str, Any]] = []
            while part := content.read(part_bytes):
                number = len(parts) + 1
                sent = self._client.upload_part(**named, PartNumber=number, Body=part)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            whole = self._client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts}, **condition)
            return str(whole.get("ETag", ""))
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # the first error matters more
                self._client.abort_multipart_upload(**named)
            raise

    def _remove(self, place: ObjectAddress) -> None:
        self._client.delete_object(Bucket=place.bucket, Key=place.key)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _explained(self, error: Exception, action: Action, bucket: str) -> MediaError:
        if isinstance(error, ClientError):
            code, status = _code(error), _status(error)
            if code == "NoSuchBucket":
                return self._no_bucket(bucket)
            if code in _CREDENTIALS:
                status = 401
            if status in (301, 307):
                return MediaError(f"the bucket {brief(bucket)} is in another region; set AWS_REGION to that")
            return self._refused(status, code, action)
        if isinstance(error, ParamValidationError):
            return MediaError(f"expected a bucket and an object, as {self.vendor.example}: {brief(str(error))}")
        if isinstance(error, HTTPError):
            return StoreUnavailable(f"the connection to the store broke: {type(error).__name__}")
        if isinstance(error, (NotConnected, HTTPClientError)):  # it could not be made, broke, or stood still
            return StoreUnavailable(f"the store does not answer: {brief(str(error))}")
        if type(error).__name__ in ("IncompleteReadError", "ResponseStreamingError"):
            return StoreUnavailable(f"the connection to the store broke: {brief(str(error))}")
        return MediaError(f"the store cannot be asked: {brief(str(error))}; {self.vendor.sign_in}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
