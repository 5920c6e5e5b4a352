"""How a run is, by what it saved and by whether its folder is locked."""

from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reelscribe.reporting.status import RunStatus
from support.snapshots import FRAMES, NODES, ON_NODES, SNAPSHOT, SOUND

DONE = replace(SNAPSHOT, sources_done=5, sources_failed=0, failures=())


def status(state: str, snapshot=SNAPSHOT, *, locked: bool = False) -> RunStatus:
    return RunStatus.from_run_state({"state": state, "pid": 7, "time": 0.0, **asdict(snapshot)}, locked=locked)


@pytest.mark.parametrize(
    ("saved", "snapshot", "locked", "told", "exit_status"),
    [
        ("running", SNAPSHOT, True, "running, process 7", 0),
        ("stopping", SNAPSHOT, True, "stopping, process 7: it saves what is in progress", 0),
        ("done", DONE, False, "done: all sources succeeded", 0),
        ("done", replace(SNAPSHOT, sources_done=5), False, "done: 1 of 5 sources failed", 3),
        ("done", replace(DONE, others=2, others_failed=1), False, "done: 1 of 7 sources failed", 3),
        ("interrupted", SNAPSHOT, False, "interrupted: to continue, run the same command again", 130),
        ("ended: the disk is full", SNAPSHOT, False, "ended early: the disk is full", 1),
        ("running", SNAPSHOT, False, "ended without notice, killed or by a crash: to continue,", 1),
        ("stopping", SNAPSHOT, False, "ended without notice, killed or by a crash: to continue,", 1),
    ],
)
def test_each_state_has_words_and_the_exit_status_of_the_run(saved, snapshot, locked, told, exit_status):
    run = status(saved, snapshot, locked=locked)
    assert str(run).startswith(told)
    assert run.exit_status == exit_status


def printed(run: RunStatus, width: int = 80) -> list[str]:
    screen = Console(file=StringIO(), width=width)
    screen.print(run.table(Path("out")))
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_this_run_and_the_whole_job_are_kept_apart():
    lines = printed(status("running", replace(SNAPSHOT, tracks=(FRAMES, SOUND)), locked=True))
    assert lines[:8] == [
        "running, process 7",
        "            this run   whole job",
        "sources            1      2 of 5",
        "  failed                       1",
        "  copies                       1",
        "captions       1,200       1,500",
        "audio     1 h 30 min  1 h 35 min",
        "time      1 min 00 s",
    ]
    assert lines[8].startswith("13 ± 2 min left; decoding is the limit: add --decode-workers (decode 50% busy")


def test_the_whole_job_is_the_folder_of_which_a_run_may_do_some_sources():
    lines = printed(status("done", replace(DONE, others=2, others_failed=1)))
    assert lines[2:4] == ["sources            4     7 of 7", "  failed                      1"]
    assert lines[-1] == "again: --retry-failed"


@pytest.mark.parametrize(
    ("saved", "there", "told"),
    [
        ("done", True, "all of them: out/failures.txt; again: --retry-failed"),
        ("done", False, "again: --retry-failed"),
        ("running", True, "again: --retry-failed"),  # it was killed, and the file is that of an earlier run
    ],
)
def test_failures_are_named_with_where_all_of_them_are_once_that_is_written(saved, there, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if there:
        Path("out").mkdir()
        Path("out/failures.txt").write_text("")
    lines = printed(status(saved, replace(SNAPSHOT, sources_done=5)))
    assert lines[-2:] == ["  b [1].mp4: the [file] is empty", told]


def test_each_node_has_a_row_those_first_that_are_not_ready():
    lines = printed(status("running", ON_NODES, locked=True))
    assert lines[-7:-1] == [
        "1 of 3 nodes ready, lost 2 times:",
        "  node      done  open  speed  state",
        "  store-2      7     0   0.0x  lost: it has not answered for 30 s",
        "  store-3      0     0   0.0x  starting",
        "  store-1  1,030    12  41.2x  ready; decoding is the limit: add",
        "                               --decode-workers",
    ]


def test_of_many_nodes_some_are_shown_and_the_others_are_counted():
    many = tuple(replace(NODES[0], name=f"store-{number}") for number in range(1300))
    lines = printed(status("interrupted", replace(ON_NODES, nodes=many, nodes_lost=0)))
    assert "1,300 nodes:" in lines
    assert sum("store-" in line for line in lines) == 20
    assert "  and 1,280 more" in lines


def test_a_run_on_one_machine_tells_of_no_nodes():
    assert "node" not in "\n".join(printed(status("running", locked=True)))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal_is_wide(width):
    assert all(len(line) <= width for line in printed(status("running", ON_NODES, locked=True), width))


def retry(command: str) -> str:
    saved = {"state": "done", "pid": 7, "time": 0.0, "command": command, **asdict(SNAPSHOT)}
    return RunStatus.from_run_state(saved, locked=False).retry


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("caption films --out out", "caption --retry-failed films --out out"),
        ("annotate --out out -- '-- odd.mp4'", "annotate --retry-failed --out out -- '-- odd.mp4'"),
        ("shots --retry-failed a.mp4", "shots --retry-failed a.mp4"),
        ("caption -- --retry-failed", "caption --retry-failed -- --retry-failed"),
        (f"caption {'video.mp4 ' * 1000}last.mp4", f"caption --retry-failed {'video.mp4 ' * 1000}last.mp4"),
    ],
)
def test_the_command_that_tries_failed_sources_again_can_be_copied(command, again):
    assert retry(f"cd '/my films' && reelscribe {command}") == f"cd '/my films' && reelscribe {again}"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf ~",
        "cd / && rm -rf ~ && reelscribe caption a.mp4",
        "cd / && reelscribe caption a.mp4; rm -rf ~",
        "cd / && reelscribe caption $(rm -rf ~)",
        "cd / && reelscribe forget a.mp4",
        "cd / && reelscribe caption 'a\nb.mp4'",
        "cd / && reelscribe caption 'a\u202eb.mp4'",
        "cd / && reelscribe caption 'a\udcff.mp4'",
        "cd / && reelscribe caption 'a",
    ],
)
def test_no_other_command_is_given_to_copy(command):
    assert retry(command) == "Run the same command again with --retry-failed."


def test_a_run_from_python_is_tried_again_with_its_options():
    assert retry("").startswith("Call the same function with retry_failed=True in its options")
