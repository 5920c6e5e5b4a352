"""The table at the end of a run."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reelscribe.reporting.meter import Snapshot
from reelscribe.reporting.summary import Summary, summary_table
from support.snapshots import FRAMES, NODES, SNAPSHOT, SOUND

DONE = replace(SNAPSHOT, sources_done=5, tracks=(FRAMES, SOUND))


def printed(snapshot: Snapshot = DONE, width: int = 80, **options) -> list[str]:
    """The lines of the table."""
    screen = Console(file=StringIO(), width=width)
    options = {"interrupted": False, "replaced_processes": 0, **options}
    screen.print(summary_table(snapshot, Path("out"), **options))
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_it_has_the_figures_the_first_failures_and_what_to_do_next():
    assert printed() == [
        "         5 sources, 1 failed",
        "         2 skipped: 1 done before, 1 same as another",
        "     1,200 captions made, 20 a second",
        "       100 of these reused from an earlier frame",
        "1 h 30 min of audio transcribed, 90 times real time",
        "1 min 40 s of this silent",
        "        80 requests, 4 sent again",
        "1 min 00 s of time, 2.5 times real time",
        "Failed:",
        "  b [1].mp4: the [file] is empty",
        "All failed sources: out/failures.txt",
        "To try them again, add --retry-failed to the same command.",
        "Results: out/annotations.jsonl",
        "To look at them:",
        "  reelscribe browse out",
        "For subtitles and tables:",
        "  reelscribe export out --format srt --format csv",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal_is_wide(width):
    long = replace(DONE, failures=(("/videos/" + 60 * "x" + ".mp4", "MediaError", 30 * "damaged "),))
    assert all(len(line) <= width for line in printed(long, width))


def test_the_first_failures_are_called_so_if_there_are_more():
    assert "Failed (first 1):" in printed(replace(DONE, sources_failed=700))


def test_an_interrupted_run_tells_where_its_results_are_and_how_to_export_them():
    assert printed(replace(DONE, sources_failed=0, failures=()), interrupted=True)[-5:] == [
        "Results so far: out/annotations.jsonl",
        "To look at them:",
        "  reelscribe browse out",
        "For subtitles and tables:",
        "  reelscribe export out --format srt --format csv",
    ]


def test_a_run_that_was_interrupted_before_a_source_was_finished_says_so():
    early = replace(DONE, sources_done=0, sources_failed=0, failures=())
    text = "No source of this run is finished. What was made of them is saved, and the same command continues there."
    assert text in printed(early, width=120, interrupted=True)
    assert text not in printed(early, width=120)


def test_sources_that_are_gone_are_told():
    assert "1 gone from the disk since a run read them; their records stay" in "\n".join(
        printed(replace(DONE, sources_gone=1))
    )


def test_what_limited_the_speed_of_the_whole_run_is_told_without_a_terminal_too():
    frames = replace(FRAMES, run_bottleneck="the server is the limit: add GPUs")
    sound = replace(SOUND, run_bottleneck="starting")
    assert "the server is the limit: add GPUs" in "\n".join(printed(replace(DONE, tracks=(frames,))))
    lines = [line.strip() for line in printed(replace(DONE, tracks=(frames, sound)))]
    assert "captions: the server is the limit: add GPUs" in lines
    assert "starting" not in "\n".join(lines)
    summary = str(Summary(replace(DONE, tracks=(frames,)), interrupted=False, replaced_processes=0))
    assert summary.endswith(" of time, 2.5 times real time; the server is the limit: add GPUs")


def test_one_source_and_one_request_are_not_several():
    one = replace(DONE, sources=1, sources_done=1, tracks=(replace(FRAMES, requests=1, retries=0),))
    text = "\n".join(printed(one))
    assert "1 source, 1 failed" in text
    assert "1 request, 0 sent again" in text


def test_nodes_that_were_used_or_lost_are_told():
    on_nodes = "\n".join(printed(replace(DONE, nodes=NODES, nodes_lost=2)))
    assert "2 nodes used, lost 2 times: what was in flight there was done again" in on_nodes
    assert "node" not in "\n".join(printed(replace(DONE, nodes=NODES[:1])))  # as on one machine
    assert "node" not in "\n".join(printed())


def test_the_command_that_exports_is_not_named_where_the_run_exports():
    lines = printed(exporting=True)
    assert not any("reelscribe export" in line for line in lines)


def test_a_run_with_nothing_to_do_says_so():
    idle = replace(DONE, tracks=(replace(FRAMES, done=0.0, requests=0),), failures=(), sources_failed=0)
    assert "0 annotations made: nothing new" in "\n".join(printed(idle))
