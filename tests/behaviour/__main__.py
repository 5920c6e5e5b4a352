"""Compares the behaviour of this tree with that of another commit. See `scripts/compare --help`."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from checkout import SOURCES, Checkout
from checks import CHECKS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOWN_FILES, SHOWN_LINES, SHOWN_CHARACTERS = 5, 6, 160

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
        reference = reference_folder((arguments.cache or scratch / "cache").resolve(), commit)
        with locked(reference):
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


def reference_folder(cache: Path, commit: str) -> Path:
    """The folder of a commit's outputs.

    Other checks and another Python have other folders. So has a moved cache, as records name the models by their paths.
    """
    sources = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")) if path != Path(__file__))
    version = hashlib.sha256(f"{cache} {sys.version}".encode() + sources).hexdigest()
    return cache / f"{commit:.12}-{version:.12}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits for another comparison that writes the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
                (partial / "error").write_text(f"{type(error).__name__}: {str(error).strip()}")
            partial.rename(out / name)
            yield name, time.monotonic() - began


def differences(expected: Path, actual: Path) -> Iterator[str]:
    """A few lines for each of the first files that differ; the end of the error alone where the check failed."""
    if (error := actual / "error").exists():
        yield from read_lines(error)[-SHOWN_LINES:]
        return
    names = {path.relative_to(top) for top in (expected, actual) for path in top.rglob("*") if path.is_file()}
    lines = {name: (read_lines(expected / name), read_lines(actual / name)) for name in sorted(names)}
    different = [name for name, (before, after) in lines.items() if before != after]
    for name in different[:SHOWN_FILES]:
        changed = list(changes(*lines[name]))
        yield f"{name}:"
        yield from (f"  {line}" for line in changed[:SHOWN_LINES])
        if len(changed) > SHOWN_LINES:
            yield f"  ... and {len(changed) - SHOWN_LINES} more lines"
    if len(different) > SHOWN_FILES:
        yield f"... and {len(different) - SHOWN_FILES} more files"


def read_lines(path: Path) -> list[str]:
    """The lines of a file, whatever its bytes; one that says so if it is missing."""
    return (
        path.read_bytes().decode("utf-8", "backslashreplace").split("\n") if path.exists() else ["(there is no file)"]
    )


def changes(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """A line of each side in turn; of long ones, what is around their first difference."""
    for kind, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for old, new in zip_longest(before[i:i_end], after[j:j_end]) if kind != "equal" else ():
            a, b = old or "", new or ""
            at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            start = max(0, at - SHOWN_CHARACTERS // 2)
            for sign, line in (("-", old), ("+", new)):
                if line is not None:
                    rest = "..." if len(line) > start + SHOWN_CHARACTERS else ""
                    yield f"{sign}{'...' if start else ''}{line[start : start + SHOWN_CHARACTERS]}{rest}"


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
