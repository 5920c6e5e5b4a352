"""An instance of TorchServe on this machine: its directory and its processes.

An instance owns a directory, `.server` by default, with its settings, temporary files, logs and keys. The Java process
and its workers survive the command that launched them, so an environment variable with the directory marks each
process of an instance. The instance has ended when no such process is left.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reelscribe._files import read_small_file, try_lock
from reelscribe.errors import ServerError, StartupError
from reelscribe.server.config_properties import read_properties, tokens_required

if TYPE_CHECKING:  # imported when needed
    import ssl

    import psutil  # is not installed beside a client

    from reelscribe.client.credentials import Credentials  # would double the memory of the guard of an owned server

INSTANCE_VARIABLE = "REELSCRIBE_INSTANCE"
"""Environment variable that names the directory of the instance that a process belongs to."""

STOP_SECONDS = 15
"""Timeout, in seconds, for processes to end after SIGTERM, and again after SIGKILL."""


@dataclass(frozen=True)
class Instance:
    """The files of an instance, and access to its processes."""

    directory: Path
    """Folder that holds all files of the instance."""

    @property
    def key_file(self) -> Path:
        """File of the API tokens, which TorchServe writes with mode 600."""
        return self.directory / "key_file.json"

    @property
    def config(self) -> Path:
        """File of the settings that the server runs with."""
        return self.directory / "config.properties"

    @property
    def logs(self) -> Path:
        """Folder of TorchServe's log files."""
        return self.directory / "logs"

    @property
    def previous_logs(self) -> Path:
        """Folder of the log files of the server that was started there before."""
        return self.directory / "previous-logs"

    @property
    def programs(self) -> Path:
        """Folder of the programs that the server runs in place of those of the machine."""
        return self.temp / "programs"

    @property
    def gpus(self) -> int:
        """Number of GPUs that the server's settings name; 0 if they name none."""
        return int(self.settings().get("number_of_gpu", 0))

    @property
    def temp(self) -> Path:
        """Folder of unpacked archives and of the workers' sockets."""
        return self.directory / "tmp"

    @property
    def keystore(self) -> Path:
        """PKCS12 file of the server's certificate and key; there only with TLS."""
        return self.directory / "keystore.p12"

    @property
    def certificate(self) -> Path:
        """PEM file of the server's certificate; there only with TLS."""
        return self.directory / "certificate.pem"

    @property
    def options(self) -> Path:
        """File of the options of the last start."""
        return self.directory / "started-with.json"

    @property
    def marker(self) -> Path:
        """File that marks the directory as an instance's own; locked while a server starts or stops."""
        return self.directory / "reelscribe-server"

    def settings(self) -> dict[str, str]:
        """Read the settings that TorchServe was started with.

        Raises:
            OSError: No server was started in the directory.
        """
        return read_properties(read_small_file(self.config).decode())

    @property
    def is_up(self) -> bool:
        """Return `True` if a server was started there and not stopped since. It may have ended by itself."""
        return self.temp.exists()

    def address(self, name: str) -> str:
        """Return where this machine reaches an API, by the name of its setting, such as "inference_address"."""
        return self.settings()[name].replace("//0.0.0.0:", "//127.0.0.1:")  # where it listens, but nobody connects to

    def key(self, api: str) -> str:
        """Read the token for an API.

        Args:
            api: "inference" or "management".

        Raises:
            OSError: TorchServe has not written its key file yet.
            ValueError: TorchServe has not finished writing it.
        """
        return str(json.loads(read_small_file(self.key_file))[api]["key"])

    def management_credentials(self) -> Credentials | None:
        """Return credentials for the management API, which renew their token before it expires.

        Returns:
            None if the server requires no token.

        Raises:
            OSError: No server was started in the directory.
            UsageError: TorchServe has not written its key file yet.
        """
        from reelscribe.client.credentials import Credentials

        if not tokens_required(self.settings()):
            return None
        return Credentials(self.key_file, self.address("management_address"), api="management", found=True)

    def tls(self) -> ssl.SSLContext | None:
        """Return a TLS context that trusts this server's certificate and no other; None without TLS."""
        import ssl

        if not self.certificate.exists():
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # connections come from this machine, where it has any name
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, not its signer
        context.load_verify_locations(self.certificate)
        return context

    def processes(self) -> list[psutil.Process]:
        """Find all running processes of the instance, whatever their parent is."""
        import psutil

        mark = str(self.directory.resolve())

        def belongs(process: psutil.Process) -> bool:
            return _environment(process).get(INSTANCE_VARIABLE) == mark

        return list(filter(belongs, psutil.process_iter()))

    def runs(self) -> bool:
        """Return whether a server runs there or is being launched. What workers a killed one left is none: they end."""
        return not all(map(_is_worker, self.processes()))


