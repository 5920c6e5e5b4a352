"""What servers, logs, ledgers and paths say is shown with escapes, so that no terminal obeys or reorders it."""

import asyncio
import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.contract.outcomes import SourceError
from reelscribe.errors import ServerError
from reelscribe.reporting.progress import ErrorLines, Lines, NotebookLines
from reelscribe.reporting.status import RunStatus
from reelscribe.reporting.summary import summary_table
from support.fake_management import FakeManagement, FakeVersion
from support.snapshots import FRAMES, PLAN, SNAPSHOT

EVIL = "\x1b[2J\x9b31m\u202egnp\u2069\x07\u2028"
ESCAPED = r"\x1b[2J\x9b31m\u202egnp\u2069\x07\u2028"


def plain(text: str) -> str:
    """The text, after a check that it has escapes, and nothing that a terminal obeys."""
    assert text.replace("\n", "").isprintable()
    joined = text.replace("\n", "")
    assert ESCAPED in joined
    return joined


def shown(*, width: int = 400) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, highlight=False), stream


@pytest.mark.parametrize("display", [ErrorLines, Lines])
def test_progress_shows_escapes(display):
    console, stream = shown()
    display(console).finished(EVIL, SourceError("MediaError", EVIL))
    display(console).message(EVIL)
    assert plain(stream.getvalue()).count(ESCAPED) == 3


def test_a_notebook_shows_escapes(monkeypatch):
    texts = []
    monkeypatch.setattr(
        "IPython.display.display", lambda shown, **_: texts.append(shown._repr_mimebundle_((), ())["text/plain"])
    )
    notebook = NotebookLines()
    notebook.announce(replace(PLAN, changed_settings=(EVIL,)))
    notebook.show(replace(SNAPSHOT, tracks=(replace(FRAMES, bottleneck=EVIL),)))
    notebook.message(EVIL)
    assert len(texts) == 3
    for text in texts:
        assert r"\u202egnp\u2069" in text
        assert re.sub(r"\x1b\[(31|0)m|\n", "", text).isprintable()  # but for rich's own colour


def test_summary_and_status_show_escapes(tmp_path):
    snapshot = replace(SNAPSHOT, sources_failed=1, failures=((EVIL, "MediaError", EVIL),))
    console, stream = shown()
    console.print(summary_table(snapshot, tmp_path, interrupted=False, replaced_processes=0))
    assert plain(stream.getvalue()).count(ESCAPED) == 2
    console, stream = shown()
    console.print(RunStatus("ended early", EVIL, 1, None, snapshot).table(tmp_path))
    assert plain(stream.getvalue()).count(ESCAPED) == 3


async def test_names_that_a_server_gives_to_its_models_are_escaped():
    async with FakeManagement() as server:
        server.add("captioner", "1.0", FakeVersion(f"{EVIL}.mar"))
        server.description = {"name": EVIL, "devices": ["cpu"]}
        for command in (["list"], ["describe", "captioner"]):
            words = ["models", *command, "--management", server.url]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "reelscribe.cli", *words, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            assert ESCAPED in plain(output.decode())


def test_lines_of_a_log_are_escaped_and_keep_their_tabs(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "access_log.log").write_text(f"GET\t{EVIL}\nnext\n")
    words = ["server", "logs", "--directory", str(tmp_path), "--which", "access"]
    assert CliRunner().invoke(app, words).output == f"GET\t{ESCAPED}\nnext\n"


def test_an_error_is_one_line_of_escapes(monkeypatch, tmp_path):
    def fail(*_: object) -> None:
        raise ServerError(EVIL)

    monkeypatch.setattr("reelscribe.results.ledger_reader.earlier_run_state", fail)
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).stderr == f"reelscribe: {ESCAPED}\n"
