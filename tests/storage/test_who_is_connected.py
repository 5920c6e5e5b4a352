"""Who was checked gets the connection, and only who was named gets a password, whatever an address looks like."""

import random
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

from reelscribe._web_addresses import PORTS as USUAL_PORTS
from reelscribe._web_addresses import bare_host, is_public, named_host, parse_web_address
from reelscribe.client.endpoint import Server
from reelscribe.client.http_session import ask, open_session
from reelscribe.errors import MediaError, UsageError
from reelscribe.management.management_client import ManagementClient
from reelscribe.storage.web import WebStore
from support.certificates import pem_of, self_signed
from support.network import fake_network

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.7"

SCHEMES = ["http://"] * 20
SCHEMES += ["HTTP://", "https://", "http:", "http:/", "http:///", "http:\\\\", "//", " http://", "ftp://"]
HOSTS = ["a.example", "b.example", "private.example"] * 3
HOSTS += ["A.Example", "a.example.", "a..example", "b\u00fccher.example", "localhost", "a%2eexample", "b\u00ad.example"]
HOSTS += ["10.0.0.7", "127.0.0.1", "127.1", "0x7f.1", "2130706433", "017700000001", "10.0.0.7.", "0xa.0.0.7", "8.8.8.8"]
HOSTS += ["[::1]", "[::ffff:10.0.0.7]", "[fe80::1%25lo]", "[2002:a00:7::1]", "[64:ff9b::a00:7]", "[2606:4700::1111]"]
HOSTS += ["\uff11\uff12\uff17.\uff10.\uff10.\uff11", "a\u3002example", "\uff41.example", "\u212a.example", "a\uff0eb"]
JOINTS = ["/", "?", "/#"] * 8
JOINTS += [
    "\\@",
    "@",
    ":@",
    "\\",
    "/",
    "#@",
    "?@",
    ";@",
    "%40",
    "\t",
    "\n",
    " ",
    "\r\n",
    "%00",
    "\x00",
    "%0d%0a",
    ":80@",
]
JOINTS += ["&@", "//", "/\\", "..", "%5c@", "%2f@", "\u2028", ":80:", "[", "]", "*", "|", "%", "\ud800", "\x7f@", "/@"]
JOINTS += ["\u2100", "\u2488", "\uff20", "\uff0f", "\uff3c", "\uff0e"]
PORTS = [""] * 20
PORTS += [":80", ":0", ":65536", ":0080", ":\uff18\uff10", ":8080", ":", ":-1", ": 80", ":+80", ":80\\", "%3a80"]
PATHS = ["/one.mp4"] * 8
PATHS += [
    "",
    "/../one.mp4",
    "//b.example/a",
    "\\..\\a",
    "/?u=http://b.example/",
    "/@b.example/",
    "/a b",
    "/\\b.example/",
]
PATHS += ["///b.example/x"]


def addresses(count: int, seed: str) -> list[str]:
    """Addresses of which programs read different hosts, among some that are usual."""
    chance = random.Random(seed)
    return [
        "".join(
            [
                chance.choice(SCHEMES),
                chance.choice(HOSTS),
                *(chance.choice(each) for each in [JOINTS, HOSTS] * chance.choice((0, 1, 1, 2))),
                chance.choice(PORTS),
                chance.choice(PATHS),
            ]
        )
        for _ in range(count)
    ]


@pytest.fixture
def network(monkeypatch, tmp_path):
    """Three servers with names, and a ~/.netrc with a password for each host that has any name or number."""
    machines = {urlsplit(f"http://{host}").hostname for host in HOSTS if "[fe80" not in host} | set(HOSTS)
    (tmp_path / ".netrc").write_text("".join(f"machine {each} login {each} password p\n" for each in sorted(machines)))
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)
    with fake_network(monkeypatch) as network:
        network.names = {"a.example": [[PUBLIC]], "b.example": [["93.184.216.35"]], "private.example": [[PRIVATE]]}
        network.names |= {"xn--bcher-kva.example": [["93.184.216.36"]], "first.example": [["93.184.216.40"]]}
        network.names["localhost"] = [["127.0.0.1"]]
        yield network


def ask_for(address: str, hosts=None) -> None:
    """Ask for a file, which there is not."""
    store = WebStore(5.0, hosts)
    with suppress(MediaError):
        store.info(address)
    store.close()


def parts_of(address: str, base=None):
    """The parts by which an address is checked; None for one that is refused."""
    with suppress(ValueError):
        return parse_web_address(address, base)


def checked(address: str, base=None) -> str | None:
    """The host that is checked; None for an address that is refused."""
    parts = parts_of(address, base)
    return parts and bare_host(parts)


