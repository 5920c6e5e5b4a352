"""Transcripts as plain text: a line for each segment, a paragraph after each pause."""

from pathlib import Path

import pytest

from reelscribe.contract.outcomes import Utterance
from reelscribe.errors import UsageError
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import export
from reelscribe.export.plain_text import plain_text
from support.exporting import annotations, record, transcript_record


def said(start: float, end: float, text: str) -> Utterance:
    return Utterance(start, end, text, "en", None)


def test_segments_are_lines_and_a_pause_of_two_seconds_begins_a_paragraph():
    utterances = [said(0, 4, "One."), said(5.9, 7, "Two."), said(9, 10, "Three."), said(10, 11, "Four.")]
    assert plain_text(utterances) == "One.\nTwo.\n\nThree.\nFour.\n"


def test_a_segment_stays_on_its_line_whatever_it_holds():
    assert (
        plain_text([said(0, 1, " a\nb\x1b[31m\t c "), said(1, 2, " \n"), said(2.5, 3, "\u65e5\u672c")])
        == "a b [31m c\n\u65e5\u672c\n"
    )


def test_each_source_in_which_somebody_speaks_has_a_file(tmp_path):
    records = [transcript_record("/v/a.mp4", "Hello."), transcript_record("/v/b/c.ogg"), record("/v/d.mp4", "a star")]
    written = export(annotations(tmp_path, records), tmp_path, ["txt"], CueRules(made_from="captions")).written
    assert written == [tmp_path / "txt/a.mp4.txt"]
    assert written[0].read_bytes() == b"Hello.\n"


def test_without_any_transcript_there_is_no_plain_text(tmp_path):
    path = annotations(tmp_path, [record("/v/a.mp4", "a star")])
    with pytest.raises(UsageError, match=r"expected records with transcripts, .* `reelscribe transcribe`"):
        export(path, Path(tmp_path), ["txt"])


def test_segments_with_flags_can_be_left_out_of_all_but_records_and_pages(tmp_path):
    value = transcript_record("a.mp4", "Hello.", "Thank you.")
    value["segments"][1]["flags"] = ["no-speech"]
    path, formats = annotations(tmp_path, [value]), ("txt", "srt", "csv", "jsonl.zst")
    export(path, tmp_path / "all", formats)
    export(path, tmp_path / "sure", formats, drop_doubtful=True)
    for name in ("txt/a.mp4.txt", "srt/a.mp4.srt", "transcript.csv"):
        kept, sure = ((tmp_path / out / name).read_text() for out in ("all", "sure"))
        assert "Thank you." in kept
        assert ("Hello." in sure, "Thank you." in sure) == (True, False)
    assert len({(tmp_path / out / "annotations.jsonl.zst").read_bytes() for out in ("all", "sure")}) == 1
