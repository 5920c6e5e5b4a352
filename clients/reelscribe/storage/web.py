"""Files on web servers.

A server is asked for one byte of a file to learn its size and version, as some refuse to tell these alone. What comes
later must have the same size and version, whatever the server was asked for. A redirect is followed to another public
server, or to one that the user has named; never from https to http, nor into a private network, where a server of
somebody else could make this machine fetch what only it may see.
"""

from __future__ import annotations

import ipaddress
import netrc
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, LocationParseError, LocationValueError, NewConnectionError, SSLError

from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, UsageError, brief
from reelscribe.storage.objects import (
    CONNECT_SECONDS,
    CONNECTIONS,
    READ_BYTES,
    ObjectStore,
    StoredObject,
    byte_range,
)

_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 5
_PRIVATE = (
    "expected a file, got a redirect into a private network, which is not followed; if that is meant, give its own"
    " address"
)
_LATER = {408, 425, 429, 500, 502, 503, 504}
"""Statuses of answers that may be others later."""


class WebStore(ObjectStore):
    """All web servers of a run; see `ObjectStore`."""

    def __init__(self, stall_seconds: float) -> None:
        """Open no connection yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
        """
        self._limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=stall_seconds)
        self._named: set[str] = set()
        """The hosts that the user has named, in lower case."""
        pools: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": False}
        self._direct = urllib3.PoolManager(**pools)
        self._public = urllib3.PoolManager(**pools)
        self._public.pool_classes_by_scheme = {"http": _PublicHTTPPool, "https": _PublicHTTPSPool}
        self._proxies = {
            scheme: _proxy(scheme, address, pools)
            for scheme, address in urllib.request.getproxies().items()
            if scheme in ("http", "https")
        }

    def info(self, address: str) -> StoredObject:
        """Return the size and the version of a file."""
        with self._answer(address, {"Range": "bytes=0-0"}) as answer:
            return StoredObject(address, _size(answer), _version(answer.headers))

    def list(self, address: str) -> Iterator[StoredObject]:
        """Refuse, as web servers have no lists."""
        raise MediaError(
            f"{address}: expected the address of a file, as web servers cannot list folders; give each file's address"
        )

    def read(self, stored: StoredObject, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the content of a file from a byte on, up to another one."""
        headers = {"Range": byte_range(start, stop)} if start or stop is not None else {}
        with self._answer(stored.address, headers) as answer:
            if (_size(answer), _version(answer.headers)) != (stored.size, stored.version):
                raise SourceChanged("it was changed while it was being read; run the same command again")
            at = 0 if answer.status == 200 else start  # a server without ranges sends all of it
            if at and not answer.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
                raise MediaError(
                    "expected a server that sends the part of a file that it is asked for, got another one"
                )
            with _connection_errors():
                while (stop is None or at < stop) and (block := answer.read1(READ_BYTES)):
                    if wanted := block[max(0, start - at) : None if stop is None else stop - at]:
                        yield wanted
                    at += len(block)

    def close(self) -> None:
        """Close all connections."""
        for manager in (self._direct, self._public, *self._proxies.values()):
            manager.clear()

    @contextmanager
    def _answer(self, address: str, headers: Mapping[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for a file, and yield the answer, whose body has not been read."""
        self._named.add((urlsplit(address).hostname or "").lower())
        url = address
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._ask(url, headers)
            try:
                if answer.status not in _REDIRECTS:
                    if answer.status not in (200, 206, 416):
                        raise _error(answer)
                    yield answer
                    return
                url = _redirected(url, answer.headers.get("Location"))
            finally:
                answer.close()  # most of its body has not been read, so nothing else can be asked on this connection
        raise MediaError(f"expected a file after at most {_MOST_REDIRECTS} redirects, got another redirect")

    def _ask(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        manager: Any = self._direct if host in self._named else self._public
        if parts.scheme in self._proxies and not urllib.request.proxy_bypass(host):
            if host not in self._named:
                _check_literal(host)  # what a name stands for is up to the proxy
            manager = self._proxies[parts.scheme]
        with _connection_errors():
            every = {"Accept-Encoding": "identity", "User-Agent": "reelscribe", **_authorization(host), **headers}
            answer: urllib3.BaseHTTPResponse = manager.request(
                "GET",
                url,
                headers=every,
                redirect=False,
                preload_content=False,
                decode_content=False,
                timeout=self._limits,
            )
        return answer


def _redirected(url: str, location: str | None) -> str:
    """Return the address to which an answer redirects. Errors do not show it, as it may have a signature."""
    try:
        target = urljoin(url, location or "")
        scheme, host = urlsplit(target).scheme.lower(), urlsplit(target).hostname
    except ValueError:
        raise MediaError("expected a file, got a redirect to what is no address") from None
    if not location or not host or len(target) > 10_000 or scheme not in ("http", "https"):
        raise MediaError(f"expected a file, got a redirect to {brief(f'{scheme}://{host}')}, which is not followed")
    if url.lower().startswith("https:") and scheme == "http":
        raise MediaError(
            f"expected a file, got a redirect to {brief(f'{scheme}://{host}')}, which is not encrypted, so not followed"
        )
    return target


def _authorization(host: str) -> dict[str, str]:
    """Return the name and password of the user's ~/.netrc for a host."""
    with suppress(OSError, netrc.NetrcParseError):
        if found := netrc.netrc().hosts.get(host):
            return urllib3.make_headers(basic_auth=f"{found[0]}:{found[2]}")
    return {}


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except (LocationParseError, LocationValueError, ValueError):  # the texts may have the whole address
        raise MediaError("expected an address of a file on a web server; check it, and ~/.netrc") from None
    except SSLError as error:
        if "CERTIFICATE" in str(error).upper():
            raise MediaError(
                f"the certificate of the server cannot be checked: {brief(str(error))}; set SSL_CERT_FILE to that of"
                " its issuer"
            ) from None
        raise StoreUnavailable(f"the connection to the server broke: {brief(str(error))}") from None
    except NewConnectionError as error:
        if isinstance(error.__cause__, socket.gaierror):
            raise StoreUnavailable("the name of the server cannot be resolved; check the address") from None
        raise StoreUnavailable(f"the server cannot be reached: {brief(str(error.__cause__ or error))}") from None
    except (HTTPError, OSError) as error:
        raise StoreUnavailable(f"the connection to the server broke: {type(error).__name__}") from None


def _error(answer: urllib3.BaseHTTPResponse) -> MediaError:
    status = answer.status
    if status in _LATER:
        return StoreUnavailable(f"the server failed with status {status} again and again")
    if status in (404, 410):
        return NoSuchObject(f"no such file on the server (status {status}); check the address")
    if status in (401, 403, 407):
        return MediaError(f"permission denied by the server (status {status}); put name and password into ~/.netrc")
    return MediaError(f"expected a file, got status {status} from the server")


def _size(answer: urllib3.BaseHTTPResponse) -> int:
    """Return the size of the file of which an answer has a part or all."""
    told = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if answer.status == 200:
        told = answer.headers.get("Content-Length", "")
    if not told.isascii() or not told.isdigit() or len(told) > 18:
        raise MediaError("expected a server that tells the size of the file, got none; download it first")
    return int(told)


def _version(headers: Mapping[str, str]) -> str:
    """Return what the headers of an answer tell of the version of a file; empty for nothing."""
    version = headers.get("ETag") or headers.get("Last-Modified") or ""
    return version if len(version) <= 1000 else ""


def _proxy(scheme: str, address: str, pools: Mapping[str, Any]) -> urllib3.ProxyManager:
    """Return the connections over a proxy of the environment. Raises UsageError if it cannot be used."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        login = parts.username and f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
        return urllib3.ProxyManager(parts.geturl(), proxy_headers=headers, **pools)
    except (ValueError, HTTPError):
        raise UsageError(f"{scheme}_proxy: expected the address of a proxy, such as http://proxy:3128") from None


def _check_literal(host: str) -> None:
    """Check that a host is not the number of an address in a private network."""
    with suppress(ValueError):
        if not ipaddress.ip_address(host).is_global:
            raise MediaError(_PRIVATE)


def _check_public(connected: socket.socket) -> socket.socket:
    """Check that a connection leads to the public network."""
    ip = ipaddress.ip_address(connected.getpeername()[0].partition("%")[0])
    if not ip.is_global:
        connected.close()
        raise MediaError(_PRIVATE)
    return connected


class _PublicHTTPConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _check_public(super()._new_conn())


class _PublicHTTPSConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _check_public(super()._new_conn())


class _PublicHTTPPool(HTTPConnectionPool):
    ConnectionCls = _PublicHTTPConnection


class _PublicHTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _PublicHTTPSConnection
