"""What is shown while a run goes on, each way on a console of its own."""

import json
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from reelscribe.reporting import progress
from reelscribe.reporting.meter import Snapshot
from reelscribe.reporting.progress import ErrorLines, JsonLines, Lines, Progress, Silent, TerminalBars, describe
from support.snapshots import BAD, FRAMES, GOOD, SNAPSHOT, SOUND

DESCRIPTION = (
    "1 failed, 2.5 hours of media an hour, 12 min 34 s left; 1200 frames (20 a second): server: [3.6] of 4 workers busy"
    " (requests: network 10%, queue 20%, device 70%)"
)


def console(*, terminal: bool = False, width: int = 200) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=width)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def show_all(display: Progress) -> None:
    with display:
        display.show(SNAPSHOT)
        display.finished(GOOD)
        display.finished(BAD)
        display.message("the [server] came back")


def test_silence_is_silent(capsys):
    show_all(Silent())
    assert capsys.readouterr() == ("", "")


def test_failures_are_told_one_a_line_whatever_is_in_their_names():
    screen = console(width=20)
    show_all(ErrorLines(screen))
    assert shown(screen) == "MediaError: b [1].mp4: the [file] is empty\nthe [server] came back\n"


def test_lines_come_every_ten_seconds(monkeypatch):
    screen, clock = console(width=20), SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    lines = Lines(screen)
    expected = f"2 of 5 sources, {DESCRIPTION}\n"
    for now, count in [(100.0, 0), (109.9, 0), (110.0, 1), (119.9, 1), (125.0, 2), (134.9, 2)]:
        clock.now = now
        lines.show(SNAPSHOT)
        assert shown(screen) == expected * count
    lines.finished(BAD)
    assert shown(screen).endswith("MediaError: b [1].mp4: the [file] is empty\n")


def test_a_terminal_shows_a_bar_the_figures_and_failures():
    screen = console(terminal=True)
    show_all(TerminalBars(screen))
    text = shown(screen)
    assert "2/5" in text
    assert "1200 frames (20 a second" in text
    assert "b [1].mp4: the [file] is empty" in text


def test_a_narrow_terminal_shows_all_of_it():
    screen = console(terminal=True, width=50)
    show_all(TerminalBars(screen))
    text = shown(screen)
    assert "2/5" in text
    assert "left; 1200 frames" in " ".join(text.split())


def test_a_bar_ends_with_the_run_however_it_ends():
    screen = console(terminal=True)
    with pytest.raises(RuntimeError), TerminalBars(screen) as bars:
        bars.show(SNAPSHOT)
        raise RuntimeError
    assert shown(screen).endswith("\x1b[?25h")  # the cursor is visible again


def test_programs_get_one_json_object_a_line():
    screen = console(width=20)
    show_all(JsonLines(screen))
    shown_progress, good, bad, message = map(json.loads, shown(screen).splitlines())
    assert shown_progress.pop("event") == "progress"
    assert Snapshot.from_json(shown_progress) == SNAPSHOT
    assert good == {"event": "source", "path": "a.mp4", "status": "ok", "error": None}
    error = ["MediaError", "the [file] is empty"]
    assert bad == {"event": "source", "path": "b [1].mp4", "status": "error", "error": error}
    assert message == {"event": "message", "text": "the [server] came back"}


@pytest.mark.parametrize(
    ("eta_seconds", "told"),
    [(None, "an hour; "), (0.0, ", 0 min 00 s left"), (59.6, ", 1 min 00 s left"), (3725.0, ", 1 h 02 min left")],
)
def test_the_time_left_is_told_if_it_is_known(eta_seconds, told):
    assert told in describe(replace(SNAPSHOT, eta_seconds=eta_seconds))


def test_when_all_sources_are_done_no_time_is_left():
    assert "left" not in describe(replace(SNAPSHOT, sources_done=5, eta_seconds=0.0))


def test_of_two_models_each_tells_how_it_gets_on():
    told = describe(replace(SNAPSHOT, lanes=(FRAMES, SOUND)))
    requests = "(requests: network 10%, queue 20%, device 70%)"
    assert told.startswith(f"{DESCRIPTION}; ")
    assert told.endswith(f"; 5400 seconds of sound (90 a second): decoding {requests}")
