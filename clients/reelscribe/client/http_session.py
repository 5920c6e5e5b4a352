"""HTTP with a server that may lie: its certificate is checked, and its answers are read in bounded memory.

An answer is uncompressed, so that a small one never becomes a large one; it comes from the address that was asked and
not from another one to which that redirects; and no more than MAX_ANSWER_BYTES are received for it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from reelscribe._web_addresses import OF_PROXIES, OVER_PROXY, proxy_login, proxy_of
from reelscribe.errors import ServerError, ServerUnreachable, UsageError, brief, printable

MAX_ANSWER_BYTES = 16 * 2**20
"""Largest answer that is received, in bytes, with everything that HTTP puts around its body: answers of 1xx before it,
headers, and sizes and extensions of chunks. The largest of our handlers, with the times of all words, has 1 MB."""

REDIRECTS = range(300, 400)
"""Statuses of answers that name another address. They are not followed: that server must not get the token."""


@dataclass(frozen=True)
class RawAnswer:
    """An answer as it came."""

    status: int
    """HTTP status."""
    headers: Mapping[str, str]
    """Its headers, whose names may be looked up in any case."""
    content: bytes
    """Its body, of at most MAX_ANSWER_BYTES, after words on the proxy if it is one of those that proxies make."""

    @property
    def text(self) -> str:
        """The body as text, for messages. It is UTF-8 whatever the server says: Python has codecs that are slow."""
        return self.content.decode("utf-8", "replace")


def open_session(connector: aiohttp.TCPConnector | None = None) -> aiohttp.ClientSession:
    """Return an HTTP session whose answers are bounded.

    It keeps no cookies, which would take memory and nobody needs.
    """
    connector = connector or aiohttp.TCPConnector()
    # aiohttp has no limit on what it receives, and no public place for one.
    connector._factory = partial(_BoundedAnswers, asyncio.get_running_loop())  # type: ignore[assignment]  # a subclass
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: Any,
    *,
    headers: Mapping[str, str],
    limits: aiohttp.ClientTimeout,
    data: AsyncIterable[memoryview] | None = None,
) -> RawAnswer:
    """Send a request, and read its answer.

    Args:
        session: HTTP session for the request.
        method: HTTP method.
        url: The address, as aiohttp takes it.
        headers: Headers of the request.
        limits: Timeout of the request and its answer together.
        data: The body; None for none.

    Returns:
        The answer, whatever its status.

    Raises:
        ServerError: The answer is compressed, or too large, or a proxy refuses to ask the server.
        UsageError: The environment names a proxy that cannot be used.
        TimeoutError: There was no whole answer in time.
        aiohttp.ClientError, OSError: There was no connection, or it ended before the end of the answer.
    """
    target = URL(url)
    proxy = proxy_of(target.scheme, target.host or "", target.port)
    login = proxy and proxy_login(proxy)
    for_proxy = {"Proxy-Authorization": aiohttp.encode_basic_auth(*login, "latin-1")} if login else {}
    try:
        async with session.request(
            method,
            url,
            proxy=proxy._replace(auth=None).url if proxy else None,
            proxy_headers=for_proxy,
            data=data,
            # What is encrypted passes the proxy unread, so the server would get what is meant for the proxy.
            headers={**headers, "Accept-Encoding": "identity", **(for_proxy if target.scheme == "http" else {})},
            timeout=limits,
            allow_redirects=False,
            auto_decompress=False,
        ) as response:
            if proxy and response.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                raise ServerError(f"{url}: the proxy wants a name and password; {OVER_PROXY}")
            try:
                content = await _read(response)
                if proxy and target.scheme == "http" and response.status in OF_PROXIES and not _is_json(content):
                    content = f"maybe from a proxy, as {OVER_PROXY}: ".encode() + content
                return RawAnswer(response.status, response.headers, content)
            except (ServerError, _TooLarge):
                response.close()  # what it still sends is not read
                raise
    except _TooLarge:
        raise ServerError(
            f"{url}: expected an answer of at most {MAX_ANSWER_BYTES // 2**20} MiB, got a larger one; is it a"
            " TorchServe, or another server of models?"
        ) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ServerError(
            f"{response.url}: expected an answer that is not compressed, got Content-Encoding {brief(encoding)}; is it"
            " a TorchServe, or does a proxy before it compress answers?"
        )
    if (response.content_length or 0) > MAX_ANSWER_BYTES:
        raise _TooLarge
    return await response.content.read()


class _TooLarge(Exception):
    """An answer has more than MAX_ANSWER_BYTES."""


class _BoundedAnswers(ResponseHandler):
    """A connection that ends when more than MAX_ANSWER_BYTES arrive for one answer."""

    _left = MAX_ANSWER_BYTES  # a server may send before anything was asked

    def set_response_params(self, **params: Any) -> None:
        """Begin to receive the answer to a request."""
        self._left = MAX_ANSWER_BYTES
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Receive a part of the answer."""
        self._left -= len(data)
        if self._left >= 0:
            super().data_received(data)
            return
        error = _TooLarge()
        self.set_exception(error)
        if self._payload is not None:
            self._payload.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


