"""TLS for TorchServe: a keystore is made from a certificate and its private key.

TorchServe 0.12 offers TLS 1.2 with two ciphers, both TLS_ECDHE_RSA (ConfigManager.getSslContext). With a key that is
not RSA it would start, but no client could connect.
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
"""The launcher warns if a certificate expires within this time."""


@dataclass(frozen=True)
class Identity:
    """A server's certificate with its private key."""

    certificate: x509.Certificate
    """The server's own certificate."""
    key: RSAPrivateKey
    """The private key of the certificate."""
    chain: tuple[x509.Certificate, ...]
    """The certificates that signed it, one after the other."""

    @property
    def expires(self) -> datetime:
        """Time, in UTC, after which clients refuse the certificate."""
        return self.certificate.not_valid_after_utc


def read_identity(certificate: Path, private_key: Path) -> Identity:
    """Read a certificate and its private key from two PEM files.

    Args:
        certificate: The server's own certificate, followed by those that signed it.
        private_key: The RSA key of the server's own certificate, unencrypted and with mode 600.

    Raises:
        StartupError: The files cannot be read, do not belong together, or hold what TorchServe could not use.
    """
    own, *chain = _read(certificate, "PEM certificates", x509.load_pem_x509_certificates)
    key = _read(private_key, "a PEM private key", _load_key)
    _check_private(private_key)
    if not isinstance(key, RSAPrivateKey):
        raise StartupError(
            f"{private_key}: expected an RSA key, got {type(key).__name__.strip('_')}: TorchServe 0.12 offers no cipher"
            " for any other key; get an RSA certificate"
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
    """Write a keystore for TorchServe, and the certificate for clients on this machine.

    Args:
        identity: The certificate and its key.
        keystore: The PKCS12 file to write. It gets mode 600.
        trusted: The PEM file to write, which gets only the server's own certificate.

    Returns:
        The random password that encrypts the keystore.
    """
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
            f"{path}: expected a private key that only its owner can read, got mode {mode:03o}; chmod 600 it"
        )


def _load_key(data: bytes) -> object:
    return load_pem_private_key(data, password=None)


def _read(path: Path, expected: str, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except TypeError:  # cryptography raises it for an encrypted key if no password is given
        raise StartupError(
            f"{path}: expected a key that is not encrypted, as nobody can enter its password when the server starts;"
            " decrypt it with `openssl rsa`, and chmod 600 the result"
        ) from None
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise StartupError(f"{path}: expected {expected}: {error}") from None
