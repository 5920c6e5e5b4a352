"""Compares the behaviour of this tree with that of another commit. See `scripts/compare --help`."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from difflib import unified_diff
from pathlib import Path

from checkout import SOURCES, Checkout
from checks import CHECKS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOWN_LINES, SHOWN_CHARACTERS = 8, 160

DESCRIPTION = """Compares the behaviour of this tree with that of another commit, from the outside: commands, files and
HTTP bytes. COMMIT is checked out into a temporary git worktree. Each tree runs the same commands with its own
TorchServe, on free ports of loopback. One line is printed for each check; the exit status is 1 if any differs."""


def main() -> int:
    """Run the checks; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/compare", description=DESCRIPTION)
    parser.add_argument("commit", help="the commit to compare this tree with")
    parser.add_argument("--cache", type=Path, help="folder that keeps the outputs of COMMIT for the next comparison")
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK", help=", ".join(CHECKS)
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and worktrees are cleared away
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        scratch = Path(folder)
        commit = git("rev-parse", "--verify", f"{arguments.commit}^{{commit}}")
        reference = prepare((arguments.cache or scratch / "cache").resolve(), commit)
        run_reference(commit, reference, arguments.only, scratch)
        different = 0
        for name, seconds in collect(
            ROOT, reference, arguments.only, scratch / "outputs", scratch / "own", strict=False
        ):
            lines = list(differences(reference / "outputs" / name, scratch / "outputs" / name))
            print(f"{'DIFFERENT' if lines else 'same':9}  {name} ({seconds:.0f} s)", *lines, sep="\n    ", flush=True)
            different += bool(lines)
    return int(different > 0)


def run_reference(commit: str, reference: Path, names: Iterable[str], scratch: Path) -> None:
    """Run those checks in a checkout of a commit whose outputs are not in its folder yet."""
    missing = [name for name in names if not (reference / "outputs" / name).exists()]
    if not missing:
        return
    with worktree(commit, scratch / "tree") as root:
        make_inputs(root, reference)
        for name, seconds in collect(
            root, reference, missing, reference / "outputs", scratch / "reference", strict=True
        ):
            print(f"{commit:.7}: ran {name} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def prepare(cache: Path, commit: str) -> Path:
    """The folder of a commit's outputs; emptied if these checks or the folder are not those that made it."""
    folder = cache / commit
    sources = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    key = f"{folder} {sys.version} {hashlib.sha256(sources).hexdigest()}"
    if not (folder / "key").exists() or (folder / "key").read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "outputs").mkdir(parents=True)
        (folder / "key").write_text(key)
    return folder


def make_inputs(root: Path, reference: Path) -> None:
    """Copy the demo of a tree, and make the odd library, for both trees to be run with."""
    inputs = reference / "inputs"
    if not inputs.exists():
        partial = reference / "inputs.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for name in ("media", "models"):
            shutil.copytree(root / "demo" / name, partial / "demo" / name)
        python_path = (root / "tests", root / "demo")
        with ExitStack() as stack:
            tree = Checkout(root, partial, reference, partial, stack)
            tree.probe("make_library", partial / "library", partial / SOURCES, python_path=python_path)
        partial.rename(inputs)


def collect(
    root: Path, reference: Path, names: Iterable[str], out: Path, scratch: Path, *, strict: bool
) -> Iterator[tuple[str, float]]:
    """Run checks in a tree, each into its folder of `out`; yields each name when it is done, and how long it took.

    With `strict` a check that fails ends the comparison; otherwise its error is an output, as the others still count.
    """
    scratch.mkdir()
    with ExitStack() as stack:
        tree = Checkout(root, reference / "inputs", reference / "outputs", scratch, stack)
        for name in names:
            began = time.monotonic()
            partial = out / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                CHECKS[name](tree, partial)
            except Exception as error:  # a changed tree may break in any way
                if strict:
                    raise
                (partial / "error").write_text(f"{type(error).__name__}: {error}")
            partial.rename(out / name)
            yield name, time.monotonic() - began


def differences(expected: Path, actual: Path) -> Iterator[str]:
    """A few lines for each file that differs."""
    names = {path.relative_to(top) for top in (expected, actual) for path in top.rglob("*") if path.is_file()}
    for name in sorted(names):
        before, after = (read_lines(top / name) for top in (expected, actual))
        if before != after:
            yield f"{name}:"
            changed = [line for line in unified_diff(before, after, n=0, lineterm="") if not line.startswith("@@")][2:]
            yield from (f"  {line}" for line in shortened(changed))


def read_lines(path: Path) -> list[str]:
    """The lines of a file, whatever its bytes; one that says so if it is missing."""
    return (
        path.read_bytes().decode("utf-8", "backslashreplace").split("\n") if path.exists() else ["(there is no file)"]
    )


def shortened(lines: list[str]) -> Iterator[str]:
    """The first lines of a diff; of long ones, what is around their first difference."""
    old, new = ([line[1:] for line in lines if line.startswith(sign)] for sign in "-+")
    pairs = zip(old[:1] or [""], new[:1] or [""], strict=True)
    at = next((k for a, b in pairs for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    start = max(0, at - SHOWN_CHARACTERS // 2) if any(len(line) > SHOWN_CHARACTERS for line in lines) else 0
    for line in lines[:SHOWN_LINES]:
        rest = line[1:][start : start + SHOWN_CHARACTERS]
        yield f"{line[0]}{'...' if start else ''}{rest}{'...' if len(line) > start + SHOWN_CHARACTERS else ''}"
    if len(lines) > SHOWN_LINES:
        yield f"... and {len(lines) - SHOWN_LINES} more lines"


@contextmanager
def worktree(commit: str, path: Path) -> Iterator[Path]:
    """A temporary checkout of a commit."""
    git("worktree", "add", "--quiet", "--detach", str(path), commit)
    try:
        yield path
    finally:
        git("worktree", "remove", "--force", str(path))


def git(*words: str) -> str:
    """The output of a git command. Raises CalledProcessError, after git said why."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
