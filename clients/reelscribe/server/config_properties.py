"""Reads, completes, checks and writes TorchServe's settings, the file `config.properties`."""

from __future__ import annotations

import ipaddress
import random
import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from reelscribe._web_addresses import parse_web_address, without_login
from reelscribe.errors import StartupError

Settings = dict[str, str]

HTTP_ADDRESSES = ("inference_address", "management_address", "metrics_address")
"""Names of the settings with addresses of HTTP APIs."""
GRPC_NAMES = ("grpc_inference", "grpc_management")
"""Names of the gRPC APIs, each with the settings `<name>_address` and `<name>_port`."""

METRICS = Path(__file__).with_name("torchserve_metrics.yaml")
"""Declares all metrics, for settings that name no other file."""

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_ADDRESS = re.compile(r"(?:(https?)://)?([\w.-]+):(\d+)", re.IGNORECASE | re.ASCII)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_NEEDS_ESCAPE = re.compile(r"[^ -~]|\\")
_KEYSTORE_SETTINGS = ("keystore", "keystore_pass", "keystore_type", "certificate_file", "private_key_file")


def read_properties(text: str) -> Settings:
    r"""Parse the text of a Java properties file.

    Only a subset of Java's syntax is accepted, so that TorchServe reads exactly the values that were checked. In
    values, two backslashes stand for one and `\u00e4` stands for a character, as in Java; other escapes are refused.

    Raises:
        StartupError: A line is not `name=value`, a comment or empty.
    """
    settings = {}
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise StartupError(f"config.properties: expected lines like name=value, got {line.strip()!r}")
        settings[name] = _unescaped(value)
    return settings


def write_properties(settings: Mapping[str, str]) -> str:
    """Return the text of a properties file, in ASCII because Java reads such files as ISO-8859-1."""
    return "".join(f"{name}={_NEEDS_ESCAPE.sub(_escape, value)}\n" for name, value in settings.items())


def tokens_required(settings: Mapping[str, str]) -> bool:
    """Return whether the inference and management APIs refuse requests without a token."""
    return settings.get("disable_token_authorization", "false").lower() != "true"


def complete_settings(settings: Mapping[str, str], config: Path, *, model_api: bool) -> Settings:
    """Add the settings that must not be left to TorchServe's defaults.

    Args:
        settings: The settings in `config`.
        config: The settings file. Relative paths in it start from its folder.
        model_api: Whether models can be registered and unregistered while the server runs.

    Raises:
        StartupError: A setting cannot be used here, or names a file that does not exist.
    """
    if keystore := [name for name in _KEYSTORE_SETTINGS if name in settings]:
        raise StartupError(
            f"{config}: {', '.join(keystore)}: not allowed in a file that others can read; use --certificate and"
            " --private-key, from which a keystore is made"
        )
    if _NEEDS_ESCAPE.search(settings.get("vmargs", "")):
        raise StartupError(
            f"{config}: vmargs: expected ASCII without backslashes, got {settings['vmargs']!r}: TorchServe's launcher"
            " reads this setting itself, and knows no escapes"
        )
    # Without allowed_urls, TorchServe would load archives from any file and any address.
    completed = {"allowed_urls": "", "metrics_config": str(METRICS), **settings}
    if model_api:
        completed["enable_model_api"] = "true"
    if metrics := settings.get("metrics_config"):
        path = config.parent / metrics
        if not path.is_file():
            raise StartupError(
                f"{config}: metrics_config: expected a file, got {path}; it does not exist; leave the line out for"
                " reelscribe's own metrics"
            )
        completed["metrics_config"] = str(path.resolve())
    return completed


def check_addresses(settings: Mapping[str, str], config: Path) -> None:
    """Raise StartupError for an address of the wrong form."""
    for name, address in _addresses(settings).items():
        is_http = name in HTTP_ADDRESSES
        try:
            if not _ADDRESS.fullmatch(address) or address.startswith("http") != is_http:
                raise ValueError("expected a scheme, a host and a port")
            parse_web_address(address if is_http else f"http://{address}")
        except ValueError as error:
            raise StartupError(
                f"{config}: {name}: expected an address like http://127.0.0.1:8080, got {without_login(address)!r}:"
                f" {error}"
            ) from None


