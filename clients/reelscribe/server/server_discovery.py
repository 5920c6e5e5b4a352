"""Finds servers and their keys: those that are named, or the one that runs in a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reelscribe._web_addresses import OPENAI, server_at
from reelscribe.client.credentials import ApiKey, Credentials
from reelscribe.client.endpoint import Server
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.errors import UsageError
from reelscribe.management.management_client import ManagementClient
from reelscribe.server.config_properties import tokens_required
from reelscribe.server.instance import Instance
from reelscribe.server.start_options import (
    API_KEY_VARIABLE,
    DIRECTORY,
    INFERENCE_ADDRESS,
    KEY_FILE_VARIABLE,
    SERVER_VARIABLE,
)

COPIED_KEY_FILE = Path("key_file.json")
"""Path of a copy of a server's key file that is found without being named."""


@dataclass(frozen=True)
class ManagedServer:
    """A server, and how to reach its management API."""

    address: str
    """Address of the management API."""
    credentials: Credentials | None = None
    """The token for the management API; None for a server that requires none, or that does not run."""
    instance: Instance | None = None
    """The server's folder; None for a server elsewhere, whose log and archives cannot be read."""

    def client(self) -> ManagementClient:
        """Return a client, to be used as an asynchronous context manager."""
        trusted = self.instance.tls() if self.instance else None
        return ManagementClient(self.address, self.credentials, ssl_context=trusted)


@dataclass(frozen=True)
class FoundServer:
    """A server for clients of models."""

    server: Server
    """Inference address and key."""
    managed: ManagedServer | None = None
    """The server whose management API lists its models; None if that is not known."""
    assumed: bool = False
    """True if nothing named it, and it is merely where a server usually is."""


def find_servers(
    urls: Sequence[str] | None = None,
    key_files: Sequence[Path] | None = None,
    management: str | None = None,
    directory: Path | None = None,
    *,
    find_keys: bool = True,
    openai: OpenAISettings | None = None,
) -> list[FoundServer]:
    """Find servers, each with its key.

    Without `urls`, it is the server that runs in `directory`. Without that, they are those of the environment variable
    REELSCRIBE_SERVER, or else the server that runs in DIRECTORY, or else the one at INFERENCE_ADDRESS. Without
    `key_files`, they are those of REELSCRIBE_KEY_FILE, unless that belongs to a REELSCRIBE_SERVER which is not used.
    Without these, the key is that of the server in the folder if it has the address, or else, for a single server, the
    file `key_file.json` in the working folder.

    A server in a folder is found again there if it is started at another address, unless an address was named.

    The key of a server with OpenAI's API is in its key file, or else in the environment variable OPENAI_API_KEY.
    Commands take the variable away before, unless they name a single such server.

    Args:
        urls: Inference addresses.
        key_files: One for all servers or one for each.
        management: Where the key of a single server is renewed, and its models are listed.
        directory: Folder of a server on this machine; None for DIRECTORY, in which no server needs to run.
        find_keys: Whether keys are looked for in the environment and in the working folder. They may be of another
            server if a command uses two.
        openai: How servers with OpenAI's API are asked; None for the defaults.

    Raises:
        UsageError: No server runs in `directory`, a key file or an address cannot be used, or their numbers do not fit
            together.
    """
    local = _running_in(directory, needed=not urls)
    in_environment = [] if directory else os.environ.get(SERVER_VARIABLE, "").split()
    if find_keys and not key_files and not directory and not (urls and in_environment):
        key_files = [Path(path) for path in os.environ.get(KEY_FILE_VARIABLE, "").split(os.pathsep) if path]
    key_files = key_files or []
    urls = urls or in_environment
    named = bool(urls)
    assumed = not named and local is None
    urls = urls or [local.address("inference_address") if local else INFERENCE_ADDRESS]
    if management and len(urls) > 1:
        raise UsageError("--management: expected a single --server with it, as the keys of several are not renewed")
    _check_kinds(urls, management)
    if len(key_files) not in (0, 1, len(urls)):
        raise UsageError(f"--key-file: expected one for all, or one for each --server, got {len(key_files)}")
    found = []
    for k, url in enumerate(urls):
        key_file = key_files[k % len(key_files)] if key_files else None
        if url.startswith(OPENAI):
            key = ApiKey(key_file) if key_file else os.environ.get(API_KEY_VARIABLE) or None
            found.append(FoundServer(Server(url, key, openai=openai or OpenAISettings())))
            continue
        if local and _is_at(url, local) and (key_file is None or key_file.resolve() == local.key_file.resolve()):
            found.append(_in_its_folder(url, local, stays=named))
            continue
        if find_keys and not key_files and len(urls) == 1 and COPIED_KEY_FILE.exists():
            key_file = COPIED_KEY_FILE
        server = Server(url, Credentials(key_file, management, found=not key_files) if key_file else None)
        managed = find_managed_server(management, key_file) if management else None
        found.append(FoundServer(server, managed, assumed))
    return found


