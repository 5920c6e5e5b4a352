"""Files on web servers.

A server is asked for one byte of a file to learn its size and version, as some refuse to tell these alone. What comes
later must have the same size and version, whatever the server was asked for. A redirect is followed to another public
server, or to one that the user has named; never from https to http, nor into a private network, where a server of
somebody else could make this machine fetch what only it may see. A name and password go only to a server that the user
has named. What nobody has named is connected to by the IP addresses that were checked.
"""

from __future__ import annotations

import ipaddress
import netrc
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NewConnectionError,
    SSLError,
)
from urllib3.util import Url

from reelscribe._web_addresses import (
    OF_PROXIES,
    OVER_PROXY,
    PORTS,
    bare_host,
    is_public,
    parse_web_address,
    proxy_login,
    proxy_of,
)
from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable, brief
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
_UNNAMED = (
    "expected a file in the public network, as nobody but these results has named its server; if the server is yours,"
    " name its host with --media-host"
)
_POOLS: dict[str, Any] = {"maxsize": CONNECTIONS, "retries": False}
_LATER = {408, 425, 429, 500, 502, 503, 504}
"""Statuses of answers that may be others later."""


class WebStore(ObjectStore):
    """All web servers of a run; see `ObjectStore`."""

    def __init__(self, stall_seconds: float, hosts: Sequence[str] | None = None) -> None:
        """Open no connection yet.

        Args:
            stall_seconds: Seconds without a byte after which a connection is given up.
            hosts: The hosts that the user has named, from `named_host`; None if the user has named all addresses that
                are asked for.
        """
        self._limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=stall_seconds)
        self._are_named = hosts is None
        self._named = set(hosts or ())
        """The hosts that the user has named, as `bare_host` returns them."""
        self._answering = dict[tuple[str, int | None], str]()
        """The IP address at which each host and port was last connected to."""
        self._direct = urllib3.PoolManager(**_POOLS)
        self._proxies = dict[Url, urllib3.ProxyManager]()

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
        for manager in (self._direct, *self._proxies.values()):
            manager.clear()

    @contextmanager
    def _answer(self, address: str, headers: Mapping[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for a file, and yield the answer, whose body has not been read."""
        try:
            url = first = parse_web_address(address)
        except ValueError as error:
            raise MediaError(str(error)) from None
        if self._are_named:
            self._named.add(bare_host(first))
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._ask(url, first, headers)
            try:
                if answer.status not in _REDIRECTS:
                    if answer.status not in (200, 206, 416):
                        advice = "put" if self._are_named else "name its host with --media-host, and put"
                        raise _error(answer, advice, asks_proxy=_asks_proxy(url))
                    yield answer
                    return
                url = _redirected(url, answer.headers.get("Location"))
            finally:
                answer.close()  # most of its body has not been read, so nothing else can be asked on this connection
        raise MediaError(f"expected a file after at most {_MOST_REDIRECTS} redirects, got another redirect")

    def _ask(self, url: Url, first: Url, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Ask the server of an address, to which that of `first` may have redirected."""
        host, refusal = bare_host(url), _UNNAMED if url == first else _PRIVATE
        is_named = host in self._named
        with _connection_errors():
            login = _login(host) if is_named and _gets_login(url, first) else {}
            every = {
                "Host": url.netloc or "",
                "Accept-Encoding": "identity",
                "User-Agent": "reelscribe",
                **login,
                **headers,
            }
            if proxy := proxy_of(url.scheme or "", host, url.port):
                if not is_named and not _is_public_or_name(host):  # what a name stands for is up to the proxy
                    raise MediaError(refusal)
                connections = self._proxies.get(proxy) or self._proxies.setdefault(proxy, _over(proxy))
                return self._get(connections, url.url, every)
            before = self._answering.get((host, url.port))  # first, as it may have a connection, and others may be dead
            *others, last = [host] if is_named else sorted(_public_ips(url, refusal), key=lambda ip: ip != before)
            for ip in others:
                with suppress(NewConnectionError, ConnectTimeoutError):
                    return self._get_from(ip, url, every)
            return self._get_from(last, url, every)

    def _get_from(self, ip: str, url: Url, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Ask a server by its IP address, or by its name; certificates must be for its name."""
        host = bare_host(url)
        connections = self._direct.connection_from_host(ip, url.port, url.scheme, {"server_hostname": host})
        answer = self._get(connections, url.request_uri, headers)
        self._answering[host, url.port] = ip
        return answer

    def _get(
        self, connections: urllib3.HTTPConnectionPool | urllib3.ProxyManager, target: str, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        answer: urllib3.BaseHTTPResponse = connections.urlopen(
            "GET",
            target,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
            timeout=self._limits,
        )
        return answer


def _gets_login(url: Url, first: Url) -> bool:
    """Return whether a server is the one that was asked first, or has its host and the usual port of https."""
    return url.host == first.host and ((url.scheme, url.port) in (("https", None), (first.scheme, first.port)))


def _redirected(url: Url, location: str | None) -> Url:
    """Return the address to which an answer redirects. Errors do not show it, as it may have a signature."""
    try:
        if not location:
            raise ValueError
        target = parse_web_address(location, url)
    except ValueError:
        other = re.match(r"(?!https?:)[a-z][a-z0-9+.-]*://[a-z0-9.-]*", location or "", re.IGNORECASE)
        if other:
            raise MediaError(f"expected a file, got a redirect to {brief(other[0])}, which is not followed") from None
        raise MediaError("expected a file, got a redirect to what is no address") from None
    if (url.scheme, target.scheme) == ("https", "http"):
        raise MediaError(
            f"expected a file, got a redirect to {brief(f'http://{target.host}')}, which is not encrypted, so not"
            " followed"
        )
    return target


def _public_ips(url: Url, refusal: str) -> list[str]:
    """Return the IP addresses of a host, of which none may be in a private network: then none of them is asked."""
    port = url.port or PORTS[url.scheme or ""]
    found = socket.getaddrinfo(bare_host(url), port, type=socket.SOCK_STREAM)
    ips = [*dict.fromkeys(str(each[4][0]) for each in found)]
    if not all(map(is_public, ips)):
        raise MediaError(refusal)
    return ips


def _is_public_or_name(host: str) -> bool:
    """Return whether a host is not the number of an address in a private network."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return is_public(host)


def _login(host: str) -> dict[str, str]:
    """Return the name and password of the user's ~/.netrc for a host."""
    with suppress(OSError, netrc.NetrcParseError):
        if found := netrc.netrc().hosts.get(host):
            return urllib3.make_headers(basic_auth=f"{found[0]}:{found[2]}")
    return {}


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except (LocationValueError, ValueError):  # the texts may have the whole address
        raise MediaError("expected an address of a file on a web server; check it, and ~/.netrc") from None
    except SSLError as error:
        if "CERTIFICATE" in str(error).upper():
            raise MediaError(
                f"the certificate of the server cannot be checked: {brief(str(error))}; set SSL_CERT_FILE to that of"
                " its issuer"
            ) from None
        raise StoreUnavailable(f"the connection to the server broke: {brief(str(error))}") from None
    except (NewConnectionError, socket.gaierror) as error:
        if isinstance(error, socket.gaierror) or isinstance(error.__cause__, socket.gaierror):
            raise StoreUnavailable("the name of the server cannot be resolved; check the address") from None
        raise StoreUnavailable(f"the server cannot be reached: {brief(str(error.__cause__ or error))}") from None
    except (HTTPError, OSError) as error:
        raise StoreUnavailable(f"the connection to the server broke: {type(error).__name__}") from None


def _asks_proxy(url: Url) -> bool:
    """Return whether a proxy may have answered in place of a server; what is encrypted it only passes on."""
    return url.scheme == "http" and proxy_of("http", bare_host(url), url.port) is not None


def _error(answer: urllib3.BaseHTTPResponse, advice: str, *, asks_proxy: bool) -> MediaError:
    status = answer.status
    note = f"; {OVER_PROXY}" if asks_proxy and status in OF_PROXIES else ""
    if status in _LATER:
        return StoreUnavailable(f"the server failed with status {status} again and again{note}")
    if status in (404, 410):
        return NoSuchObject(f"no such file on the server (status {status}); check the address")
    if status in (401, 403, 407):
        return MediaError(
            f"permission denied by the server (status {status}); {advice} name and password into ~/.netrc{note}"
        )
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


def _over(proxy: Url) -> urllib3.ProxyManager:
    """Return the connections over a proxy."""
    login = proxy_login(proxy)
    headers = urllib3.make_headers(proxy_basic_auth=":".join(login)) if login else None
    return urllib3.ProxyManager(proxy._replace(auth=None).url, proxy_headers=headers, **_POOLS)
