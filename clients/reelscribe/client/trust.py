"""Check the trusted certificates before a connection, and advise what to do when a connection fails."""

from __future__ import annotations

import os

import aiohttp

from reelscribe.errors import ServerUnreachable, UsageError, printable

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
    if not url.startswith("https:"):
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
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        number = getattr(error.certificate_error, "verify_code", 0)
        trust = "have SSL_CERT_FILE name the certificate of its issuer, or the server's own if it is self-signed"
        return _CERTIFICATE_ADVICE.get(number, trust)
    if isinstance(error, aiohttp.ClientSSLError):
        return "if the server does not use TLS, write http://"
    return "is the server running?"
