"""The scripts work from any folder: options name files there, and the server is that of the clone."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
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
    usual = "--directory CLONE/.server --config CLONE/config.properties --model-store CLONE/model_store"
    assert run(clone, "start", "--config", "mine.properties") == [
        f"elsewhere: reelscribe server start {usual} --config mine.properties"
    ]
    assert run(clone, "restart") == ["elsewhere: reelscribe server restart --directory CLONE/.server"]
    assert run(clone, "stop") == ["elsewhere: reelscribe server stop --directory CLONE/.server"]


def test_quickstart_starts_with_the_given_settings_and_annotates_with_that_server(clone):
    lines = run(clone, "quickstart", "--config", "mine.properties")
    (start,) = [line for line in lines if "server start" in line]
    assert start.startswith("elsewhere: ")
    assert start.endswith(" --config mine.properties")
    (annotate,) = [line for line in lines if "annotate" in line and "reelscribe" in line]
    assert annotate.startswith("clone: ")
    assert "--all-frames --directory .server" in annotate
    assert "server stop" in lines[-1]


@pytest.mark.parametrize("name", ["setup", "quickstart"])
def test_help_is_shown_and_nothing_is_installed(tmp_path, name):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    done = subprocess.run([tmp_path / "scripts" / name, "--help"], capture_output=True, text=True, check=True)
    assert "install everything" in done.stdout.lower()
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