def check_ports(settings: Mapping[str, str], config: Path) -> None:
    """Raise StartupError for an address at which another program listens."""
    for name, address in _addresses(settings).items():
        _, host, port = _parts(address)
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                raise StartupError(f"{name}: port {port} of {host} is taken; free it or change it in {config}")


def free_ports() -> Settings:
    """Choose settings that give each of TorchServe's APIs a port of 127.0.0.1 that is free now."""
    names = [*HTTP_ADDRESSES, *(f"{name}_port" for name in GRPC_NAMES)]
    ports: list[int] = []
    with ExitStack() as stack:
        # Connections of other programs get ports above these, and could take one before the server listens there.
        for port in random.SystemRandom().sample(range(10_000, 32_768), 1000):
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
            if len(ports) == len(names):
                break
    return {n: f"http://127.0.0.1:{p}" if n in HTTP_ADDRESSES else str(p) for n, p in zip(names, ports, strict=True)}


def check_tls(settings: Mapping[str, str], config: Path, *, certificate: bool) -> None:
    """Raise StartupError for an https address without a certificate, or a certificate without an https address."""
    encrypted = [name for name in HTTP_ADDRESSES if _parts(settings[name])[0] == "https"]
    if encrypted and not certificate:
        raise StartupError(
            f"{config}: {encrypted[0]} is https: give --certificate and --private-key; TorchServe would invent a"
            " certificate that no client can check"
        )
    if certificate and not encrypted:
        raise StartupError(
            f"{config}: no address is https, so --certificate would be of no use; write https://..., or leave it"
            " out (`reelscribe server restart` keeps that of the last start unless --no-tls is given)"
        )


def exposed(settings: Mapping[str, str]) -> list[str]:
    """Find the addresses that other machines can reach without TLS and tokens.

    The metrics API never requires a token (ServerInitializer.java). gRPC does, but its TLS is separate and is not set
    up here. So only the inference and management APIs may listen beyond loopback.

    Returns:
        One line for each such address, with the reason.
    """
    tokens = tokens_required(settings)
    lines = []
    for name, address in _addresses(settings).items():
        scheme, host, _ = _parts(address)
        if _is_loopback(host):
            continue
        if name == "metrics_address":
            lines.append(f"{name} {address}: TorchServe requires no token there")
        elif name in GRPC_NAMES:
            lines.append(f"{name}_address {address}: its traffic, tokens included, would not be encrypted")
        elif scheme != "https":
            lines.append(f"{name} {address}: its traffic, tokens included, would not be encrypted")
        elif not tokens:
            lines.append(f"{name} {address}: disable_token_authorization=true lets everybody in")
    return lines


def risks(settings: Mapping[str, str], config: Path) -> list[str]:
    """Find settings that are allowed but risky.

    Returns:
        One line for each, which tells the operator what it permits.
    """
    lines = []
    if not tokens_required(settings):
        lines.append("disable_token_authorization=true: every local user and program can use and change the server")
    if settings.get("enable_model_api", "").lower() == "true":
        lines.append(
            "the model API is on: whoever has the management key can serve any folder of this machine as a model, and"
            " so run any program there"
        )
    if allowed := settings["allowed_urls"]:
        lines.append(f"{config}: allowed_urls={allowed}: archives from there, and the programs in them, can be run")
    return lines


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _unescaped(value: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "\\":
            return "\\"
        raise StartupError(
            f"config.properties: expected lines like name=value with two backslashes for one, got {value!r}"
        )

    # Java writes a character beyond U+FFFF as a surrogate pair.
    return _ESCAPE.sub(character, value).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _addresses(settings: Mapping[str, str]) -> dict[str, str]:
    addresses = {name: settings.get(name, "") for name in HTTP_ADDRESSES}
    for name in GRPC_NAMES:
        addresses[name] = ":".join(settings.get(f"{name}_{part}", "") for part in ("address", "port"))
    return addresses


def _parts(address: str) -> tuple[str, str, str]:
    """Split an address, which has been checked, into scheme, host and port. Addresses of gRPC have no scheme."""
    match = _ADDRESS.fullmatch(address)
    assert match
    return (match[1] or "").lower(), match[2], match[3]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
