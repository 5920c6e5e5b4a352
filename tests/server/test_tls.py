"""A certificate and a key become a keystore, or one line says why they cannot."""

import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from reelscribe.errors import StartupError
from reelscribe.server.instance import Instance
from reelscribe.server.tls import read_identity, write_keystore
from support.certificates import pem_of, self_signed


@pytest.fixture(scope="module")
def key():
    return rsa.generate_private_key(65537, 2048)


def write(directory, certificate: bytes, key: bytes):
    (directory / "cert.pem").write_bytes(certificate)
    (directory / "key.pem").write_bytes(key)
    (directory / "key.pem").chmod(0o600)
    return directory / "cert.pem", directory / "key.pem"


def test_the_keystore_holds_key_and_chain_and_only_its_owner_reads_it(tmp_path, key):
    own, signer = self_signed(key), self_signed(rsa.generate_private_key(65537, 2048), name="signer")
    identity = read_identity(*write(tmp_path, own + signer, pem_of(key)))
    password = write_keystore(identity, tmp_path / "keystore", tmp_path / "trusted.pem")
    stored = pkcs12.load_pkcs12((tmp_path / "keystore").read_bytes(), password.encode())
    assert stored.key.private_numbers() == key.private_numbers()
    assert stored.cert.certificate == identity.certificate
    assert [each.certificate for each in stored.additional_certs] == list(identity.chain)
    assert stat.S_IMODE((tmp_path / "keystore").stat().st_mode) == 0o600
    assert (tmp_path / "trusted.pem").read_bytes() == own


def test_every_keystore_has_a_password_of_its_own(tmp_path, key):
    identity = read_identity(*write(tmp_path, self_signed(key), pem_of(key)))
    first, second = (write_keystore(identity, tmp_path / "keystore", tmp_path / "trusted.pem") for _ in range(2))
    assert first != second


def test_a_server_is_trusted_by_its_certificate_alone(tmp_path, key):
    instance = Instance(tmp_path)
    assert instance.tls() is None
    instance.certificate.write_bytes(self_signed(key))
    assert len(instance.tls().get_ca_certs()) == 1


def test_the_key_of_another_certificate_is_refused(tmp_path, key):
    other = rsa.generate_private_key(65537, 2048)
    with pytest.raises(StartupError, match=r"key\.pem: not the key of the first certificate in .*CN=localhost"):
        read_identity(*write(tmp_path, self_signed(key), pem_of(other)))


@pytest.mark.parametrize("days", [(-9, -1), (1, 9)])
def test_a_certificate_out_of_its_time_is_refused(tmp_path, key, days):
    with pytest.raises(StartupError, match=r"cert\.pem: valid from .* renew it"):
        read_identity(*write(tmp_path, self_signed(key, days=days), pem_of(key)))


def test_a_key_that_is_encrypted_is_refused(tmp_path, key):
    encrypted = pem_of(key, serialization.BestAvailableEncryption(b"secret"))
    with pytest.raises(StartupError, match=r"key\.pem: expected a key that is not encrypted"):
        read_identity(*write(tmp_path, self_signed(key), encrypted))


def test_a_key_that_torchserve_has_no_cipher_for_is_refused(tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(StartupError, match=r"key\.pem: expected an RSA key, got EC"):
        read_identity(*write(tmp_path, self_signed(key), pem_of(key)))


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path, key, mode):
    certificate, private_key = write(tmp_path, self_signed(key), pem_of(key))
    private_key.chmod(mode)
    with pytest.raises(StartupError, match=rf"key\.pem: .* only its owner can read, got mode {mode:03o}; chmod 600 it"):
        read_identity(certificate, private_key)


def test_what_is_not_pem_is_refused(tmp_path, key):
    with pytest.raises(StartupError, match=r"cert\.pem: expected PEM certificates"):
        read_identity(*write(tmp_path, b"\x30\x82", pem_of(key)))
    with pytest.raises(StartupError, match=r"key\.pem: expected a PEM private key"):
        read_identity(*write(tmp_path, self_signed(key), b"-----BEGIN RSA"))
    with pytest.raises(StartupError, match="No such file"):
        read_identity(tmp_path / "missing.pem", tmp_path / "key.pem")
