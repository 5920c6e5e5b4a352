"""The line at the start of a run."""

from dataclasses import replace

from support.snapshots import PLAN


def test_it_tells_sources_hours_frames_what_is_done_and_how_long():
    assert str(PLAN) == (
        "5 sources, 2 h 30 min of media (1 of unknown length); 2 left out; 3 records will show"
        " other results than now, as other settings were chosen (language, vad); 1 done before; one frame a"
        " second: about 9,000 frames to come; speech: about 300 chunks to come; 25 ± 4 min to go"
    )


def test_what_is_not_known_is_not_told():
    fresh = replace(PLAN, sources=1, before=0, excluded=0, unknown=0, choices=(), replaced=0, left=None)
    assert str(fresh) == "1 source, 2 h 30 min of media; time to go not known yet"


def test_it_says_in_one_line_what_is_left_out_of_folders():
    kinds = {".txt": 9, ".dv": 3} | {f".{number}": 1 for number in range(1200)}
    assert "; 2 left out; 12 other files: .txt 9, .dv 3; 3 records" in str(
        replace(PLAN, left_out={".dv": 3, ".txt": 9})
    )
    assert "; 1,212 other files: .txt 9, .dv 3, .0 1, " in str(replace(PLAN, left_out=kinds))
    assert ", others 1,194; " in str(replace(PLAN, left_out=kinds))


def test_nothing_is_to_come_where_all_was_done_before():
    assert (
        str(replace(PLAN, before=5, excluded=0, unknown=0, replaced=0))
        == "5 sources, 2 h 30 min of media; all done before"
    )
