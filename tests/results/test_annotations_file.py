"""The files of results in an output folder: the records, their settings, and the list of failures."""

import json
import resource
from pathlib import Path

import pytest

from reelscribe.contract.outcomes import Caption, SourceError, Utterance
from reelscribe.contract.source import Source
from reelscribe.errors import OutputError
from reelscribe.results.annotations import check_folder, write_results
from reelscribe.results.records import CaptionResult, Model, ModelSettings, Record, TranscriptResult
from support.memory import peak_memory

SETTINGS = ModelSettings('{"x": 1}', Model("m", "r"), {"sampling": {"every": 1}})
WHISPER = ModelSettings('{"y": 2}', Model("w", "s"), {"task": "transcribe"})
RECORD = Record(Source("a.mp4"), CaptionResult(SETTINGS))
FAILED = Record(Source("b\udce9 [1].mp4"), unreadable=SourceError("MediaError", "line one\nline two"))


def lines(out: Path) -> list[str]:
    return (out / "annotations.jsonl").read_text().splitlines()


def test_each_record_is_a_line_and_nothing_else_is_left(tmp_path: Path):
    write_results(tmp_path, [RECORD, RECORD])
    first, second = lines(tmp_path)
    assert first == second
    assert {path.name for path in tmp_path.iterdir()} == {"annotations.jsonl", "run.json"}


def test_models_and_settings_stand_once_under_the_id_that_records_have(tmp_path: Path):
    write_results(tmp_path, [RECORD, RECORD, Record(Source("c.mp4"), transcript_result=TranscriptResult(WHISPER))])
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    records = [json.loads(line) for line in lines(tmp_path)]
    assert len(settings) == 2
    assert settings[records[0]["caption_settings"]] == {
        "model": {"name": "m", "revision": "r"},
        "settings": {"sampling": {"every": 1}},
    }
    assert settings[records[2]["speech_settings"]]["model"] == {"name": "w", "revision": "s"}


def test_failures_are_listed_one_a_line_until_there_are_none(tmp_path: Path):
    write_results(tmp_path, [RECORD, FAILED])
    assert (tmp_path / "failures.txt").read_bytes() == rb"b\udce9 [1].mp4" + b"\tMediaError\tline one\\nline two\n"
    write_results(tmp_path, [RECORD])
    assert not (tmp_path / "failures.txt").exists()


def test_older_files_are_replaced_when_the_new_ones_are_whole(tmp_path: Path):
    write_results(tmp_path, [RECORD])
    before = lines(tmp_path)

    def broken():
        yield FAILED
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        write_results(tmp_path, broken())
    assert lines(tmp_path) == before
    write_results(tmp_path, [FAILED])
    assert lines(tmp_path) != before


def test_a_path_that_is_not_utf_8_is_text_that_every_reader_of_json_accepts(tmp_path: Path):
    write_results(tmp_path, [FAILED])
    text = (tmp_path / "annotations.jsonl").read_text()
    assert json.loads(text)["source"]["path"] == r"b\udce9 [1].mp4"
    assert r"\\udce9" in text


def typed(record: dict) -> set[str]:
    """The fields of a record that have a value which is neither null nor empty."""
    return {name for name, value in record.items() if value not in (None, [])}


def test_the_beginning_of_a_large_file_shows_every_field_that_it_has(tmp_path: Path):
    text = "x" * 200_000
    many = [Record(Source(f"{k:03}.mp4"), captioned(Caption(0, 0.0, text))) for k in range(100)]
    late = [
        Record(Source("100.mp4"), captioned(Caption(1, 0.0, "short", reused_from=0))),
        Record(Source("101.mp4"), transcript_result=spoken(Utterance(0.0, 1.0, "word", "en", 0.5))),
        FAILED,
    ]
    write_results(tmp_path, [*many, *late])
    records = [json.loads(line) for line in lines(tmp_path)]
    beginning = records[:4]
    assert set().union(*map(typed, beginning)) == set().union(*map(typed, records))
    assert any(caption["reused_from"] == 0 for record in beginning for caption in record["captions"])
    rest = [record["source"]["path"] for record in records if record not in beginning]
    assert rest == sorted(rest)
    assert len(records) == 103


def test_writing_many_records_keeps_nothing_of_each_in_memory(tmp_path: Path):
    result = captioned(Caption(0, 0.0, "short"))
    with peak_memory() as peak:
        write_results(tmp_path, (Record(Source(f"{number:05}.mp4"), result) for number in range(2000)))
    assert peak() < 500_000


def captioned(*captions: Caption) -> CaptionResult:
    return CaptionResult(SETTINGS, results=lambda: captions)


def spoken(*utterances: Utterance) -> TranscriptResult:
    return TranscriptResult(WHISPER, results=lambda: utterances)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(OutputError, match=r"run.json: a folder; expected a file"):
        check_folder(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(OutputError, match=r"gone/annotations.jsonl: cannot be written: .*No such file"):
        write_results(tmp_path / "gone", [])


def test_a_full_disk_is_an_output_error_and_the_older_file_is_kept(tmp_path: Path):
    (tmp_path / "annotations.jsonl").write_text("older\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"annotations.jsonl: cannot be written: .*File too large"):
            write_results(tmp_path, [RECORD])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lines(tmp_path) == ["older"]


def fail():
    raise KeyError("a bug")


@pytest.mark.parametrize("result", [CaptionResult(SETTINGS, results=fail), TranscriptResult(WHISPER, results=fail)])
def test_an_error_while_reading_a_record_is_that_of_the_record(tmp_path: Path, result, caplog):
    record = {CaptionResult: "caption_result", TranscriptResult: "transcript_result"}[type(result)]
    assert write_results(tmp_path, [Record(Source("a.mp4"), **{record: result}), Record(Source("b.mp4"))]) == (2, 1)
    first, second = map(json.loads, (tmp_path / "annotations.jsonl").read_text().splitlines())
    assert (first["error"]["type"], second["error"]) == ("KeyError", None)
    assert "KeyError: 'a bug'" in caplog.text
