"""What is told of connections that are not made, on servers with and without TLS."""

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
from reelscribe.client.trust import unreachable
from reelscribe.errors import UsageError
from support.certificates import pem_of, self_signed


def context_of(folder: Path, **certificate: Any) -> ssl.SSLContext:
    """A server's, with a certificate that it signed itself: cert.pem of the folder."""
    key = rsa.generate_private_key(65537, 2048)
    (folder / "cert.pem").write_bytes(self_signed(key, **certificate))
    (folder / "key.pem").write_bytes(pem_of(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """A port that somebody serves, with TLS or without."""
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def told(url: str, trusted: Path | None = None) -> str:
    context = ssl.create_default_context(cafile=trusted)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with pytest.raises(aiohttp.ClientError) as error:
            await session.get(url)
    return str(unreachable(url, error.value))


async def test_a_certificate_of_nobody_known_is_to_be_named(tmp_path):
    async with serving(context_of(tmp_path)) as port:
        message = await told(f"https://127.0.0.1:{port}")
    assert "certificate verify failed" in message
    assert "have SSL_CERT_FILE name the certificate" in message
    assert "is the server running" not in message


@pytest.mark.parametrize(
    ("certificate", "host", "advice"),
    [
        ({"days": (-9, -1)}, "127.0.0.1", "it has expired: give the server another one"),
        ({"name": "another"}, "localhost", "name the server as its certificate does"),
    ],
)
async def test_what_is_wrong_with_a_certificate_of_somebody_known_is_said(tmp_path, certificate, host, advice):
    async with serving(context_of(tmp_path, **certificate)) as port:
        assert advice in await told(f"https://{host}:{port}", trusted=tmp_path / "cert.pem")


async def test_a_server_without_tls_is_told_from_one_that_does_not_run():
    async with serving(None) as port:
        assert "if the server speaks no TLS, write http://" in await told(f"https://127.0.0.1:{port}")
    assert (await told(f"https://127.0.0.1:{port}")).endswith("; is the server running?")


def test_certificates_that_are_not_there_are_refused_for_https_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}{os.pathsep}{tmp_path / 'neither'}")
    Server("http://127.0.0.1:8080")
    with pytest.raises(UsageError, match="SSL_CERT_DIR: expected a folder of certificates"):
        Server("https://127.0.0.1:8080")
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}{os.pathsep}{tmp_path}")
    Server("https://127.0.0.1:8080")
    monkeypatch.setenv("SSL_CERT_FILE", "")
    with pytest.raises(
        UsageError, match="SSL_CERT_FILE: expected a PEM file of certificates that are believed, got ''"
    ):
        Server("https://127.0.0.1:8080")
