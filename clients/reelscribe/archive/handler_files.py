"""Packs a handler and the files that it imports into a model archive for TorchServe.

TorchServe puts the unpacked archive first on sys.path, and imports the handler by its file name. Therefore an archive
holds the handler at its top, and the packages that it imports below, as they are in handlers/. Their names must shadow
no installed module. Which files these are follows from the imports in their code.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from reelscribe._files import read_small_file
from reelscribe.errors import StartupError

CONFIG_FILE = "model-config.yaml"
"""Name of the file with the settings in an archive."""

_SUPPLIED = Path(__file__).with_name("handlers")
"""The folder of the handlers in an installed package; in a clone, they are at its root."""


def default_handlers(kind: str) -> Path:
    """Return the folder `handlers` in the current folder if it has this kind of handler, or else that of the package.

    Args:
        kind: The kind of handler.
    """
    own = Path("handlers")
    supplied = _SUPPLIED if _SUPPLIED.is_dir() else Path(__file__).parents[3] / own
    return own if (own / f"{kind}.yaml").is_file() else supplied


def imported_files(script: Path, handlers: Path) -> list[Path]:
    """Find the files that a handler imports, directly or indirectly, also within functions.

    Args:
        script: The handler. It may lie outside of `handlers`.
        handlers: The folder of the modules and packages that an archive can carry. Imports of modules that are not
            there, such as torch, are left to the environment of the server.

    Returns:
        Paths relative to `handlers`, sorted. They include the `__init__.py` of packages, but not `script`.

    Raises:
        StartupError: A file is not valid Python, or a module of a package in `handlers` does not exist.
    """
    found: set[Path] = set()
    unread = [script]
    while unread:
        path = unread.pop()
        new = {file for name in _imports(path, handlers) for file in _files_of(name, handlers, path)} - found
        found |= new
        unread += [handlers / file for file in new]
    return sorted(found)


def pack_handler(
    script: Path,
    handlers: Path,
    directory: Path,
    *,
    name: str,
    version: str = "1.0",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the archive of a handler with torch-model-archiver.

    Args:
        script: The handler, a Python file with a function `handle`.
        handlers: The folder of the modules and packages that it imports.
        directory: An existing folder to write the archive to. An archive of that name is replaced.
        name: The model's name.
        version: The model's version.
        settings: The archive's YAML; without it, TorchServe uses its defaults.

    Returns:
        The path of the archive, `<directory>/<name>.mar`.

    Raises:
        StartupError: A file is missing or not valid Python, or torch-model-archiver failed.
        OSError: A file cannot be read or written.
    """
    files = imported_files(script, handlers)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".packing-") as scratch_name:
        scratch = Path(scratch_name)
        for folder in ("extra-files", "temporary"):
            (scratch / folder).mkdir()
        shutil.copy(script, scratch / script.name)
        for file in files:
            copy = scratch / "extra-files" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(handlers / file, copy)
        # Relative paths only, as torch-model-archiver gives commas, stars and brackets in paths a meaning.
        arguments = ["--model-name", name, "--version", version, "--handler", script.name, "--export-path", "."]
        if files:
            arguments += ["--extra-files", "extra-files"]
        if settings is not None:
            (scratch / CONFIG_FILE).write_text(yaml.safe_dump(dict(settings), sort_keys=False))
            arguments += ["--config-file", CONFIG_FILE]
        _run_archiver(scratch, arguments)
        return (scratch / f"{name}.mar").replace(directory / f"{name}.mar")


def _run_archiver(folder: Path, arguments: list[str]) -> None:
    """Run torch-model-archiver in `folder`, which holds a folder `temporary`. Raises StartupError if it fails."""
    command = [sys.executable, "-P", "-m", "model_archiver.model_packaging", *arguments]
    # A TMPDIR of its own, because torch-model-archiver deletes $TMPDIR/<name> without checking what it is.
    environment = {**os.environ, "TMPDIR": str((folder / "temporary").resolve())}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartupError(f"torch-model-archiver: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def _imports(path: Path, handlers: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file imports."""
    try:
        tree = ast.parse(read_small_file(path), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise StartupError(f"{path}: expected a Python file that can be read: {error}; put it right") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            submodules = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in submodules if _file_of(name, handlers))


def _files_of(module: str, handlers: Path, importer: Path) -> list[Path]:
    """Return the files of a module and of its packages, relative to `handlers`; none if they are not there."""
    names = module.split(".")
    if not _file_of(names[0], handlers):
        return []
    files = []
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        file = _file_of(name, handlers)
        if file is None:
            raise StartupError(f"{importer}: imports {name}, expected it in {handlers}, got no such file; put it back")
        files.append(file)
    return files


def _file_of(module: str, handlers: Path) -> Path | None:
    """Return the file of a module or package, relative to `handlers`; None if there is none."""
    path = Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if (handlers / file).is_file()), None)