def test_what_one_parser_has_taken_all_parsers_read_in_the_same_way():
    taken = [parts for each in addresses(6000, "parsers") if (parts := parts_of(each))]
    assert len(taken) > 600
    for parts in taken:
        assert parse_web_address(parts.url) == parts
        for host, port in (
            (urlsplit(parts.url).hostname, urlsplit(parts.url).port),
            (URL(parts.url).raw_host, URL(parts.url).port),
        ):
            usual = USUAL_PORTS[parts.scheme]
            assert (host, port or usual) == (bare_host(parts), parts.port or usual), parts.url


def test_the_host_of_a_source_gets_the_connection_and_its_own_password(network):
    for address in addresses(2000, "sources"):
        network.forget()
        ask_for(address)
        parts = parts_of(address)
        host = parts and bare_host(parts)
        assert {*network.looked_up} <= {host}, address
        assert {each.host for each in network.requests} <= {parts and parts.netloc}, address
        assert {each.login for each in network.requests} <= {None, f"{host}:p"}, address
        assert bool(network.connected) == (parts is not None and is_known(network, host)), address


def is_known(network, host: str) -> bool:
    return host in network.names or host.replace(".", "").isdigit() or ":" in host


def test_a_redirect_gets_no_password_and_no_private_network(network):
    first = parse_web_address("http://first.example/moved")
    for location in [*addresses(2000, "redirects"), *PATHS]:
        network.forget()
        network.answers["/moved"] = redirect(location)
        ask_for(first.url)
        host = checked(read_as_header(location), first)
        assert set(network.looked_up) <= {"first.example", host}, location
        assert {each.login for each in network.requests[1:]} <= {None}, location
        assert all(map(is_public, network.connected)), location


def redirect(location: str) -> bytes:
    line = location.encode("utf-8", "surrogatepass").replace(b"\r", b"").replace(b"\n", b"")
    return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\nLocation: " + line + b"\r\n\r\n"


def read_as_header(location: str) -> str:
    """A location as HTTP hands it over."""
    return (
        location.encode("utf-8", "surrogatepass").replace(b"\r", b"").replace(b"\n", b"").decode("latin-1").strip(" \t")
    )


def test_a_proxy_is_asked_for_the_host_that_was_checked_and_gets_its_own_password(network, monkeypatch):
    network.names["proxy.example"] = [["93.184.216.50"]]
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://me:p%40ss@proxy.example:3128")
    for address in addresses(1000, "proxies"):
        network.forget()
        ask_for(address)
        parts = parts_of(address)
        host = parts and bare_host(parts)
        if host in ("localhost", "127.0.0.1", "::1"):  # this machine, which is asked directly
            assert {each.proxy_login for each in network.requests} <= {None}, address
            continue
        assert {*network.looked_up} <= {"proxy.example"}, address
        for each in network.requests:
            assert each.target in (parts.url, f"{parts.host}:443", f"{parts.netloc}"), address
            assert (each.ip, each.proxy_login) == ("93.184.216.50", "me:p@ss")
            assert each.login in (None, f"{host}:p"), address
        assert bool(network.requests) == (parts is not None), address


def test_what_only_results_of_others_name_gets_no_password_and_is_public(network):
    for address in addresses(2000, "results"):
        network.forget()
        ask_for(address, hosts=())
        assert {each.login for each in network.requests} <= {None}, address
        assert all(map(is_public, network.connected)), address
        assert set(network.looked_up) <= {checked(address)}, address


async def test_the_host_of_a_server_of_models_gets_the_connection():
    looked_up, connected = [], []

    class Names(aiohttp.abc.AbstractResolver):
        async def resolve(self, host, port=0, family=0):
            looked_up.append(host)
            return [{"hostname": host, "host": PUBLIC, "port": port, "family": family, "proto": 0, "flags": 0}]

        async def close(self):
            pass

    def refuse(address):
        connected.append(address[4][0])
        raise ConnectionRefusedError

    async with open_session(aiohttp.TCPConnector(resolver=Names(), socket_factory=refuse)) as session:
        for address in addresses(2000, "servers"):
            looked_up.clear(), connected.clear()
            host = checked(address)
            try:
                server = Server(address)
            except UsageError:
                assert host is None or "?" in address or "#" in address
                with pytest.raises(UsageError):
                    ManagementClient(address)
                continue
            with suppress(aiohttp.ClientError, OSError):
                await ask(session, "GET", f"{server.address}/ping", headers={}, limits=aiohttp.ClientTimeout(5))
            assert {*looked_up, *(set(connected) - {PUBLIC})} <= {host}, address
            assert connected, address


def test_a_name_is_looked_up_once_and_connected_to_where_it_was_checked(network):
    network.names["rebinding.example"] = [[PUBLIC], [PRIVATE]]
    ask_for("http://rebinding.example/one.mp4", hosts=())
    assert (network.looked_up, network.connected) == (["rebinding.example"], [PUBLIC])
    assert [(each.ip, each.host) for each in network.requests] == [(PUBLIC, "rebinding.example")]


