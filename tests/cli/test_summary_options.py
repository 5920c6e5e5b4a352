"""The options for summaries: which server and model are asked, and what does not go together."""

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.run.tracks.summaries import SummaryOptions

VLLM, OTHER = "openai+http://127.0.0.1:1/v1", "openai+http://127.0.0.1:2/v1"
NO_CHAT = "--summary: expected a server with OpenAI's API, as no handler on a TorchServe answers texts; name one with"


def invoke(*words: str, **environment: str):
    command, *rest = words
    return CliRunner().invoke(app, [command, "a.mp4", "-o", "out", *rest], env={"COLUMNS": "300", **environment})


@pytest.mark.parametrize(
    ("words", "servers", "model"),
    [
        (["caption", "--server", VLLM], [VLLM], None),
        (["caption", "--server", VLLM, "--model", "qwen"], [VLLM], "qwen"),
        (["caption", "--server", VLLM, "--model", "qwen", "--summary-model", "llama"], [VLLM], "llama"),
        (["caption", "--server", VLLM, "--model", "qwen", "--summary-server", OTHER], [OTHER], None),
        (["caption", "--server", "http://gpu:1", "--model", "m", "--summary-server", VLLM], [VLLM], None),
        (["annotate", "--server", VLLM, "--clip-model", "qwen"], [VLLM], "qwen"),
        (["transcribe", "--server", VLLM, "--model", "whisper"], [VLLM], None),
        (["transcribe", "--server", VLLM, "--summary-server", OTHER, "--summary-server", VLLM], [OTHER, VLLM], None),
    ],
)
def test_the_model_is_on_the_server_of_the_other_one_unless_another_is_named(started, words, servers, model):
    result = invoke(*words, "--summary", "--retry-failed", "--requests-in-flight", "3")
    assert result.exit_code == 0, result.output
    spec = started["summaries"]
    assert ([each.server.url for each in spec.servers], spec.name) == (servers, model)
    assert (spec.options, spec.requests_in_flight, spec.decode_processes) == (SummaryOptions(retry_failed=True), 3, 0)


def test_no_summaries_are_made_without_the_option(started):
    assert invoke("caption", "--server", VLLM).exit_code == 0
    assert "summaries" not in started


def test_the_key_is_in_its_file_or_in_the_environment_and_what_is_said_of_frames_is_not_told(started, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)
    words = ["caption", "--server", "http://gpu:1", "--summary", "--summary-server", OTHER, "--model-revision", "2"]
    words += ["--max-tokens", "20", "--frame-format", "png"]
    assert invoke(*words, OPENAI_API_KEY="other").exit_code == 0
    (found,) = started["summaries"].servers
    assert (found.server.credentials, found.server.openai) == ("other", OpenAISettings(revision="2"))
    assert invoke(*words, "--summary-key-file", str(key)).exit_code == 0
    (found,) = started["summaries"].servers
    assert found.server.credentials.token == "secret"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["caption", "--server", "http://gpu:1", "--summary"],
            f"{NO_CHAT} --summary-server openai+http://HOST:PORT/v1",
        ),
        (["transcribe", "--summary", "--summary-server", "http://gpu:1"], NO_CHAT),
        (["annotate", "--ray", "auto", "--serve", "--summary"], NO_CHAT),
        (["caption", "--summary-model", "m"], "--summary-model: expected --summary with it"),
        (["annotate", "--summary-server", VLLM], "--summary-server: expected --summary with it"),
        (
            ["caption", "--server", VLLM, "--summary", "--summary-key-file", "key"],
            "--summary-key-file: expected --summary-server with it",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_one_line(started, words, reason):
    result = invoke(*words)
    assert (result.exit_code, started) == (2, {})
    (line,) = [line for line in result.output.splitlines() if line]
    assert reason in line
