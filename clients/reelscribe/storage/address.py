"""The names of sources that are no files: ``s3://bucket/films/one.mp4``, ``gs://bucket/films/one.mp4``,
``az://container/films/one.mp4``, ``https://example.org/one.mp4`` and members of archives, such as
``shard-000.tar::one.mp4``.

An address is the name of a source, as a path is: records, messages and the ledger have it as it was given. So nothing
secret may be in it. A path of this machine that looks like an address can be given as ``./s3:/...``.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from reelscribe._web_addresses import parse_web_address
from reelscribe.errors import UsageError

BUCKET_SCHEMES = ("s3", "gs", "az")
"""The schemes of stores with buckets, which can be listed and written to."""

SCHEMES = (*BUCKET_SCHEMES, "https", "http")
"""The schemes of addresses that are read."""

_ADDRESS = re.compile(f"({'|'.join(SCHEMES)})://", re.IGNORECASE)
_ANY_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MEMBER = re.compile(r"\.tar::", re.IGNORECASE)
_PASSWORD = re.compile("passw|^(pass|pwd|code)$")
_SECRET = re.compile(
    "signature|token|secret|credential|api_?key|access_?key|hmac|jwt|policy|expires|sess(ion)?_?id"
    "|^(x-(amz|goog|ms)-.*|hdn(ts|ea|tl)|session|sid|sig|key|auth)$"
)
_SECRET_IN_PATH = re.compile("[a-z_]*token[a-z_]*|hmac|hdn(ts|ea|tl)")
"""Names of parameters of an address that are likely to be secret, as in the signed addresses that stores and networks
of servers lend for a while, and in those of sessions. Networks put some into the path, too. What machines make is long;
only passwords are secret if they are short."""
_LONG = 6
"""Characters that a secret which a machine has made has at least."""


class ObjectAddress(NamedTuple):
    """The address of an object in a store, or of all objects whose keys begin alike."""

    bucket: str
    key: str


def is_address(name: str) -> bool:
    """Return whether the name of a source is an address, and not a path of this machine."""
    return _ADDRESS.match(name) is not None


def is_object(name: str) -> bool:
    """Return whether a name is the address of an object in a bucket, or of the bucket."""
    return is_address(name) and not is_web_address(name)


def is_member(name: str) -> bool:
    """Return whether a source is a member of an archive, ``ARCHIVE.tar::MEMBER``."""
    return _MEMBER.search(name) is not None


def is_archive(name: str) -> bool:
    """Return whether a name is that of an archive whose members are sources."""
    return name.lower().endswith(".tar") and not is_member(name)


def is_stored(name: str) -> bool:
    """Return whether a source is no file of this machine: an object, or a member of an archive."""
    return is_address(name) or is_member(name)


def split_member(name: str) -> tuple[str, str]:
    """Return the archive and the name of the member in it; the first ``.tar::`` divides them."""
    found = _MEMBER.search(name)
    return (name[: found.end() - 2], name[found.end() :]) if found else (name, "")


def file_of(name: str) -> str | None:
    """Return the file of this machine in which a source is: itself, or its archive; None for what is in a store."""
    if is_address(name):
        return None
    return split_member(name)[0] if is_member(name) else name


def looks_like_address(name: str) -> bool:
    """Return whether a name looks like an address, of whatever scheme."""
    return _ANY_ADDRESS.match(name) is not None


def absolute_name(name: str) -> str:
    """Return the name of a source that leads to it from every folder: an address, or an absolute path."""
    if is_address(name):
        return name
    if is_member(name):
        archive, member = split_member(name)
        return f"{os.path.abspath(archive)}::{member}"
    return os.path.abspath(name)


def file_name(name: str) -> str:
    """Return the name of the file that a source is, without folders, its archive, and what a web address asks for."""
    path = re.split("[?#]", name, maxsplit=1)[0] if is_web_address(name) else name
    return path.rpartition("/")[2].rpartition("::")[2]


def suffix(name: str) -> str:
    """Return the suffix of the file name of a source, with its dot, in lower case."""
    return os.path.splitext(file_name(name))[1].lower()


def is_note_of_mac(name: str) -> bool:
    """Return whether a file is only what a Mac notes of another file or of a folder, in a folder or an archive."""
    *folders, base = name.split("/")
    return base.startswith("._") or base == ".DS_Store" or "__MACOSX" in folders


def is_web_address(name: str) -> bool:
    """Return whether a name is the address of a file on a web server."""
    return name[:8].lower().startswith(("http://", "https://"))


def split_object(address: str) -> ObjectAddress:
    """Split the address of an object, ``scheme://bucket/key``.

    The key is taken as it is: stores allow characters in keys that have a meaning in addresses of the web.
    """
    bucket, _, key = address.partition("://")[2].partition("/")
    return ObjectAddress(bucket, key)


def check_address(address: str) -> None:
    """Check that an address can be the name of a source.

    Raises:
        UsageError: It is none, or names no bucket or host; or has a password or what is likely to be a token, which
            would get into records. The message has neither.
    """
    scheme, _, rest = address.partition("://")
    is_web = is_web_address(address)
    place = re.split(r"[/?#;\\]" if is_web else "/", rest, maxsplit=1)[0]
    shown = f"{scheme}://{quote(place.rpartition('@')[2], safe=':[]')}/..."
    if "@" in place:
        raise UsageError(
            f"{shown}: expected an address without a name and password, which would get into records; put them into"
            f" {'~/.netrc' if is_web else 'the environment'}"
        )
    if is_web and _has_secret(address):
        raise UsageError(
            f"{shown}: expected an address without a signature, token or session, which would get into records;"
            " leave a session out; for what is signed, give the object's own address, such as s3://bucket/key,"
            " gs://bucket/key or az://container/key, with the credentials in the environment"
        )
    try:
        if is_web:
            parse_web_address(address)
        elif not place[:1].isalnum():
            raise ValueError(f"expected a bucket after {scheme}://")
    except ValueError as error:
        shown = f"{scheme}://..." if "@" in rest else shown  # what is before it may be a password
        raise UsageError(f"{shown}: {error}") from None


def _has_secret(address: str) -> bool:
    """Return whether an address of the web has a parameter that is likely to be secret."""
    whole = unquote(address).lower()
    if "=" not in whole:
        return False
    query = [*map(unquote, re.split("[?&;#]", address.lower())[1:]), *re.split("[?&;#]", whole)[1:]]
    parameters = _parameters(query)
    names = {name for name, _ in parameters}
    return (
        any(map(_PASSWORD.search, names))
        or any(len(value) >= _LONG and _SECRET.search(name) for name, value in parameters)
        or any(
            len(value) >= _LONG and _SECRET_IN_PATH.fullmatch(name)
            for name, value in _parameters(re.split("[?&;#/~]", whole))
        )
        # a signature, and when it ends; in other addresses where a part starts and ends, in seconds or as 01:30
        or ("e" in names and any(name == "st" and _is_signature(value) for name, value in parameters))
    )


def _parameters(parts: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, equals, value in (each.partition("=") for each in parts) if equals]


def _is_signature(value: str) -> bool:
    return len(value) >= _LONG and not re.fullmatch("[0-9.:]*", value)
