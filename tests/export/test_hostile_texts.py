"""What a model says may hold anything: escapes for terminals, HTML, syntax of subtitles, formulas, turned texts."""

import json
import re

import pytest
from pyarrow import parquet

from reelscribe.contract.outcomes import Caption
from reelscribe.contract.source import Source
from reelscribe.export.chapters import Chapter, ffmetadata, site_lines
from reelscribe.results.annotations import write_results
from reelscribe.results.records import CaptionResult, Model, ModelSettings, Record
from support.exporting import cues, exported, record, rows, shown_by_ffmpeg, transcript_record, words

CONTROLS = [chr(code) for code in [*range(32), *range(0x7F, 0xA0)]]
BIDI = [*map(chr, [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])]
EMBEDDING = {*map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])}
EMBEDDED_LINE = re.compile("\u202b([^\u202a-\u202e\u2066-\u2069]*?)\u202c(?=\\n|\\\\N)")
"""How exports write a line that is read from right to left: what stands around it keeps its order."""
NO_EMBEDDING = dict.fromkeys(map(ord, EMBEDDING))
HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07 x",
    "\x9b31mred",
    "a\x00b",
    "a\x85b\u2028c",
    "<script>alert(1)</script><b>x</b>",
    "a --> b",
    "x\n\n7\n00:00:09,000 --> 00:00:10,000\ny",
    '=HYPERLINK("http://a.b","x")',
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "'=1",
    "\u202egnp.exe\u2069",
    "title=x;#\\\n[CHAPTER]",
    "{\\an8}x",
]


def test_subtitles_show_hostile_texts_as_they_are(tmp_path):
    out = exported(tmp_path, [transcript_record("a.mp4", *HOSTILE)], "vtt", "srt", "ass")
    for path in (out / "vtt/a.mp4.vtt", out / "srt/a.mp4.srt"):
        assert not set(path.read_text()) & {*CONTROLS} - {"\n"}
        assert [shown for _, _, shown in cues(path)] == [words(text.translate(NO_EMBEDDING)) for text in HOSTILE]
    assert "<" not in (out / "vtt/a.mp4.vtt").read_text()
    assert len(shown_by_ffmpeg(out / "srt/a.mp4.srt")) == len(HOSTILE)
    assert len(shown_by_ffmpeg(out / "ass/a.mp4.ass")) == len(HOSTILE)


def test_no_text_orders_anew_what_stands_around_it(tmp_path):
    mark, words = "\u200f\u061c\u200e", "مرحبا שלום \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 👩\u200d🚀"
    value = transcript_record("a.mp4", f"{mark}{words}{''.join(EMBEDDING)}.exe", *EMBEDDING, "end")
    value["segments"][0]["speaker"] = "\u202ebob"
    out = exported(tmp_path, [value], "vtt", "srt", "ass", "txt", "rttm", "chapters", speaker_names=True)
    for path in out.glob("*/*"):
        content = EMBEDDED_LINE.sub(r"\1", path.read_text())
        assert not set(content) & EMBEDDING
        assert f"{mark}{words}.exe" in " ".join(content.split()) or path.suffix == ".rttm"


def test_no_cell_of_csv_is_a_formula_or_obeyed_by_a_terminal(tmp_path):
    texts = [*HOSTILE, *CONTROLS, *BIDI]
    out = exported(tmp_path, [record("a.mp4", *texts)], "csv", "parquet")
    cells = [row[3] for row in rows(out / "captions.csv")[1:]]
    for text, cell in zip(texts, cells, strict=True):
        assert not set(cell) & {*CONTROLS} - {"\t", "\r", "\n"}
        assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n")
        plain = "".join("\ufffd" if char in CONTROLS and char not in "\t\r\n" else char for char in text)
        assert cell in (plain, f"'{plain}")
    assert parquet.read_table(out / "parquet/captions")["text"].to_pylist() == texts


def test_a_record_is_one_line_that_no_terminal_obeys_and_has_the_same_texts(tmp_path):
    texts = [*HOSTILE, *CONTROLS, *BIDI, "\u2028\u2029", "مرحبا", "שלום", "é 👩\u200d🚀"]
    settings = ModelSettings('{"x": 1}', Model("m", "r"), {})
    result = CaptionResult(settings, results=lambda: [Caption(k, 0.0, text) for k, text in enumerate(texts)])
    write_results(tmp_path, [Record(Source("a.mp4"), result)])
    line = (tmp_path / "annotations.jsonl").read_bytes().decode().removesuffix("\n")
    assert not set(line) & {*CONTROLS, *BIDI, "\u2028", "\u2029"}
    assert [caption["text"] for caption in json.loads(line)["captions"]] == texts


@pytest.mark.parametrize("title", [text for text in HOSTILE if text.isprintable()], ids=ascii)
def test_a_title_of_a_chapter_is_no_syntax(title):
    chapters = [Chapter(0, 10_000, title), Chapter(10_000, 20_000, "end")]
    assert ffmetadata(chapters).count("\n[CHAPTER]\n") == 2
    assert "<" not in site_lines(chapters)
    assert len(site_lines(chapters).splitlines()) == 2
