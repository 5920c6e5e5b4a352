"""Files on web servers: sizes and versions, names and passwords, and redirects."""

import ssl

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from werkzeug.datastructures import Headers
from werkzeug.wrappers import Response

from reelscribe.errors import MediaError, UsageError
from reelscribe.storage.address import check_address
from reelscribe.storage.web import WebStore
from support.certificates import pem_of, self_signed
from support.stores import redirect, web_server


@pytest.fixture
def store():
    store = WebStore(5.0)
    yield store
    store.close()


@pytest.fixture
def served(tmp_path):
    (tmp_path / "one.mp4").write_bytes(b"0123456789")
    (tmp_path / "empty.mp4").touch()
    with web_server(tmp_path) as (server, address):
        server.address = address
        yield server


def answer(code, content=b"", **headers):
    named = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return lambda sending: Response(content, status=code, headers=named)


def test_a_file_is_read_from_any_byte_on(store, served):
    stored = store.info(f"{served.address}/one.mp4")
    assert (stored.size, len(stored.version)) == (10, 34)
    assert b"".join(store.read(stored)) == b"0123456789"
    assert b"".join(store.read(stored, 4)) == b"456789"
    assert store.info(f"{served.address}/empty.mp4").size == 0


def test_a_server_without_ranges_is_read_from_the_beginning(store, served):
    served.faults["one.mp4"] = answer(200, b"0123456789", ETag='"1"')
    stored = store.info(f"{served.address}/one.mp4")
    assert b"".join(store.read(stored, 4)) == b"456789"


@pytest.mark.parametrize(
    "headers", [{}, {"Content_Range": "bytes 0-0/*"}, {"Content_Range": "bytes 0-0/1e9"}, {"Content_Range": "9" * 30}]
)
def test_a_server_must_tell_the_size(store, served, headers):
    served.faults["one.mp4"] = answer(206, b"0", **headers)
    with pytest.raises(MediaError, match="expected a server that tells the size"):
        store.info(f"{served.address}/one.mp4")


def test_redirects_to_a_host_that_the_user_has_named_are_followed(store, served, tmp_path):
    served.faults["moved.mp4"] = redirect("/one.mp4")
    assert store.info(f"{served.address}/moved.mp4").size == 10


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("file:///etc/passwd", "which is not followed"),
        ("ftp://127.0.0.1/a.mp4", "which is not followed"),
        ("gopher://127.0.0.1/", "which is not followed"),
        ("/" + "a" * 20_000, "a redirect to what is no address"),
        ("", "a redirect to what is no address"),
        ("http://[bad/x", "a redirect to what is no address"),
        ("ftp://h/x?X-Amz-Signature=hidden", "which is not followed"),
        ("http://127.0.0.1:99999/x?token=hidden", "a redirect to what is no address"),
        ("/again.mp4", "at most 5 redirects"),
    ],
)
def test_other_redirects_are_refused(store, served, location, reason):
    served.faults["again.mp4"] = redirect(location)
    with pytest.raises(MediaError, match=reason) as refused:
        store.info(f"{served.address}/again.mp4")
    assert "hidden" not in str(refused.value)


def test_a_redirect_into_a_private_network_sends_nothing_there(store, served, tmp_path):
    with web_server(tmp_path) as (private, address):
        served.faults["one.mp4"] = redirect(f"{address.replace('127.0.0.1', 'localhost')}/one.mp4")
        with pytest.raises(MediaError, match="a redirect into a private network"):
            store.info(f"{served.address}/one.mp4")
        assert not private.requests
        store.info(f"{address.replace('127.0.0.1', 'localhost')}/one.mp4")  # now the user has named that host
        assert store.info(f"{served.address}/one.mp4").size == 10


def confused(private: str) -> str:
    """An address whose host is 127.0.0.1 to urlsplit, and that of another server to urllib3."""
    return f"{private.replace('127.0.0.1', 'localhost')}\\@127.0.0.1/../one.mp4"


def test_an_address_with_two_hosts_sends_neither_password_nor_request(store, served, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with web_server(tmp_path) as (private, address):
        served.faults["one.mp4"] = redirect(confused(address))
        with pytest.raises(MediaError, match="a redirect to what is no address"):
            store.info(f"{served.address}/one.mp4")
        with pytest.raises(MediaError, match="without backslashes"):  # as a list or a ledger may name it
            store.info(confused(address))
        with pytest.raises(UsageError, match="without"):
            check_address(confused(address))
        assert not private.requests


def test_names_and_passwords_are_those_of_netrc(store, served, tmp_path, monkeypatch):
    seen = []

    def fault(sending):
        seen.append(sending.authorization)

    served.faults["one.mp4"] = fault
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    store.info(f"{served.address}/one.mp4")
    assert seen == [("me", "secret")]


def test_folders_cannot_be_listed(store, served):
    with pytest.raises(MediaError, match="web servers cannot list folders"):
        next(iter(store.list(f"{served.address}/")))


def test_another_part_than_the_one_that_was_asked_for_is_refused(store, served):
    stored = store.info(f"{served.address}/one.mp4")
    served.faults["one.mp4"] = answer(206, b"0123456789", Content_Range="bytes 0-9/10", ETag=stored.version)
    with pytest.raises(MediaError, match="sends the part of a file that it is asked for"):
        list(store.read(stored, 4))


def test_a_proxy_is_not_asked_for_an_address_in_a_private_network(served, tmp_path, monkeypatch):
    served.faults["one.mp4"] = redirect("http://169.254.169.254/latest/one.mp4")
    monkeypatch.setenv("http_proxy", served.address)  # to it, the path of a request is the whole address
    with pytest.raises(MediaError, match="a redirect into a private network"):
        WebStore(5.0).info("http://films.example/one.mp4")
    assert served.requests["one.mp4"] == 1


@pytest.mark.parametrize("proxy", ["socks5://h:1", "http://[x", "::"])
def test_a_proxy_that_cannot_be_used_is_refused(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(UsageError, match="http_proxy: expected the address of a proxy"):
        WebStore(5.0).info("http://films.example/one.mp4")


def test_a_server_with_tls_is_read_if_its_certificate_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "one.mp4").write_bytes(b"0123456789")
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "certificate.pem").write_bytes(self_signed(key))
    (tmp_path / "key.pem").write_bytes(pem_of(key))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with web_server(tmp_path, ssl_context=tls) as (_, address):
        assert address.startswith("https://")
        with pytest.raises(MediaError, match=r"certificate of the server cannot be checked.*set SSL_CERT_FILE"):
            WebStore(5.0).info(f"{address}/one.mp4")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        store = WebStore(5.0)
        assert b"".join(store.read(store.info(f"{address}/one.mp4"), 4)) == b"456789"
        store.close()
