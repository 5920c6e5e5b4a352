"""Options in files: which place wins, and what is said about a mistake in a file."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app, server_commands
from support.fake_torchserve import write_key_file

RUN = ["annotate", "a.mp4", "--model", "captioner", "--speech-model", "speech"]


@pytest.fixture
def user(tmp_path, monkeypatch) -> Path:
    """The user's file; the working folder is another, empty one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for variable in ("REELSCRIBE_SERVER", "REELSCRIBE_KEY_FILE", "REELSCRIBE_DECODE_WORKERS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "config" / "reelscribe").mkdir(parents=True)
    return tmp_path / "config" / "reelscribe" / "reelscribe.toml"


@pytest.fixture
def folder(user) -> Path:
    """The file in the working folder."""
    return Path("reelscribe.toml")


def annotate(*words: str) -> str:
    result = CliRunner().invoke(app, [*RUN, *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_beats_the_environment_that_the_folder_and_that_the_user(user, folder, started, monkeypatch):
    def workers(*words: str) -> int:
        annotate(*words)
        return started["captions"].options.decode_workers

    user.write_text('[shared]\nout = "results"\ndecode-workers = 3\n[annotate]\nlanguage = "fr"\n')
    assert workers() == 3
    assert started["run"].folder == user.parent / "results"  # relative paths are the file's own
    folder.write_text("[shared]\ndecode-workers = 4\n")
    assert workers() == 4
    monkeypatch.setenv("REELSCRIBE_DECODE_WORKERS", "5")
    assert workers() == 5
    assert workers("--decode-workers", "6") == 6
    assert started["transcripts"].options.transcription.language == "fr"


def test_an_address_in_a_file_stays_as_it_is(folder, started):
    folder.write_text('[shared]\nout = "s3://bucket/results/"\nwork-dir = "work"\n')
    annotate()
    assert (started["run"].out, started["run"].folder) == ("s3://bucket/results/", Path("work"))


def test_a_section_of_a_command_beats_that_of_all_commands(folder, started):
    folder.write_text('[shared]\nout = "x"\nformat = "vtt"\nquiet = true\n[annotate]\nformat = ["srt", "csv"]\n')
    annotate("--no-quiet")
    assert (started["run"].formats, started["run"].quiet) == (["srt", "csv"], False)


def test_what_contradicts_is_replaced(user, folder, started):
    def frames(*words: str) -> str:
        annotate("-o", "x", *words)
        return started["captions"].options.sampling.describe()

    user.write_text("[annotate]\nall-frames = true\n")
    assert frames() == "every frame"
    folder.write_text("[shared]\nfps = 2\nquiet = true\n")
    assert frames() == "2 frames a second"
    assert frames("--every", "10", "--json-log") == "one of 10 frames"
    assert not started["run"].quiet


def test_the_key_of_a_server_in_a_file_is_sent_to_no_other(user, folder, started):
    key_file = folder.parent.absolute() / "keys.json"
    key_file.write_text('{"inference": {"key": "secret"}}')
    key_file.chmod(0o600)
    folder.write_text('[shared]\nserver = "http://one:8080"\nkey-file = "keys.json"\n')

    def tokens(*words: str) -> list[tuple[str, str | None]]:
        annotate("-o", "x", *words)
        servers = [each.server for each in started["captions"].found]
        return [(server.url, server.credentials.token if server.credentials else None) for server in servers]

    assert tokens() == [("http://one:8080", "secret")]
    assert tokens("--server", "http://two:8080") == [("http://two:8080", None)]
    folder.write_text('[shared]\nkey-file = "keys.json"\n[annotate]\nserver = "http://three:8080"\n')
    assert tokens() == [("http://three:8080", "secret")]  # both are in one file
    user.write_text(f'[shared]\nkey-file = "{key_file}"\n')
    folder.write_text('[annotate]\nserver = "http://four:8080"\n')
    assert tokens() == [("http://four:8080", None)]


def test_a_key_in_the_environment_is_for_a_server_on_the_command_line(folder, started, monkeypatch):
    key_file = folder.parent.absolute() / "keys.json"
    key_file.write_text('{"inference": {"key": "secret"}}')
    key_file.chmod(0o600)
    monkeypatch.setenv("REELSCRIBE_KEY_FILE", str(key_file))
    annotate("-o", "x", "--server", "http://two:8080")
    assert started["captions"].found[0].server.credentials.token == "secret"


def test_a_folder_on_the_command_line_replaces_a_server_in_the_environment(folder, started, monkeypatch):
    monkeypatch.setenv("REELSCRIBE_SERVER", "http://one:8080")
    (folder.parent / ".second" / "tmp").mkdir(parents=True)
    settings = (
        "inference_address=http://two:8080\nmanagement_address=http://two:8081\ndisable_token_authorization=true\n"
    )
    (folder.parent / ".second" / "config.properties").write_text(settings)
    annotate("-o", "x")
    assert started["captions"].found[0].server.url == "http://one:8080"
    annotate("-o", "x", "--directory", ".second")
    assert started["captions"].found[0].server.url == "http://two:8080"


def test_commands_of_a_group_have_sections_too(folder, monkeypatch):
    seen = []
    monkeypatch.setattr(server_commands, "_started_in", lambda directory: seen.append(directory))
    folder.write_text('[server]\ndirectory = "one"\n[server.logs]\ndirectory = "/two"\n')
    for command in ("status", "logs"):
        CliRunner().invoke(app, ["server", command])
    assert [str(each) for each in seen] == ["one", "/two"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[annotate", "expected a file in the format TOML"),
        (
            "fps = 2",
            "fps: expected options in a section: [shared] for all commands, or one that is named like a command",
        ),
        ("[anotate]", "[anotate]: no such command; did you mean annotate?"),
        ("[annotate]\nframe = 2", "[annotate] frame: no such option; did you mean frames"),
        ("[server.start]\nmodel_store = 2", "[server.start] model_store: no such option; did you mean model-store?"),
        ("[transcribe]\nfps = 2", "[transcribe] fps: no such option"),
        ('[caption]\nfps = "fast"', "[caption] fps: got 'fast': Input should be a valid number"),
        ("[shared]\nframes = 0", "[shared] frames: got 0: Input should be greater than or equal to 1"),
        ('[shared]\nresize = "slow"', "[shared] resize: got 'slow': "),
        ('[shared]\nreuse = "yes"', "[shared] reuse: expected true or false, got 'yes'"),
        ("[shared]\nfps = true", "[shared] fps: expected a value, got True"),
        ("[shared]\nexclude = [[1]]", "[shared] exclude: expected text, a number, or true or false"),
    ],
)
def test_a_mistake_in_a_file_is_a_usage_error_of_every_command(user, text, message):
    user.write_text(text)
    result = CliRunner().invoke(app, ["status", "out"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"{user}: {message}" in result.output
    assert CliRunner().invoke(app, ["completion", "bash"]).exit_code == 0  # shells run it when they start


def test_help_shows_the_defaults_of_the_files(folder):
    folder.write_text("[caption]\ndecode-workers = 7\n")
    assert "default: 7" in CliRunner().invoke(app, ["caption", "--help"]).output


def test_the_key_of_the_environment_goes_to_no_server_that_the_working_folder_names(user, folder, started, monkeypatch):
    """A folder may be somebody else's, and so may the server in its file."""
    monkeypatch.setenv("REELSCRIBE_KEY_FILE", str(write_key_file(user.parent / "key_file.json", "ours")))
    write_key_file(Path("theirs.json"), "theirs")
    folder.write_text('[shared]\nserver = "https://elsewhere.example"\n')
    refused = CliRunner().invoke(app, [*RUN, "--out", "out"])
    assert refused.exit_code == 2
    assert "is not sent there" in " ".join(refused.output.split())
    annotate("--out", "out", "--server", "http://127.0.0.1:8080")
    folder.write_text('[shared]\nmanagement = "https://elsewhere.example"\n')
    refused = CliRunner().invoke(app, [*RUN, "--out", "out"])
    assert "is not sent there" in " ".join(refused.output.split())
    folder.write_text('[shared]\nserver = "https://elsewhere.example"\nkey-file = "theirs.json"\n')
    annotate("--out", "out")
    assert [each.server.credentials.token for each in started["captions"].found] == ["theirs"]
    folder.unlink()
    user.write_text('[shared]\nserver = "https://ours.example"\n')
    annotate("--out", "out")


LOCAL = "openai+http://127.0.0.1:8000/v1"
ONE, TWO = "openai+https://api.example/v1", "openai+http://gpu-machine:8000/v1"


@pytest.mark.parametrize(
    ("named_here", "words", "keys", "why"),
    [
        ("", ["--server", ONE], ["ours"], None),
        ("", ["--server", ONE, "--server", f"{ONE}/"], ["ours", "ours"], None),
        ("", ["--server", ONE, "--speech-server", TWO], [None], "as several with OpenAI's API are named"),
        ("", ["--server", TWO, "--server", ONE], [None, None], "as several with OpenAI's API are named"),
        ("", ["--server", ONE, "--speech-server", TWO, "--speech-key-file", "theirs"], ["ours"], None),
        ("", ["--server", LOCAL, "--server", LOCAL.replace("127.0.0.1", "localhost")], ["ours", "ours"], None),
        (f"server = '{TWO}'", [], [None], "reelscribe.toml of this folder, which may be somebody else's, names one"),
        (f"server = '{TWO}'", ["--server", ONE], ["ours"], None),
        (f"server = '{TWO}'\nkey-file = 'theirs'", [], ["theirs"], None),
        (f"[annotate]\nspeech-server = '{TWO}'", ["--server", ONE], [None], "of this folder, which may be somebody"),
    ],
)
def test_the_key_of_openai_goes_to_the_server_that_the_user_names_with_it_alone(
    folder, started, monkeypatch, named_here, words, keys, why
):
    monkeypatch.setenv("OPENAI_API_KEY", "ours")
    Path("theirs").write_text("theirs")
    Path("theirs").chmod(0o600)
    folder.write_text(f"[shared]\n{named_here}\n")
    output = " ".join(annotate("--out", "out", *words).split())
    got = [each.server.credentials for each in started["captions"].found]
    assert [getattr(each, "token", each) for each in got] == keys
    assert (why or "") in output
    assert ("WARNING: OPENAI_API_KEY is sent to no server" in output) == bool(why)
    assert os.environ["OPENAI_API_KEY"] == "ours"  # the next command of this process is asked anew


def test_the_working_folder_names_no_host_that_may_get_a_password(user, folder):
    folder.write_text('[browse]\nmedia-host = "elsewhere.example"\n')
    refused = CliRunner().invoke(app, ["browse", "out"])
    assert refused.exit_code == 2
    assert "names a media-host" in " ".join(refused.output.split())
    folder.unlink()
    user.write_text('[browse]\nmedia-host = "ours.example"\n')
    assert "expected the folder of a run" in " ".join(CliRunner().invoke(app, ["browse", "out"]).output.split())
