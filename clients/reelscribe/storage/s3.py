"""Objects in S3, or in a store with its interface, such as MinIO, Ceph and R2.

Credentials, the region and the address of the store come from where all programs with AWS's library find them: the
environment, ``~/.aws``, or the machine's role. Without any, objects are read that everybody may read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import IO, Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from botocore.exceptions import ConnectionError as NotConnected
from urllib3.exceptions import HTTPError

from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, UsageError, brief
from reelscribe.storage.address import split_object
from reelscribe.storage.objects import (
    ATTEMPTS,
    CONNECT_SECONDS,
    CONNECTIONS,
    MOST_SIZE,
    READ_BYTES,
    ObjectStore,
    StoredObject,
    byte_range,
)

PART_BYTES = 2**25
"""Size of an object above which it is sent in parts, and of all but the last part, in bytes."""

_MOST_PARTS = 10_000
"""Largest number of parts that S3 takes of an object."""

_MOST_EMPTY_PAGES = 1000
"""Number of pages of a list in a row that may have no object."""

_GONE = {"404", "NoSuchKey", "NoSuchBucket"}
_CREDENTIALS = {
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "InvalidAccessKeyId"),
    *("SignatureDoesNotMatch", "RequestTimeTooSkewed", "401", "400"),
}
"""Codes of errors that other credentials would not have. A request without a body is only 400 because of those."""

_READING = "s3:GetObject"
"""The right that reading needs."""

_REPLACED = "something else was put there in the meantime; run the same command again"

_HOW_TO_SIGN_IN = (
    "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure or aws sso login"
)


class S3Store(ObjectStore):
    """A store with the interface of S3; see `ObjectStore`."""

    def __init__(self, stall_seconds: float, attempts: int = ATTEMPTS) -> None:
        """Find credentials, but ask the store nothing yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            attempts: Number of times that a request is sent until the store does not fail.

        Raises:
            UsageError: The settings of AWS name what there is not, such as a profile.
        """
        self._attempts = attempts
        try:
            self._open(stall_seconds)
        except (BotoCoreError, ValueError) as error:
            raise UsageError(
                f"s3://: the settings of AWS cannot be used: {brief(str(error))}; {_HOW_TO_SIGN_IN}"
            ) from None

    def _open(self, stall_seconds: float) -> None:
        session = boto3.session.Session()
        self._is_anonymous = session.get_credentials() is None
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=stall_seconds,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            **({"signature_version": UNSIGNED} if self._is_anonymous else {}),
        )
        self._client: Any = session.client("s3", config=config, region_name=session.region_name or "us-east-1")

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of an object."""
        bucket, key = split_object(address)
        with self._errors(address):
            head = self._client.head_object(Bucket=bucket, Key=key)
            return StoredObject(address, _size(head["ContentLength"]), head.get("ETag", ""), _seconds(head))

    def list(self, address: str) -> Iterator[StoredObject]:
        """Yield all objects whose keys begin like that of an address."""
        bucket, prefix = split_object(address)
        start = f"{address[: len(address) - len(prefix)]}".rstrip("/")
        last, empty = b"", 0
        with self._errors(address):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                empty = 0 if page.get("Contents") else empty + 1
                if empty > _MOST_EMPTY_PAGES:
                    raise MediaError("expected a list of objects, got pages without any, and no end")
                for each in page.get("Contents", ()):
                    key = each["Key"].encode("utf-8", "surrogatepass")
                    if key <= last and not bucket.endswith("--x-s3"):  # those of one zone list in no order
                        raise MediaError("expected a list of objects in the order of their keys, got one without end")
                    last = key
                    yield StoredObject(
                        f"{start}/{each['Key']}", _size(each["Size"]), each.get("ETag", ""), _seconds(each)
                    )

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of an object from a byte on, up to another one."""
        bucket, key = split_object(stored.address)
        conditions = {"IfMatch": stored.version} if stored.version else {}
        with self._errors(stored.address):
            answer = self._client.get_object(Bucket=bucket, Key=key, Range=byte_range(start, stop), **conditions)
            with answer["Body"] as body:  # without a layer that waits until all that is asked for has come
                told = answer.get("ContentRange", "")
                size = told.rpartition("/")[2] or str(answer["ContentLength"])
                if size != str(stored.size) or (stored.version and answer.get("ETag") != stored.version):
                    raise SourceChanged("it was changed while it was being read; run the same command again")
                if start and not told.startswith(f"bytes {start}-"):
                    raise MediaError("expected a store that sends the part that it is asked for, got another one")
                read: Callable[[int], bytes] = body.read1
                while block := read(READ_BYTES):
                    yield block

    def write(self, address: str, content: IO[bytes], replaced: StoredObject | None) -> str:
        """Put an object, on the condition that what is there is still what may be replaced, or nothing."""
        condition = {"IfMatch": replaced.version} if replaced else {"IfNoneMatch": "*"}
        if replaced and not replaced.version:
            condition = {}
        with self._errors(address, right="s3:PutObject"):
            try:
                return self._put(address, content, condition)
            except ClientError as error:
                if not condition or _code(error) != "NotImplemented":
                    raise
            self._check_replaceable(address, replaced)  # the next best, in a store that knows no conditions
            return self._put(address, content, {})

    def _check_replaceable(self, address: str, replaced: StoredObject | None) -> None:
        """Raise SourceChanged if something else is there than what may be replaced."""
        try:
            version = self.info(address).version
        except NoSuchObject:
            version = None
        if version != (replaced.version if replaced else None):
            raise SourceChanged(_REPLACED)

    def _put(self, address: str, content: IO[bytes], condition: Mapping[str, str]) -> str:
        """Put an object, in parts if it is large, and return its version."""
        bucket, key = split_object(address)
        place = {"Bucket": bucket, "Key": key}
        size = content.seek(0, os.SEEK_END)
        content.seek(0)
        if size <= PART_BYTES:
            return str(self._client.put_object(**place, Body=content, **condition).get("ETag", ""))
        place["UploadId"] = self._client.create_multipart_upload(**place)["UploadId"]
        part_bytes = max(PART_BYTES, -(-size // _MOST_PARTS))
        try:
            parts: list[dict[str, Any]] = []
            while part := content.read(part_bytes):
                number = len(parts) + 1
                sent = self._client.upload_part(**place, PartNumber=number, Body=part)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            whole = self._client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts}, **condition)
            return str(whole.get("ETag", ""))
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # the first error matters more
                self._client.abort_multipart_upload(**place)
            raise

    def delete(self, address: str) -> None:
        """Delete an object, if it is there."""
        bucket, key = split_object(address)
        with self._errors(address, right="s3:DeleteObject"):
            self._client.delete_object(Bucket=bucket, Key=key)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    @contextmanager
    def _errors(self, address: str, right: str = _READING) -> Iterator[None]:
        """Turn the errors of AWS's library into ours, about what needs a right."""
        try:
            yield
        except ClientError as error:
            raise self._error(address, error, right) from None
        except ParamValidationError as error:
            raise MediaError(
                f"expected the address of a bucket and an object, as s3://bucket/key: {brief(str(error))}"
            ) from None
        except HTTPError as error:
            raise StoreUnavailable(f"the connection to the store broke: {type(error).__name__}") from None
        except (NotConnected, HTTPClientError) as error:  # the connection could not be made, broke, or stood still
            raise StoreUnavailable(f"the store does not answer: {brief(str(error))}") from None
        except BotoCoreError as error:
            if type(error).__name__ in ("IncompleteReadError", "ResponseStreamingError"):
                raise StoreUnavailable(f"the connection to the store broke: {brief(str(error))}") from None
            raise MediaError(f"the store cannot be asked: {brief(str(error))}; {_HOW_TO_SIGN_IN}") from None
        except (KeyError, ValueError, TypeError) as error:
            raise MediaError(f"expected answers of S3, got others: {brief(str(error))}") from None

    def _error(self, address: str, error: ClientError, right: str) -> MediaError:
        code = _code(error)
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        bucket = split_object(address).bucket
        if code == "NoSuchBucket":
            return MediaError(f"the store has no bucket {brief(bucket)}; check the name")
        if code in _GONE or status == 404:
            return NoSuchObject("no such object in the store; check the address")
        if code in _CREDENTIALS or status == 401:
            return MediaError(f"the store does not take the credentials ({brief(code)}); {_HOW_TO_SIGN_IN}")
        if status == 403:
            who = "nobody, as no credentials were found" if self._is_anonymous else "you"
            return MediaError(f"permission denied by the store to {who}; {_HOW_TO_SIGN_IN}, or ask for {right} on it")
        if right != _READING and status in (409, 412):
            return SourceChanged(_REPLACED)
        if status == 412:
            return SourceChanged("it was changed while it was being read; run the same command again")
        if status == 416:
            return SourceChanged("it was cut while it was being read; run the same command again")
        if status in (301, 307):
            return MediaError(f"the bucket {brief(bucket)} is in another region; set AWS_REGION to that")
        if status == 429 or status >= 500:
            return StoreUnavailable(f"the store failed with {status} {brief(code)}, {self._attempts} times in a row")
        return MediaError(f"the store refused with {status} {brief(code)}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _seconds(described: Mapping[str, Any]) -> float | None:
    """Return when an object was written, as far as the store tells."""
    written = described.get("LastModified")
    return written.timestamp() if isinstance(written, datetime) else None


def _size(told: int) -> int:
    if not 0 <= told <= MOST_SIZE:
        raise MediaError(f"expected the size of an object, got {brief(told)}")
    return told
