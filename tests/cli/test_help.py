"""`--help` is readable at every width, and the shell completes what it knows."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from reelscribe.cli import app

PROGRAM = [sys.executable, "-c", "from reelscribe.cli import app; app(prog_name='reelscribe')"]


def commands() -> Iterator[tuple[str, object]]:
    """Every command and group, by its words."""

    def walk(words: str, command) -> Iterator[tuple[str, object]]:
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(f"{words} {name}".strip(), inner)

    return walk("", get_command(app))


COMMANDS = dict(commands())


def help_of(words: str, columns: int = 80, option: str = "--help") -> str:
    result = CliRunner().invoke(app, [*words.split(), option], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("words", COMMANDS)
def test_no_name_is_cut_and_no_line_is_too_long(words, columns):
    lines = help_of(words, columns).splitlines()
    for parameter in COMMANDS[words].params:
        if parameter.param_type_name == "option":
            names = ", ".join(sorted(parameter.opts, key=len))
            names = (
                " / ".join([names, *parameter.secondary_opts]) if parameter.is_flag else f"{names} {parameter.metavar}"
            )
            assert [line for line in lines if line == f"  {names}" or line.startswith(f"  {names}  ")]
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)


def test_options_are_in_groups():
    lines = help_of("annotate").splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        *("Arguments:", "Output:", "Subtitles:", "Which sources:", "Which frames:", "Clips:", "Shots:", "Speech:"),
        *("Summaries:", "Server:", "Servers with OpenAI's API:", "Many machines:", "Speed:", "Options:"),
    ]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_explained_where_it_stands(words):
    for parameter in COMMANDS[words].params:
        assert len(parameter.help.split()) >= 2
        assert "README" not in parameter.help
    assert help_of(words, option="-h") == help_of(words)


def test_short_names():
    text = help_of("caption")
    assert "  -o, --out FOLDER" in text
    assert "  -q, --quiet / --no-quiet" in text
    assert "  -h, --help" in text


def complete(*words: str) -> list[str]:
    """The completions that bash offers for a command line whose last word is not finished."""
    script = CliRunner().invoke(app, ["completion", "bash"]).output
    python = shlex.quote(sys.executable)
    line = f"""
        reelscribe() {{ {python} -c "from reelscribe.cli import app; app(prog_name='reelscribe')" "$@"; }}
        env() {{ local -x "${{@:1:$#-1}}"; "${{@: -1}}"; }}  # so that the function above is the program
        {script}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        _reelscribe_completion reelscribe
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_values():
    assert complete("reelscribe", "models", "un") == ["unregister"]
    assert complete("reelscribe", "annotate", "--fra") == [
        *("--frames", "--frames-per-request", "--frame-format", "--frame-times", "--frame-prompt")
    ]
    assert complete("reelscribe", "annotate", "a.mp4", "--resize", "e") == ["exact"]


@pytest.mark.parametrize(
    ("shell", "environment", "answer"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "reelscribe anno"}, '"annotate":"Caption and transcribe in one pass'),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "reelscribe anno", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "annotate\tCaption and transcribe in one pass",
        ),
    ],
)
def test_the_scripts_of_other_shells_get_their_answers(shell, environment, answer):
    script = CliRunner().invoke(app, ["completion", shell]).output
    assert f"_REELSCRIBE_COMPLETE=complete_{shell}" in script
    variables = {**os.environ, "_REELSCRIBE_COMPLETE": f"complete_{shell}", **environment}
    done = subprocess.run(PROGRAM, env=variables, capture_output=True, text=True, check=True)
    assert answer in done.stdout
