"""Addresses of web servers: one parser for everything that checks, trusts or connects to one.

Programs read different hosts out of a malformed address, so what one of them has checked, another might not connect to.
Here `parse_web_address` decides for all: it refuses what parsers read differently, and whoever connects uses the parts
that it returns, never the text that it was given.
"""

from __future__ import annotations

import ipaddress
import os
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin

from reelscribe.errors import UsageError

if TYPE_CHECKING:  # imported when needed, as it takes longer than most commands of this module's users
    from urllib3.util import Url

PORTS = {"http": 80, "https": 443}
"""The schemes of the web, with their usual ports."""

OPENAI = "openai+"
"""Beginning of the addresses of servers with OpenAI's API, before http:// or https://."""

OVER_PROXY = (
    "it is asked over the proxy of http_proxy, https_proxy or all_proxy; name its host in no_proxy if it needs none"
)
"""What to tell where a proxy may be the cause."""

OF_PROXIES = (403, 407, 502, 503, 504)
"""Statuses with which proxies refuse to ask a server, or tell that they cannot."""

_PROXY_VARIABLES = [f"{name}_proxy" for name in ("http", "https", "all", "no")]
_PROXY_VARIABLES += map(str.upper, _PROXY_VARIABLES[:])

_EXPECTED = "expected a host after http:// or https://, and no port or one from 1 to 65535"
_MOST_CHARACTERS = 10_000
_AMBIGUOUS = re.compile(r"[\x00-\x1f\x7f\\]|^\s|\s$")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")  # where many programs see an IPv4 address, in some form or other


def parse_web_address(text: str, base: Url | None = None, *, with_login: bool = False) -> Url:
    """Return the parts of an address, by which it is checked and connected to.

    The text of these parts, `Url.url`, is read in the same way by all parsers.

    Args:
        text: The address.
        base: The address from which a relative one starts, as in a redirect; None if it must be whole.
        with_login: Whether it may have a name and password, as addresses of proxies do.

    Returns:
        The parts: the host in lower case, in ASCII and without the dot that may end a whole name, the port only if it
            is not the usual one, and no fragment.

    Raises:
        ValueError: It is none, or parsers differ about it. The message says what was expected, and quotes
            nothing.
    """
    from urllib3.util import Url, parse_url

    if len(text) > _MOST_CHARACTERS or _AMBIGUOUS.search(text):
        raise ValueError(
            f"expected an address of at most {_MOST_CHARACTERS} characters, without backslashes, control characters,"
            " and spaces around it"
        )
    try:
        whole = urljoin(base.url, text) if base else text
        parts = parse_url(whole)
    except ValueError:  # its text has the address
        raise ValueError(_EXPECTED) from None
    if parts.scheme not in PORTS or not parts.host:
        raise ValueError(_EXPECTED)
    login, at, host = re.split("[/?#]", whole.partition("//")[2], maxsplit=1)[0].rpartition("@")
    if at and not (login and with_login):
        raise ValueError("expected an address without a name and password")
    if "%" in host or unicodedata.normalize("NFKC", host) != host:
        raise ValueError(
            "expected a host whose letters, digits and dots are the usual ones; instead of an IPv6 address with a zone,"
            " such as fe80::1%eth0, give another address of this host, or its name"
        )
    if parts.port == 0:
        raise ValueError(_EXPECTED)
    port = None if parts.port == PORTS[parts.scheme] else parts.port
    return Url(parts.scheme, parts.auth, _host(parts.host.removesuffix(".")), port, parts.path or "/", parts.query)


def _host(host: str) -> str:
    """Return a host in its usual form; raise ValueError if it has none."""
    try:
        if host.startswith("["):
            ip = ipaddress.IPv6Address(host[1:-1])
            if ip.scope_id or ip.ipv4_mapped:
                raise ValueError
            return f"[{ip}]"
        if _NUMBER.fullmatch(host):
            return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise ValueError("expected an IP address in its usual form, such as 192.0.2.1 or [2001:db8::1]") from None
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError("expected a host of letters, digits and hyphens between single dots")
    return host


def bare_host(url: Url) -> str:
    """Return the host of an address, an IPv6 address without brackets."""
    return (url.host or "").strip("[]")