def parse_json(content: bytes | str) -> Any:
    """Parse JSON from a server.

    Raises:
        ValueError: It is not JSON, not UTF-8, or nested more deeply than Python can read; NaN and infinite numbers are
            no JSON.
    """
    try:
        return _DECODER.decode(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _is_json(content: bytes) -> bool:
    try:
        parse_json(content)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


HTTPS_ONLY = "only accepts HTTPS requests"
"""Text in TorchServe's response, of status 403, to a plain HTTP request at an HTTPS port."""

_LONGEST_REASON = 300

_CERTIFICATE_ADVICE = {
    10: "it has expired: give the server another one",
    62: "connect with a host name or address that is in the server's certificate",
}
"""Advice by OpenSSL's number of a verification error (X509_V_ERR_*)."""


def check_trusted_certificates(url: str) -> None:
    """Check that the trusted certificates that the environment names exist, because OpenSSL ignores missing ones.

    Args:
        url: Address of a server; only https needs certificates.

    Raises:
        UsageError: SSL_CERT_FILE is not a file, or SSL_CERT_DIR lists no folder that exists.
    """
    if not url.lower().startswith("https:"):
        return
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file is not None and not os.path.isfile(file):
        raise UsageError(f"SSL_CERT_FILE: expected a PEM file of trusted certificates, got {file!r}: no file")
    if folders is not None and not any(map(os.path.isdir, folders.split(os.pathsep))):
        raise UsageError(f"SSL_CERT_DIR: expected a folder of trusted certificates, got {folders!r}: no folder")


def unreachable(url: str, error: aiohttp.ClientError | OSError) -> ServerUnreachable:
    """Return the error for a failed connection, with advice on what to do.

    Args:
        url: Address to which the connection was.
        error: The error of aiohttp or of the operating system.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        number = error.os_error.errno or 0  # aiohttp's own message names its settings, too
        reason = os.strerror(number) if number > 0 else error.os_error.strerror or reason
    reason = printable(" ".join(reason[:2000].split()))  # an error of aiohttp may show what the server has sent
    return ServerUnreachable(f"{url}: {reason[:_LONGEST_REASON]}; {_advice(error)}")


def _advice(error: aiohttp.ClientError | OSError) -> str:
    if isinstance(error, (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)):
        return OVER_PROXY
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        number = getattr(error.certificate_error, "verify_code", 0)
        trust = "have SSL_CERT_FILE name the certificate of its issuer, or the server's own if it is self-signed"
        return _CERTIFICATE_ADVICE.get(number, trust)
    if isinstance(error, aiohttp.ClientSSLError):
        return "if the server does not use TLS, write http://"
    return "is the server running?"
