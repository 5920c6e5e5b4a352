"""Connections that do not come about: whose certificates are believed, and what to do when none is made."""

from __future__ import annotations

import os

import aiohttp

from reelscribe.errors import ServerUnreachable, UsageError

HTTPS_ONLY = "only accepts HTTPS requests"
"""In what TorchServe answers, with status 403, to whoever writes http:// for an https address."""

_CERTIFICATE_ADVICE = {
    10: "it has expired: give the server another one",
    62: "name the server as its certificate does",
}
"""By OpenSSL's number for what is wrong."""


def check_trusted_certificates(url: str) -> None:
    """Raises UsageError for https where the environment names certificates that are not there: OpenSSL says nothing."""
    if not url.startswith("https:"):
        return
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file is not None and not os.path.isfile(file):
        raise UsageError(f"SSL_CERT_FILE: expected a PEM file of certificates that are believed, got {file!r}: no file")
    if folders is not None and not any(map(os.path.isdir, folders.split(os.pathsep))):
        raise UsageError(
            f"SSL_CERT_DIR: expected a folder of certificates that are believed, got {folders!r}: no folder"
        )


def unreachable(url: str, error: aiohttp.ClientError | OSError) -> ServerUnreachable:
    """What is told of a connection that was not made, or broke."""
    return ServerUnreachable(f"{url}: {error or type(error).__name__}; {_advice(error)}")


def _advice(error: aiohttp.ClientError | OSError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        number = getattr(error.certificate_error, "verify_code", 0)
        trust = (
            "have SSL_CERT_FILE name the certificate of whoever signed it, or the server's own if that signed itself"
        )
        return _CERTIFICATE_ADVICE.get(number, trust)
    if isinstance(error, aiohttp.ClientSSLError):
        return "if the server speaks no TLS, write http://"
    return "is the server running?"
