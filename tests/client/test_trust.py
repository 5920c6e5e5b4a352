"""Errors of connections that fail, with TLS and without."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from reelscribe.client.endpoint import Server
from reelscribe.client.http_session import unreachable
from reelscribe.errors import UsageError
from support.certificates import pem_of, self_signed


def context_of(folder: Path, **certificate: Any) -> ssl.SSLContext:
    """The TLS context of a server, with a self-signed certificate: cert.pem in the folder."""
    key = rsa.generate_private_key(65537, 2048)
    (folder / "cert.pem").write_bytes(self_signed(key, **certificate))
    (folder / "key.pem").write_bytes(pem_of(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve a port, with TLS or without."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def error_of(url: str, trusted: Path | None = None) -> str:
    context = ssl.create_default_context(cafile=trusted)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with pytest.raises(aiohttp.ClientError) as error:
            await session.get(url)
    return str(unreachable(url, error.value))


async def test_a_certificate_that_is_not_trusted_is_to_be_named(tmp_path):
    async with serving(context_of(tmp_path)) as port:
        message = await error_of(f"https://127.0.0.1:{port}")
    assert "certificate verify failed" in message
    assert "have SSL_CERT_FILE name the certificate" in message
    assert "is the server running" not in message


@pytest.mark.parametrize(
    ("certificate", "host", "advice"),
    [
        ({"days": (-9, -1)}, "127.0.0.1", "it has expired: give the server another one"),
        ({"name": "another"}, "localhost", "connect with a host name or address that is in the server's certificate"),
    ],
)
async def test_a_trusted_certificate_that_is_not_valid_is_an_error_with_advice(tmp_path, certificate, host, advice):
    async with serving(context_of(tmp_path, **certificate)) as port:
        assert advice in await error_of(f"https://{host}:{port}", trusted=tmp_path / "cert.pem")


async def test_a_server_without_tls_and_no_server_are_different_errors():
    async with serving(None) as port:
        assert "if the server does not use TLS, write http://" in await error_of(f"https://127.0.0.1:{port}")
    assert (await error_of(f"https://127.0.0.1:{port}")).endswith("; is the server running?")


def test_trusted_certificates_that_do_not_exist_are_refused_for_https_only(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'neither'}")
    Server("http://127.0.0.1:8080")
    with pytest.raises(UsageError, match="SSL_CERT_DIR: expected a folder of trusted certificates"):
        Server("https://127.0.0.1:8080")
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}{os.pathsep}{tmp_path}")
    Server("https://127.0.0.1:8080")
    monkeypatch.setenv("SSL_CERT_FILE", "")
    with pytest.raises(UsageError, match="SSL_CERT_FILE: expected a PEM file of trusted certificates, got ''"):
        Server("https://127.0.0.1:8080")