def is_java(process: psutil.Process) -> bool:
    """Return whether a process is TorchServe's Java process, not one of its workers."""
    import psutil

    try:
        return any("ModelServer" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _is_worker(process: psutil.Process) -> bool:
    import psutil

    try:
        return any("model_service_worker" in word for word in process.cmdline())
    except psutil.Error:
        return True


def _environment(process: psutil.Process) -> dict[str, str]:
    """Return a process's environment; empty if it has ended or belongs to another user."""
    import psutil

    try:
        return process.environ()
    except psutil.Error:
        return {}


def end_processes(instance: Instance, patience: float) -> list[int]:
    """End the processes of an instance.

    Args:
        instance: The instance whose processes end.
        patience: Seconds that the Java process gets after SIGTERM, before whatever is left gets SIGKILL.

    Returns:
        The ids of the processes that have ended.

    Raises:
        ServerError: A process survived SIGKILL.
    """
    # The Java process ends its workers itself; only what is left after that is ended one by one.
    pids = _signal_and_wait(instance, signal.SIGTERM, patience, workers_too=False)
    pids |= _signal_and_wait(instance, signal.SIGKILL, STOP_SECONDS, workers_too=True)
    # Another command may have launched a process meanwhile; that one was not signalled.
    if left := [process.pid for process in instance.processes() if process.pid in pids]:
        raise ServerError(f"processes {left} cannot be ended; end them by hand")
    return list(pids)


def _signal_and_wait(instance: Instance, sig: signal.Signals, seconds: float, *, workers_too: bool) -> dict[int, None]:
    """Signal the Java process, and its workers on request, and wait up to `seconds` until all processes have ended.

    Returns:
        The ids of all processes there were, as an ordered set.
    """
    import psutil

    pids: dict[int, None] = {}
    signalled: set[int] = set()
    deadline = time.monotonic() + seconds
    while processes := instance.processes():
        pids |= dict.fromkeys(process.pid for process in processes)
        targets = [process for process in processes if workers_too or is_java(process)]
        if not (targets or signalled) or time.monotonic() >= deadline:
            break  # there is no Java process that could end its workers, or the time is up
        for process in targets:  # including those that another command has started meanwhile
            if process.pid not in signalled:
                signalled.add(process.pid)
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(sig)
        time.sleep(0.05)
    return pids


@contextmanager
def locked(instance: Instance) -> Iterator[None]:
    """Create the directory if it is missing, and lock it: no other command can start or stop a server there meanwhile.

    Raises:
        StartupError: The directory belongs to something else, or another command has locked it.
    """
    if instance.directory.exists() and not instance.marker.exists() and any(instance.directory.iterdir()):
        raise StartupError(
            f"{instance.directory}: expected an empty folder or a server's; delete it or choose another --directory"
        )
    instance.directory.mkdir(parents=True, exist_ok=True)
    instance.directory.chmod(0o700)  # TorchServe makes its key file private only after writing it
    with instance.marker.open("ab") as marker:
        if not try_lock(marker):
            raise StartupError(
                f"{instance.directory}: another command starts or stops a server there; wait until it has ended"
            )
        yield