def named_host(text: str) -> str:
    """Return a host that a user names alone, as `bare_host` does; raise ValueError as `parse_web_address`."""
    url = parse_web_address(f"http://[{text}]" if text.count(":") > 1 else f"http://{text}")
    if url.port or url.request_uri != "/":
        raise ValueError("expected a host alone, without port and path")
    return bare_host(url)


def _proxy(name: str, address: str) -> Url:
    """Return the address of a proxy. Raises UsageError if it cannot be used; the message has no password."""
    try:
        proxy = parse_web_address(address if "://" in address else f"http://{address}", with_login=True)
        unquote(proxy.auth or "").encode("latin-1")
    except ValueError:
        raise UsageError(
            f"{name}_proxy: expected the address of a proxy, such as http://proxy:3128, and of its name and password"
            " only characters of Latin-1; SOCKS is not supported: set http_proxy and https_proxy, or name in no_proxy"
            " the hosts that need none"
        ) from None
    return proxy


def proxy_of(scheme: str, host: str, port: int | None) -> Url | None:
    """Return the proxy over which a server is asked, with a name and password where it has them; None for none.

    It is that of http_proxy or https_proxy, or of all_proxy if that is missing. This machine and what no_proxy names
    are asked directly.

    Args:
        scheme: Scheme of the address, http or https.
        host: Its host, an IPv6 address without brackets.
        port: Its port; None for the usual one.

    Raises:
        UsageError: The proxy cannot be used.
    """
    return _proxy_of(scheme, host, port, tuple(map(os.environ.get, _PROXY_VARIABLES)))


@lru_cache(maxsize=1024)  # Python reads the whole environment for it, which takes long for each request
def _proxy_of(scheme: str, host: str, port: int | None, _: tuple[str | None, ...]) -> Url | None:
    """Return the proxy over which a server is asked, for values of _PROXY_VARIABLES; see `proxy_of`."""
    import urllib.request

    proxies = urllib.request.getproxies()
    name = scheme if scheme in proxies else "all"
    if not proxies.get(name) or _is_this_machine(host):
        return None
    is_direct = any(map(urllib.request.proxy_bypass, (host, f"{host}:{port or PORTS[scheme]}")))
    return None if is_direct else _proxy(name, proxies[name])


def proxy_login(proxy: Url) -> tuple[str, str] | None:
    """Return the name and the password for a proxy; None if it has none."""
    name, _, password = (proxy.auth or "").partition(":")
    return (unquote(name), unquote(password)) if proxy.auth else None


def _is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, as far as its name tells."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def checked_server_address(text: str, example: str = "http://127.0.0.1:8081") -> str:
    """Return the address of a server, without a slash at its end, so that paths can be put after it.

    Args:
        text: The address, which may have a path, but nothing after that.
        example: What it looks like, for the error.

    Raises:
        UsageError: It is none, or has a name and password.
    """
    try:
        if "?" in text or "#" in text:
            raise ValueError("expected an address without ? and #")
        return parse_web_address(text).url.rstrip("/")
    except ValueError as error:
        raise UsageError(f"server: expected an address like {example}, got {without_login(text)!r}: {error}") from None


def server_at(text: str) -> tuple[str, str, int] | None:
    """Return the server that an address leads to: scheme, host and port. None if it is no address.

    The names of this machine are one host.
    """
    try:
        parts = parse_web_address(text)
    except ValueError:  # whoever connects there says so
        return None
    assert parts.scheme
    host = "127.0.0.1" if parts.host in ("localhost", "0.0.0.0") else parts.host or ""  # noqa: S104 - binds nothing
    return parts.scheme, host, parts.port or PORTS[parts.scheme]


def openai_servers(addresses: Iterable[str]) -> set[object]:
    """Return the different servers with OpenAI's API to which addresses lead."""
    return {server_at(each.removeprefix(OPENAI)) or each for each in addresses if each.startswith(OPENAI)}


def without_login(text: str) -> str:
    """Return what should be an address without the name and password in it, for messages."""
    before, slashes, rest = text.partition("//") if "//" in text else ("", "", text)
    return f"{before}{slashes}***@{rest.rpartition('@')[2]}" if "@" in rest else text


def is_public(ip: str) -> bool:
    """Return whether an IP address is one of the public network, whatever it is wrapped in."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if (inner and not is_public(str(inner))) or not (address in _NAT64 or address in _UNICAST):
            return False
    return address.is_global and not address.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that has been given out to the public. For Python, much of the rest is public, too, as sites' own networks."""
