"""A TorchServe of our own on this machine: the directory that it lives in, and its processes.

An instance owns a directory, `.server` by default: its settings, temporary files, logs and keys. TorchServe's own
launcher leaves the Java process and its workers alive when it is stopped, so every process of an instance carries the
directory in its environment, and the instance has ended when no such process is left.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from reelscribe._files import try_lock
from reelscribe.client.credentials import Credentials
from reelscribe.errors import StartupError
from reelscribe.server.settings import read_properties, tokens_are_asked_for

INSTANCE_VARIABLE = "REELSCRIBE_SERVER"
"""In the environment of every process of an instance: its directory."""


@dataclass(frozen=True)
class Instance:
    """Where an instance lives."""

    directory: Path

    @property
    def key_file(self) -> Path:
        """TorchServe writes its tokens there, for its own user only."""
        return self.directory / "key_file.json"

    @property
    def config(self) -> Path:
        """The settings that it runs with."""
        return self.directory / "config.properties"

    @property
    def logs(self) -> Path:
        """TorchServe's log files."""
        return self.directory / "logs"

    @property
    def temp(self) -> Path:
        """Unpacked archives, and the sockets of the workers."""
        return self.directory / "tmp"

    @property
    def keystore(self) -> Path:
        """Its certificate and key, where it speaks TLS."""
        return self.directory / "keystore.p12"

    @property
    def certificate(self) -> Path:
        """Its certificate alone, where it speaks TLS."""
        return self.directory / "certificate.pem"

    @property
    def options(self) -> Path:
        """What it was started with."""
        return self.directory / "started-with.json"

    @property
    def marker(self) -> Path:
        """Says that the directory is ours to empty."""
        return self.directory / "reelscribe-server"

    def settings(self) -> dict[str, str]:
        """What TorchServe was told."""
        return read_properties(self.config.read_text())

    def address(self, name: str) -> str:
        """An address of the settings, like `inference_address`."""
        return self.settings()[name]

    def key(self, api: str) -> str:
        """The token for the inference or the management API. Raises OSError or ValueError if there is none yet."""
        return str(json.loads(self.key_file.read_text())[api]["key"])

    def management_credentials(self) -> Credentials | None:
        """The key to the management API, renewed before it expires; None for a server that asks for none.

        Raises OSError or UsageError if there is none yet.
        """
        if not tokens_are_asked_for(self.settings()):
            return None
        return Credentials(self.key_file, self.address("management_address"), api="management")

    def tls(self) -> ssl.SSLContext | None:
        """Trust in this server's certificate and no other, whatever name it was made for; None without TLS."""
        if not self.certificate.exists():
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # it is asked on this machine, under any of its names
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever signed it
        context.load_verify_locations(self.certificate)
        return context

    def processes(self) -> list[psutil.Process]:
        """Every process of the instance that still runs, whoever became its parent."""
        mark = str(self.directory.resolve())
        return [process for process in psutil.process_iter() if _environment(process).get(INSTANCE_VARIABLE) == mark]


def is_java(process: psutil.Process) -> bool:
    """Whether it is TorchServe itself, and not one of its workers."""
    try:
        return any("ModelServer" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """Nothing for processes that are not ours to look at, or that have ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


@contextmanager
def claimed(instance: Instance) -> Iterator[None]:
    """Make the directory ours, and keep others from starting or stopping a server there meanwhile.

    Raises StartupError if it holds other things, or another command has claimed it.
    """
    if instance.directory.exists() and not instance.marker.exists() and any(instance.directory.iterdir()):
        raise StartupError(
            f"{instance.directory}: expected an empty folder or a server's; delete it or choose another --directory"
        )
    instance.directory.mkdir(parents=True, exist_ok=True)
    instance.directory.chmod(0o700)  # it holds keys, which TorchServe makes private only after it wrote them
    with instance.marker.open("ab") as marker:
        if not try_lock(marker):
            raise StartupError(
                f"{instance.directory}: another command starts or stops a server there; wait for its end"
            )
        yield
