"""What is shown while a run goes on, each way on a console of its own."""

import json
import time
from dataclasses import replace
from datetime import datetime
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from reelscribe.client.balancer import Outage
from reelscribe.reporting import progress
from reelscribe.reporting.meter import Snapshot
from reelscribe.reporting.progress import (
    ErrorLines,
    JsonLines,
    Lines,
    Progress,
    Silent,
    TerminalLines,
    describe,
    display_for,
    time_left_in_words,
)
from support.snapshots import BAD, FRAMES, GOOD, NODES, ON_NODES, PLAN, SNAPSHOT, SOUND

DESCRIPTION = (
    "2 of 5 sources, 1 failed, 2.5 times real time, 13 ± 2 min left; decoding is the limit: add --decode-workers"
    " (decode 50% busy, inference 90%, 2 sent again)"
)


def console(*, terminal: bool = False, width: int = 200) -> Console:
    return Console(file=StringIO(), force_terminal=terminal, width=width)


def shown(screen: Console) -> str:
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def show_all(display: Progress) -> None:
    with display:
        display.announce(PLAN)
        display.show(SNAPSHOT)
        display.finished(GOOD.source.path, GOOD.error)
        display.finished(BAD.source.path, BAD.error)
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
    expected = f"{DESCRIPTION}\n"
    for now, count in [(100.0, 0), (109.9, 0), (110.0, 1), (119.9, 1), (125.0, 2), (134.9, 2)]:
        clock.now = now
        lines.show(SNAPSHOT)
        assert shown(screen) == expected * count
    lines.finished(BAD.source.path, BAD.error)
    assert shown(screen).endswith("MediaError: b [1].mp4: the [file] is empty\n")


def drawn(width: int, snapshot: Snapshot = SNAPSHOT) -> list[str]:
    """The two lines at this width, without colours."""
    screen = Console(file=StringIO(), width=width)
    figures = progress._Figures()
    figures.snapshot = snapshot
    screen.print(figures, end="")
    return [line.rstrip() for line in shown(screen).splitlines()]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, ["2/5 ━━━━━━━━             2.5x 13 ± 2 min", "decoding: add --decode-workers"]),
        (
            80,
            [
                "sources 2/5 ━━━━━━━━━━━━━━━                       2.5x real time 13 ± 2 min left",
                "decoding is the limit: add --decode-workers (decode 50% busy, inference 90%)",
            ],
        ),
        (
            60,
            [
                "sources 2/5 ━━━━━━━           2.5x real time 13 ± 2 min left",
                "decoding is the limit: add --decode-workers",
            ],
        ),
    ],
)
def test_two_lines_say_how_far_the_run_is_how_fast_how_long_and_why(width, expected):
    assert [line.replace("╸", "━").replace("╺", "━") for line in drawn(width)] == expected


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (30, "2/5 ━━━━       2.5x 13 ± 2 min"),
        (40, "2/5 ━━━━       1/3 nodes 2.5x 13 ± 2 min"),
        (80, "sources 2/5 ━━━━━━━━━━━                 1/3 nodes 2.5x real time 13 ± 2 min left"),
    ],
)
def test_where_there_is_room_the_first_line_says_how_many_nodes_are_ready(width, expected):
    assert drawn(width, ON_NODES)[0].replace("╸", "━").replace("╺", "━") == expected


def test_without_a_terminal_a_line_says_how_many_nodes_are_ready():
    assert describe(ON_NODES).startswith("2 of 5 sources, 1 failed, 1 of 3 nodes ready, 2.5 times real time, ")
    assert " 1 of 1 node ready, " in describe(replace(ON_NODES, nodes=NODES[:1]))


def test_a_run_whose_sources_are_all_done_says_so():
    done = replace(SNAPSHOT, sources_done=5, tracks=(replace(FRAMES, bottleneck="starting"),))
    assert drawn(80, done)[1] == "all sources are done"


def test_while_sources_are_being_found_nothing_says_that_all_are_done():
    first = replace(ON_NODES, sources=0, sources_done=0, sources_failed=0, tracks=(), all_listed=False)
    assert describe(first).startswith("0 of 0 sources found so far, 0 failed, ")
    assert describe(first).endswith("; starting")
    caught_up = drawn(80, replace(SNAPSHOT, sources=2, all_listed=False))
    assert caught_up[0].startswith("sources 2/2+ ")
    assert caught_up[1].startswith("decoding is the limit")


LIMITS = [
    "the server is the limit: add GPUs",
    "the server is the limit: add GPUs or cores",
    "the network is the limit: use a faster one",
    "requests are the limit: raise --requests-in-flight",
    "the server's queue is the limit: raise job_queue_size",
    "sending is the limit: use more cores",
    "the client's core is the limit: run several clients",
    "reading files is the limit: use faster storage",
    "saving is the limit: use a faster disk",
    "the store is the limit: get closer to it",
    "few sources are left: nothing to add",
    "decoding is the limit: use more cores",
]