@pytest.mark.parametrize(
    "ips",
    [
        [PUBLIC, PRIVATE],
        ["64:ff9b::a00:7"],
        ["2002:a00:7::1"],
        ["224.0.0.1"],
        ["fe80::1%lo"],
        ["64:ff9b:1::a00:7"],
        ["fec0::7"],
        ["::a00:7"],
        ["::ffff:0:a00:7"],
        ["5f00::7"],
    ],
)
def test_a_name_of_a_private_network_is_not_connected_to(network, ips):
    network.names["mixed.example"] = [ips]
    with pytest.raises(MediaError, match="name its host with --media-host"):
        WebStore(5.0, ()).info("http://mixed.example/one.mp4")
    assert not network.connected
    ask_for("http://mixed.example/one.mp4", hosts=[named_host("MIXED.example")])
    assert [*map(str, network.connected)][:1] == [ips[0]]


def test_another_address_of_a_host_is_tried_if_one_does_not_answer(network):
    network.names["two.example"] = [["2606:4700::1111", PUBLIC]]
    ask_for("http://two.example/one.mp4", hosts=())
    assert (network.connected, len(network.requests)) == (["2606:4700::1111", PUBLIC], 1)


def test_the_address_of_a_host_that_has_answered_is_asked_first_as_long_as_the_host_has_it(network):
    dead, other = "2606:4700::1111", "93.184.216.35"
    network.names["two.example"] = [[dead, PUBLIC], [dead, PUBLIC], [dead, other], [PRIVATE, other]]
    store = WebStore(5.0, ())
    for reason in ["no such file"] * 3 + ["name its host"]:
        with pytest.raises(MediaError, match=reason):
            store.info("http://two.example/one.mp4")
    store.close()
    assert network.connected == [dead, PUBLIC, PUBLIC, dead, other]


def test_the_dot_that_may_end_a_whole_name_is_left_out_before_anything_is_checked():
    assert parse_web_address("http://vllm.default.svc.cluster.local.:8000/v1").netloc == (
        "vllm.default.svc.cluster.local:8000"
    )
    assert (checked("http://10.0.0.7./"), named_host("A.example.")) == ("10.0.0.7", "a.example")
    for address in ("http://a.example../", "http://./", "http://.a.example/", "http://127.1./"):
        assert checked(address) is None


def test_instead_of_a_zone_another_address_is_asked_for():
    with pytest.raises(UsageError, match="instead of an IPv6 address with a zone"):
        Server("openai+http://[fe80::1%eth0]:8000/v1")


@pytest.mark.parametrize(
    ("login", "sent"), [("me@", "me:"), ("me:@", "me:"), ("me:p%C3%A4@", "me:p\ufffd"), ("", None)]
)
def test_a_proxy_gets_its_name_and_its_password_even_if_that_is_empty(network, monkeypatch, login, sent):
    network.names["proxy.example"] = [[PUBLIC]]
    monkeypatch.setenv("http_proxy", f"http://{login}proxy.example:3128")
    ask_for("http://a.example/one.mp4")
    assert [each.proxy_login for each in network.requests] == [sent]


def test_a_password_that_cannot_be_sent_to_a_proxy_is_an_error_without_it(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://me:hidden\u20ac@proxy.example:3128")
    with pytest.raises(UsageError, match=r"^http_proxy: expected the address of a proxy") as refused:
        WebStore(5.0).info("http://films.example/one.mp4")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "login"),
    [
        ("http://a.example/moved", "http://b.example/one.mp4", None),
        ("http://a.example/moved", "http://a.example:8080/one.mp4", None),
        ("http://a.example/moved", "http://a.example/one.mp4", "a.example:p"),
        ("http://a.example:8080/moved", "/one.mp4", "a.example:p"),
    ],
)
def test_a_password_follows_a_redirect_to_the_same_server_alone(network, first, second, login):
    ask_for("http://b.example/one.mp4")
    network.forget()
    network.answers["/moved"] = redirect(second)
    store = WebStore(5.0)
    for address in ("http://b.example/named", first):
        with pytest.raises(MediaError):
            store.info(address)
    assert [each.login for each in network.requests] == ["b.example:p", "a.example:p", login]
    store.close()


@pytest.mark.parametrize(("name", "trusted"), [("films.example", True), ("other.example", False)])
def test_the_certificate_of_a_checked_address_must_be_for_its_name(monkeypatch, tmp_path, name, trusted):
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "certificate.pem").write_bytes(self_signed(key, name="films.example"))
    (tmp_path / "key.pem").write_bytes(pem_of(key))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with fake_network(monkeypatch, tls) as network:
        network.names[name] = [[PUBLIC]]
        with pytest.raises(
            MediaError, match="no such file" if trusted else "certificate of the server cannot be checked"
        ):
            WebStore(5.0, ()).info(f"https://{name}/one.mp4")
        assert [(each.ip, each.host) for each in network.requests] == ([(PUBLIC, name)] if trusted else [])
