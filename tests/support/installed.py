"""Environments in which nothing is installed but the wheel of the project and what one of its extras asks for."""

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.documents import ROOT


def build_wheel(folder: Path) -> Path:
    """Build the wheel from the source distribution, as an index of packages would have both."""
    hatch = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run([*hatch, "-t", "sdist", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive.name], cwd=folder, check=True)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    subprocess.run([*hatch, "-t", "wheel", "-d", str(folder)], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Make an environment with the wheel and an extra, and return its folder of programs.

    What the extra asks for is linked from the environment of these tests, because some of it is large.
    """
    venv.create(folder, with_pip=False)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for each in _required(extra):
        for file in each.files or ():
            if ".." not in file.parts:  # programs are not needed, but python -m
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).symlink_to(file.locate())
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return folder / "bin"


def _required(extra: str) -> list[Distribution]:
    """The distributions that an extra asks for, directly or not."""
    waiting, found = [Requirement(f"reelscribe[{extra}]")], dict[str, Distribution | None]()
    seen = set[tuple[str, str]]()
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), wanted.extras or {""}
        if all((name, each) in seen for each in extras):
            continue
        seen |= {(name, each) for each in extras}
        metadata = distribution(name)
        found[name] = None if name == "reelscribe" else metadata
        waiting += [each for each in map(Requirement, metadata.requires or ()) if _is_asked_for(each, extras)]
    return [each for each in found.values() if each]


def _is_asked_for(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