def _check_kinds(urls: Sequence[str], management: str | None) -> None:
    """Raise UsageError for servers of both kinds, or a management address of one that has none."""
    if management and any(url.startswith(OPENAI) for url in urls):
        raise UsageError("--management: expected a TorchServe as --server, as others have no keys to renew")
    if len({url.startswith(OPENAI) for url in urls}) > 1:
        raise UsageError(
            "--server: expected servers of one kind, which share requests, got a TorchServe and one with OpenAI's API;"
            " annotate has --speech-server for the one that transcribes"
        )


def find_managed_server(
    management: str | None = None, key_file: Path | None = None, directory: Path = DIRECTORY
) -> ManagedServer:
    """Find a server that is to be managed.

    Without `management`, it is the server in `directory`, whether or not it runs. Without `key_file`, the key is that
    of the server in `directory` if it has the address, or else the file `key_file.json` in the working folder.

    Args:
        management: Management address.
        key_file: A copy of the server's key file.
        directory: Folder of a server on this machine.

    Raises:
        UsageError: No server was started in `directory`, or the key file cannot be used.
    """
    instance = Instance(directory)
    local = instance if instance.config.exists() else None
    if management is None and local is None:
        raise UsageError(
            f"{directory.absolute()}: no server was started there; give its --directory, or a --management address"
        )
    address = management or instance.address("management_address")
    if local and address != local.address("management_address"):
        local = None
    found = key_file is None
    if key_file is None and local:
        key_file = local.key_file if local.key_file.exists() else None
    elif key_file is None and COPIED_KEY_FILE.exists():
        key_file = COPIED_KEY_FILE
    # TorchServe writes a renewed key to its own file only, and a copy would become invalid.
    own = local is not None and key_file is not None and key_file.resolve() == local.key_file.resolve()
    renewed_at = address if own else None
    keys = Credentials(key_file, renewed_at, api="management", found=found) if key_file else None
    return ManagedServer(address, keys, local)


def _running_in(directory: Path | None, *, needed: bool) -> Instance | None:
    """Return the server that runs in a folder; None if none does, which is an error if it was named and is needed."""
    instance = Instance(directory or DIRECTORY)
    if instance.is_up and instance.config.exists():
        return instance
    if directory is not None and needed:
        raise UsageError(f"{directory}: no server runs there; start it, or give the --server address of another one")
    return None


def _in_its_folder(url: str, instance: Instance, *, stays: bool) -> FoundServer:
    address = instance.address("management_address")
    find_again = None if stays else partial(_current_address, instance)
    if not tokens_required(instance.settings()):
        return FoundServer(Server(url, None, find_again), ManagedServer(address, None, instance))
    managed = ManagedServer(address, Credentials(instance.key_file, address, api="management", found=True), instance)
    return FoundServer(Server(url, Credentials(instance.key_file, address, found=True), find_again), managed)


def _current_address(instance: Instance) -> Server | None:
    """Return the server that runs in a folder; None if it is stopped, or starts and has no keys yet."""
    with suppress(OSError, KeyError, UsageError):
        if instance.is_up:
            return _in_its_folder(instance.address("inference_address"), instance, stays=False).server
    return None


def _is_at(url: str, instance: Instance) -> bool:
    """Return whether an address is the inference address of a server on this machine."""
    return server_at(url) == server_at(instance.address("inference_address"))
