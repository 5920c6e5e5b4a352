"""A network of names and IP addresses of our choice, in which one server of this machine answers all connections.

Only sockets are replaced: which names are looked up, and where connections lead.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Request(NamedTuple):
    """A request that the server got."""

    ip: str
    """The IP address that was connected to."""
    host: str
    """Its header Host."""
    login: str | None
    """The name and password that it brought, as name:password."""
    target: str
    """What it asked for."""
    proxy_login: str | None
    """The name and password that it brought for a proxy."""


class Network:
    """What was looked up and connected to. A name has the next of its lists of IP addresses, and keeps the last."""

    def __init__(self) -> None:
        self.names: dict[str, list[list[str]]] = {}
        self.looked_up: list[str] = []
        """The names and numbers that were looked up; those of IP addresses are none."""
        self.connected: list[str] = []
        self.requests: list[Request] = []
        self.answers: dict[str, bytes] = {}
        """The answer to requests for a path; others get 404."""

    def forget(self) -> None:
        """Begin anew."""
        self.looked_up, self.connected, self.requests = [], [], []

    def look_up(self, host, port, *_, **__):
        """Answer in place of `socket.getaddrinfo`; numbers are read as the C library reads them."""
        name = host.decode() if isinstance(host, bytes) else host
        ips = [name]
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            self.looked_up.append(name)
            answers = self.names.get(name.rstrip(".").lower()) or [_number(name)]
            ips = answers.pop(0) if len(answers) > 1 else answers[0]
        families = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [
            (families[ipaddress.ip_address(ip.partition("%")[0]).version], socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in ips
        ]


def _number(name: str) -> list[str]:
    try:
        return [socket.inet_ntoa(socket.inet_aton(name))]
    except OSError:
        raise socket.gaierror(socket.EAI_NONAME, "no such name") from None


@contextmanager
def fake_network(monkeypatch, tls=None) -> Iterator[Network]:
    """Replace the network while the block runs; the server has TLS if its context is given."""
    network, connect = Network(), socket.socket.connect
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, network, tls), daemon=True)
        thread.start()

        def connected(self, address):
            network.connected.append(address[0])
            if self.family != socket.AF_INET:
                raise ConnectionRefusedError
            connect(self, listening.getsockname())

        with monkeypatch.context() as replaced:
            replaced.setattr(socket.socket, "connect", connected)
            replaced.setattr(socket, "getaddrinfo", network.look_up)
            yield network
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(listening: socket.socket, network: Network, tls) -> None:
    with suppress(OSError):  # the end
        while True:
            connection, _ = listening.accept()
            with suppress(OSError), connection:
                if tls is None:
                    _answer(connection, network)
                    continue
                with tls.wrap_socket(connection, server_side=True) as encrypted:
                    _answer(encrypted, network)


def _answer(connection: socket.socket, network: Network) -> None:
    with connection.makefile("rb") as read:
        first = read.readline(70_000)
        if not first.startswith((b"GET ", b"CONNECT ")):
            return
        headers = http.client.parse_headers(read)
        login, proxy_login = (_login(headers[name]) for name in ("Authorization", "Proxy-Authorization"))
        target = first.split()[1].decode()
        network.requests.append(Request(network.connected[-1], headers["Host"], login, target, proxy_login))
        connection.sendall(network.answers.get(target, MISSING))


def _login(header: str | None) -> str | None:
    return header and base64.b64decode(header.removeprefix("Basic ")).decode(errors="replace")
