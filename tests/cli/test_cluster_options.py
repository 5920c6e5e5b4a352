"""The options for many machines: what does not fit together is an error before anything is connected."""

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app

ON = ("--ray", "127.0.0.1:1")


def refusal(*words: str, command: str = "annotate") -> str:
    """The message of a command that refuses options, on one line."""
    result = CliRunner().invoke(app, [command, "video.mp4", "--out", "out", *words])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    "words", [["--serve"], ["--serve-nodes", "2"], ["--ray-nodes", "2"], ["--ray-runtime-env", "file"], ["--insecure"]]
)
def test_options_about_a_cluster_need_one(words):
    assert f"{words[0]}: expected --ray with it" in refusal(*words)


@pytest.mark.parametrize("option", ["--server", "--speech-server"])
def test_nodes_that_serve_and_a_server_exclude_each_other(option):
    assert "expected no address of a server, got http://a" in refusal(*ON, "--serve", option, "http://a")


@pytest.mark.parametrize(
    ("text", "why"), [("[1, 2]", "expected a mapping"), ("{", "cannot be read"), (None, "cannot be read")]
)
def test_a_runtime_environment_that_is_none_is_refused(tmp_path, text, why):
    path = tmp_path / "environment.yaml"
    if text is not None:
        path.write_text(text)
    assert f"--ray-runtime-env {path}: {why}" in refusal(*ON, "--ray-runtime-env", str(path), command="shots")
