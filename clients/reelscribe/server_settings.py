"""TorchServe's settings, as `config.properties` holds them: read and checked."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from reelscribe.errors import StartupError

Settings = dict[str, str]

HTTP_ADDRESSES = ("inference_address", "management_address", "metrics_address")
GRPC_NAMES = ("grpc_inference", "grpc_management")

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_ADDRESS = re.compile(r"(?:(https?)://)?([\w.-]+):(\d+)", re.IGNORECASE | re.ASCII)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPED = re.compile(r"[^ -~]|\\")
_TLS_OF_ITS_OWN = ("keystore", "keystore_pass", "keystore_type", "certificate_file", "private_key_file")


def read_properties(text: str) -> Settings:
    r"""Names and values of a Java properties file. Raises StartupError for a line that is not `name=value`.

    Java would read more than that, and what was checked must be what TorchServe reads. In values a backslash is written
    as two, and `\u00e4` is a character, as Java has it; other escapes are refused.
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
    """The text of a properties file in ASCII, for Java takes its bytes for ISO-8859-1."""
    return "".join(f"{name}={_ESCAPED.sub(_escape, value)}\n" for name, value in settings.items())


def tokens_are_asked_for(settings: Mapping[str, str]) -> bool:
    """Whether the inference and the management API answer nobody without a token."""
    return settings.get("disable_token_authorization", "false").lower() != "true"


def complete(settings: Mapping[str, str], config: Path, *, model_api: bool) -> Settings:
    """The settings of `config` with what must not be left to TorchServe's defaults. Raises StartupError."""
    if own := [name for name in _TLS_OF_ITS_OWN if name in settings]:
        raise StartupError(
            f"{config}: {', '.join(own)}: no settings for a file that others read; use --certificate and --private-key,"
            " and the keystore is made"
        )
    if _ESCAPED.search(settings.get("vmargs", "")):
        raise StartupError(
            f"{config}: vmargs: expected ASCII without backslashes, got {settings['vmargs']!r}: TorchServe reads this"
            " setting before Java does, and knows no escapes"
        )
    # TorchServe would take any file and any address for an archive.
    completed = {"allowed_urls": "", **settings}
    if model_api:
        completed["enable_model_api"] = "true"
    if metrics := settings.get("metrics_config"):
        path = config.parent / metrics
        if not path.is_file():
            raise StartupError(f"{config}: metrics_config: {path} is no file")
        completed["metrics_config"] = str(path.resolve())
    return completed


def check_addresses(settings: Mapping[str, str], config: Path) -> None:
    """Raises StartupError for an address that is none."""
    for name, address in _addresses(settings).items():
        if not _ADDRESS.fullmatch(address) or address.startswith("http") != (name in HTTP_ADDRESSES):
            raise StartupError(f"{config}: {name}: expected an address like http://127.0.0.1:8080, got {address!r}")


def check_ports(settings: Mapping[str, str], config: Path) -> None:
    """Raises StartupError for an address that somebody else listens at."""
    for name, address in _addresses(settings).items():
        _, host, port = _parts(address)
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                raise StartupError(f"{name}: port {port} of {host} is taken; free it or change it in {config}")


def check_tls(settings: Mapping[str, str], config: Path, *, certificate: bool) -> None:
    """Raises StartupError for https without a certificate that clients could know, or the other way round."""
    encrypted = [name for name in HTTP_ADDRESSES if _parts(settings[name])[0] == "https"]
    if encrypted and not certificate:
        raise StartupError(
            f"{config}: {encrypted[0]} is https: give --certificate and --private-key; TorchServe would make up a"
            " certificate that no client can check"
        )
    if certificate and not encrypted:
        raise StartupError(
            f"{config}: no address is https, so --certificate would be of no use; write https://..., or leave it"
            " out (`reelscribe server restart` keeps that of the last start unless told --no-tls)"
        )


def exposed(settings: Mapping[str, str]) -> list[str]:
    """What can be reached from other machines although it should not be; for each, one line that says why.

    The inference and the management API may be, with TLS and tokens. The metrics API asks for no token, ever
    (ServerInitializer.java), and gRPC asks for one, but has a TLS of its own that is not set up here.
    """
    tokens = tokens_are_asked_for(settings)
    found = []
    for name, address in _addresses(settings).items():
        scheme, host, _ = _parts(address)
        if _is_loopback(host):
            continue
        if name == "metrics_address":
            found.append(f"{name} {address}: TorchServe asks nobody for a token there")
        elif name in GRPC_NAMES:
            found.append(f"{name}_address {address}: its traffic, with the tokens in it, would not be encrypted")
        elif scheme != "https":
            found.append(f"{name} {address}: its traffic, with the tokens in it, would not be encrypted")
        elif not tokens:
            found.append(f"{name} {address}: disable_token_authorization=true lets everybody in")
    return found


def surprises(settings: Mapping[str, str], config: Path) -> list[str]:
    """What is allowed on this machine alone, but should be known; one line each."""
    found = []
    if not tokens_are_asked_for(settings):
        found.append("disable_token_authorization=true: every user and program of this machine can use and change it")
    if settings.get("enable_model_api", "").lower() == "true":
        found.append(
            "the model API is on: whoever has the management key can serve any folder of this machine as a model,"
            " which is to run any program there"
        )
    if allowed := settings["allowed_urls"]:
        found.append(f"{config}: allowed_urls={allowed}: archives from there, and the programs in them, may be served")
    return found


def not_joined(settings: Mapping[str, str], names: list[str]) -> list[str]:
    """The models that settings for other models say nothing of: a surprise that would only show as slowness."""
    try:
        models = json.loads(settings.get("models", "null"))
    except ValueError as error:
        raise StartupError(f"models=: expected JSON by model and version, got {settings['models']} ({error})") from None
    return [name for name in names if name not in models] if isinstance(models, dict) else []


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

    # Java writes a character beyond the first 65,536 as two.
    return _ESCAPE.sub(character, value).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _addresses(settings: Mapping[str, str]) -> dict[str, str]:
    addresses = {name: settings.get(name, "") for name in HTTP_ADDRESSES}
    for name in GRPC_NAMES:
        addresses[name] = ":".join(settings.get(f"{name}_{part}", "") for part in ("address", "port"))
    return addresses


def _parts(address: str) -> tuple[str, str, str]:
    """Scheme, host and port of an address that was checked; gRPC's have no scheme."""
    match = _ADDRESS.fullmatch(address)
    assert match
    return (match[1] or "").lower(), match[2], match[3]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
