"""TorchServe's settings, as `config.properties` holds them: read, checked, and made for ports that nobody uses."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

from reelscribe.errors import StartupError


def read_properties(text: str) -> dict[str, str]:
    """Names and values of a Java properties file."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def free_ports() -> dict[str, str]:
    """Settings for an instance that stays out of every other one's way."""
    addresses = ["inference_address", "management_address", "metrics_address"]
    names = [*addresses, "grpc_inference_port", "grpc_management_port"]
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = [s.getsockname()[1] for s in sockets]
    return {n: f"http://127.0.0.1:{p}" if n in addresses else str(p) for n, p in zip(names, ports, strict=True)}


def check_addresses(settings: dict[str, str], config: Path) -> None:
    """Raises StartupError for an address that is none, or whose port is taken."""
    for name in ("inference_address", "management_address", "metrics_address"):
        _check_address(name, settings.get(name, ""), config)
    for name in ("grpc_inference", "grpc_management"):
        address, port = (settings.get(f"{name}_{part}", "") for part in ("address", "port"))
        _check_address(name, f"{address}:{port}", config)


def not_joined(settings: dict[str, str], names: list[str]) -> list[str]:
    """The models that settings for other models say nothing of: a surprise that would only show as slowness."""
    try:
        models = json.loads(settings.get("models", "null"))
    except ValueError as error:
        raise StartupError(f"models=: expected JSON by model and version, got {settings['models']} ({error})") from None
    return [name for name in names if name not in models] if isinstance(models, dict) else []


def _check_address(name: str, address: str, config: Path) -> None:
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not host or not port.isdigit():
        raise StartupError(f"{config}: {name}: expected an address like http://127.0.0.1:8080, got {address!r}")
    with socket.socket() as probe:
        if probe.connect_ex((host, int(port))) == 0:
            raise StartupError(f"{name}: port {port} of {host} is taken; free it or change it in {config}")