@pytest.mark.parametrize("width", [40, 41, 50, 60, 80, 120])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("nodes", [(), 400 * NODES])
def test_nothing_is_cut_or_wrapped_at_any_width(width, limit, nodes):
    large = replace(
        SNAPSHOT,
        sources=100_000,
        sources_done=99_999,
        eta_seconds=90_000.0,
        eta_plus_minus=30_000.0,
        tracks=(replace(FRAMES, bottleneck=limit),),
        nodes=nodes,
    )
    lines = drawn(width, large)
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)
    assert "99,999/100,000" in lines[0]
    assert "25 ± 8 h" in lines[0]
    assert "…" not in "".join(lines)


def test_where_there_is_room_the_line_says_how_full_calls_are_and_what_keeps_requests_from_filling_them():
    capped = replace(FRAMES, call_items=83.2, full_call=512, requests_in_flight=24, requests_wanted=256)
    text = describe(replace(SNAPSHOT, tracks=(capped,)))
    assert text.endswith("calls have 83 of 512 items, 24 of 256 requests in flight, 2 sent again)")
    assert drawn(80, replace(SNAPSHOT, tracks=(capped,)))[1].endswith("(decode 50% busy, inference 90%)")
    single = replace(capped, call_items=1.0, full_call=1, requests_in_flight=256, retries=0)
    assert describe(replace(SNAPSHOT, tracks=(single,))).endswith("(decode 50% busy, inference 90%)")


def test_while_a_server_is_gone_the_line_says_since_when_and_until_when(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    gone = replace(SNAPSHOT, outage=Outage("refused", since=50_580.0, until=51_480.0))
    assert drawn(80, gone)[1] == "no server since 14:03: waiting until 14:18"
    assert drawn(40, gone)[1] == "no server 14:03, waiting to 14:18"


@pytest.mark.parametrize(
    ("is_terminal", "term", "display"),
    [(True, "xterm", TerminalLines), (True, "dumb", Lines), (True, "", TerminalLines), (False, "xterm", Lines)],
)
def test_lines_stay_where_the_terminal_can_draw_them_anew(is_terminal, term, display, monkeypatch):
    monkeypatch.setenv("TERM", term)
    file = StringIO()
    file.isatty = lambda: is_terminal
    assert type(display_for(Console(file=file))) is display


def test_a_terminal_shows_the_plan_and_failures_above_the_lines():
    screen = console(terminal=True)
    show_all(TerminalLines(screen))
    text = shown(screen)
    assert text.index("5 sources, 2 h 30 min of media") < text.index("2/5")
    assert "b [1].mp4: the [file] is empty" in text


def test_the_lines_end_with_the_run_however_it_ends():
    screen = console(terminal=True)
    with pytest.raises(RuntimeError), TerminalLines(screen) as lines:
        lines.show(SNAPSHOT)
        raise RuntimeError
    assert shown(screen).endswith("\x1b[2K")  # nothing is left of them
    assert "\x1b[?25h" in shown(screen)  # the cursor is visible again


def test_programs_get_one_json_object_a_line():
    screen = console(width=20)
    show_all(JsonLines(screen))
    events = [json.loads(line) for line in shown(screen).splitlines()]
    times = [datetime.fromisoformat(event.pop("time")) for event in events]
    assert sorted(times) == times
    plan, shown_progress, good, bad, message = events
    assert (plan["event"], plan["sources"], plan["text"]) == ("plan", 5, str(PLAN))
    assert shown_progress.pop("event") == "progress"
    assert Snapshot.from_json(shown_progress) == SNAPSHOT
    assert good == {"event": "source", "path": "a.mp4", "status": "ok", "error": None}
    error = ["MediaError", "the [file] is empty"]
    assert bad == {"event": "source", "path": "b [1].mp4", "status": "error", "error": error}
    assert message == {"event": "message", "text": "the [server] came back"}


@pytest.mark.parametrize(
    ("seconds", "plus_minus", "told"),
    [
        (None, None, ""),
        (0.0, 0.0, "less than 1 s"),
        (0.3, 0.2, "less than 1 s"),
        (3.7, 9.0, "about 1 s to 13 s"),
        (59.6, 12.0, "60 ± 12 s"),
        (754.0, 65.0, "13 ± 1 min"),
        (7800.0, 1200.0, "2.2 ± 0.3 h"),
        (400_000.0, 50_000.0, "4.6 ± 0.6 d"),
        (30.0, 60.0, "about 10 s to 1 min 30 s"),
        (754.0, 754.0, "about 6 min 17 s to 25 min"),
    ],
)
def test_the_time_left_and_its_uncertainty_are_in_one_unit(seconds, plus_minus, told):
    assert time_left_in_words(replace(SNAPSHOT, eta_seconds=seconds, eta_plus_minus=plus_minus)) == told


def test_when_all_sources_are_done_no_time_is_left():
    assert "left" not in describe(replace(SNAPSHOT, sources_done=5, eta_seconds=0.0))


def test_of_two_models_the_slower_one_tells_its_limit():
    assert describe(replace(SNAPSHOT, tracks=(FRAMES, SOUND))) == DESCRIPTION


@pytest.mark.parametrize(
    ("name", "told"), [("a\x1b[31m\nb.mp4", r"a\x1b[31m\nb.mp4"), ("caf\udce9.mp4", r"caf\udce9.mp4")]
)
def test_names_cannot_break_a_terminal(name, told):
    screen = console()
    ErrorLines(screen).finished(name, BAD.error)
    assert shown(screen) == f"MediaError: {told}: the [file] is empty\n"
