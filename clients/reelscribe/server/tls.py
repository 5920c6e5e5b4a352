"""TLS for TorchServe: a keystore made of a certificate and its key, and trust in exactly that certificate.

TorchServe 0.12 speaks TLS 1.2 with two ciphers, both TLS_ECDHE_RSA (ConfigManager.getSslContext), so a key that is not
RSA would start a server that no client can talk to.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    load_pem_private_key,
    pkcs12,
)

from reelscribe.errors import StartupError

T = TypeVar("T")

RENEW_BEFORE = timedelta(days=30)
"""A certificate that expires sooner is worth a word."""


@dataclass(frozen=True)
class Identity:
    """What a server shows, and what it proves that with."""

    certificate: x509.Certificate
    key: RSAPrivateKey
    chain: tuple[x509.Certificate, ...]
    """Who signed the certificate, and who signed that one."""

    @property
    def expires(self) -> datetime:
        """When clients will no longer accept it; in UTC."""
        return self.certificate.not_valid_after_utc


def read_identity(certificate: Path, private_key: Path) -> Identity:
    """Of two PEM files, the server's own certificate first. Raises StartupError if TorchServe could not use them."""
    own, *chain = _read(certificate, "PEM certificates", x509.load_pem_x509_certificates)
    key = _read(private_key, "a PEM private key", _load_key)
    _check_private(private_key)
    if not isinstance(key, RSAPrivateKey):
        raise StartupError(
            f"{private_key}: expected an RSA key, got {type(key).__name__.strip('_')}: TorchServe 0.12 offers no other"
            " ciphers; ask for an RSA certificate"
        )
    if own.public_key() != key.public_key():
        raise StartupError(
            f"{private_key}: not the key of the first certificate in {certificate}"
            f" ({own.subject.rfc4514_string()}); that must be the server's own, before those that signed it"
        )
    now = datetime.now(UTC)
    if not own.not_valid_before_utc <= now < own.not_valid_after_utc:
        raise StartupError(
            f"{certificate}: valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} to"
            f" {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and now it is {now:%Y-%m-%d %H:%M}; renew it"
        )
    return Identity(own, key, tuple(chain))


def write_keystore(identity: Identity, keystore: Path, trusted: Path) -> str:
    """Write a PKCS12 keystore that its owner alone can read, and the certificate as PEM; returns the password."""
    password = secrets.token_urlsafe(24)
    content = pkcs12.serialize_key_and_certificates(
        b"server", identity.key, identity.certificate, identity.chain, BestAvailableEncryption(password.encode())
    )
    keystore.unlink(missing_ok=True)
    with os.fdopen(os.open(keystore, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    trusted.write_bytes(identity.certificate.public_bytes(Encoding.PEM))
    return password


def _check_private(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StartupError(
            f"{path}: expected a private key that is for its owner alone, got mode {mode:03o}; chmod 600 it"
        )


def _load_key(data: bytes) -> object:
    return load_pem_private_key(data, password=None)


def _read(path: Path, expected: str, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except TypeError:
        raise StartupError(
            f"{path}: expected a key that is not encrypted, for nobody is there to give its password when the server"
            " starts; decrypt it with `openssl rsa`, and chmod 600 what comes out"
        ) from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StartupError(f"{path}: expected {expected}: {error}") from None
