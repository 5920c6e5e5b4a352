"""The scripts work from any folder: options name files there, and the server is that of the clone. setup installs only
files whose digests are known."""

import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
LOCK = SCRIPTS.parent / "requirements.lock"
SAYS_ITS_ARGUMENTS = '#!/bin/sh\necho "$(basename "$PWD"): $(basename "$0") $*"\n'


@pytest.fixture
def clone(tmp_path) -> Path:
    """A clone in which `reelscribe` and what takes long only say how they were called."""
    clone = tmp_path / "clone"
    shutil.copytree(SCRIPTS, clone / "scripts")
    for name in (".venv/bin/reelscribe", ".venv/bin/python", "scripts/setup", "scripts/build"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(SAYS_ITS_ARGUMENTS)
        (clone / name).chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    return clone


def run(clone: Path, name: str, *words: str) -> list[str]:
    command = [clone / "scripts" / name, *words]
    done = subprocess.run(command, cwd=clone.parent / "elsewhere", capture_output=True, text=True, check=True)
    return done.stdout.replace(str(clone), "CLONE").splitlines()


def test_a_server_is_that_of_the_clone_and_options_are_of_the_folder_where_they_are_given(clone):
    usual = "elsewhere: reelscribe server start --directory CLONE/.server --model-store CLONE/model_store"
    default = "--config CLONE/config.properties"
    assert run(clone, "start", "--config", "mine.properties") == [f"{usual} {default} --config mine.properties"]
    (clone / ".server").mkdir()
    (clone / ".server" / "started-with.json").touch()  # after a start, whose settings `reelscribe` remembers
    assert run(clone, "start") == [usual]
    assert run(clone, "restart") == ["elsewhere: reelscribe server restart --directory CLONE/.server"]
    assert run(clone, "stop") == ["elsewhere: reelscribe server stop --directory CLONE/.server"]


def test_quickstart_starts_with_the_given_settings_and_annotates_with_that_server(clone):
    lines = run(clone, "quickstart", "--config", "mine.properties")
    check, start = [line for line in lines if "server start" in line]
    assert start.startswith("elsewhere: ")
    assert start.endswith(" --config mine.properties")
    assert check.endswith(" --dry-run --config mine.properties")
    (annotate,) = [line for line in lines if "annotate" in line and "reelscribe" in line]
    assert annotate.startswith("clone: ")
    assert "--all-frames --directory .server" in annotate
    assert "server stop" in lines[-1]


def test_quickstart_builds_nothing_if_the_server_cannot_be_started(clone):
    refuse = 'case "$*" in *--dry-run*) echo refused; exit 1 ;; esac\n'
    with (clone / ".venv/bin/reelscribe").open("a") as reelscribe:
        reelscribe.write(refuse)
    done = subprocess.run([clone / "scripts/quickstart"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.endswith("refused\n")
    assert "building" not in done.stdout
    assert "stop" not in done.stdout  # a server that was running before is left alone


@pytest.mark.parametrize("name", ["setup", "quickstart"])
def test_help_is_shown_and_nothing_is_installed(tmp_path, name):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    done = subprocess.run([tmp_path / "scripts" / name, "--help"], capture_output=True, text=True, check=True)
    assert "install everything" in done.stdout.lower()
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_every_package_of_the_lock_has_digests_and_torch_is_not_there():
    packages = re.findall(r"^(\S+)==.*((?:\n    --hash=sha256:[0-9a-f]{64}.*)*)$", LOCK.read_text(), re.MULTILINE)
    names = {name for name, _ in packages}
    assert {"aiohttp", "av", "numpy", "torchserve", "transformers"} <= names
    assert [name for name, digests in packages if not digests] == []
    assert [name for name in names if name in ("torch", "triton") or name.startswith(("nvidia", "cuda"))] == []


def wheel(folder: Path, name: str) -> str:
    """Write a wheel of nothing, and return its digest."""
    info = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "RECORD": ""}
    info["WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        for part, content in info.items():
            file.writestr(f"{name}-1.0.dist-info/{part}", content)
    return hashlib.sha256((folder / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest()


def test_setup_refuses_a_package_that_was_exchanged(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup", tmp_path / "scripts")
    known, exchanged = wheel(tmp_path / "wheels", "known"), wheel(tmp_path / "wheels", "exchanged")
    lock = [f"known==1.0 --hash=sha256:{known}", f"exchanged==1.0 --hash=sha256:{known}"]
    (tmp_path / "requirements.lock").write_text("\n".join(lock))
    (tmp_path / "pyproject.toml").write_text('constraint-dependencies = ["torch==1.0"]')
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    done = subprocess.run(
        [tmp_path / "scripts" / "setup"], env={**os.environ, **offline}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert (known, exchanged) == tuple(re.findall(r"Expected sha256 (\w+)\s+Got\s+(\w+)", done.stderr)[0])
    assert not list(tmp_path.glob(".venv/lib/python3*/site-packages/known*"))
